//! Counts results, and logs the first of several alike failures.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::text_format::Number::Whole;
use crate::text_format::{FamiliesOf, Lines, families};

const LOADED: &str = "loaded";
const REFUSED: &str = "refused";

/// Of TLS certificates, which agent and bridge have.
pub(super) static CERTIFICATES: &FamiliesOf<Results> = families! {
    "psi_agent_certificate_reads_total" = Results::write,
        "New TLS certificates, by whether they could be served.";
};

/// The number of each result, and the kind of failure that was logged since the last success. Each
/// kind is logged once.
#[derive(Debug, Default)]
pub(super) struct Results {
    counts: BTreeMap<&'static str, u64>,
    failure: Option<&'static str>,
}

impl Results {
    /// These results have series from the start, so that an alert on their increase detects the first
    /// count. The others have series from their first count.
    pub(super) fn from_start(results: &[&'static str]) -> Self {
        Self { counts: results.iter().map(|&result| (result, 0)).collect(), failure: None }
    }

    pub(super) fn count(&mut self, result: &'static str) {
        *self.counts.entry(result).or_default() += 1;
    }

    /// Counts a failure, and logs it with this message unless the last logged one is of its kind.
    pub(super) fn failed(&mut self, kind: &'static str, error: &dyn Display, message: &str) {
        self.count(kind);
        if self.failure.replace(kind) != Some(kind) {
            tracing::warn!(%error, "{message}");
        }
    }

    /// Records a success, and logs this message if it ends a failure.
    pub(super) fn succeeded(&mut self, message: &str) {
        if self.failure.take().is_some() {
            tracing::info!("{message}");
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(super) fn write(&self, lines: &mut Lines<'_>) {
        for (result, count) in &self.counts {
            lines.write(&[("result", result)], Whole(*count));
        }
    }
}

/// Records that the certificate was read. `Ok(true)` means that it is new. Before the first reading there are no
/// series.
pub(super) fn certificate_read(reads: &mut Option<Results>, outcome: Result<bool, impl Display>) {
    let reads = reads.get_or_insert_with(|| Results::from_start(&[LOADED, REFUSED]));
    match outcome {
        Ok(is_new) => {
            if is_new {
                reads.count(LOADED);
                tracing::info!("Serving a new certificate");
            }
            reads.succeeded("The certificate's files can be served again");
        }
        Err(error) => {
            reads.failed(REFUSED, &error, "Cannot serve the new certificate; the old one is kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{pipe, read_to_string};
    use std::sync::Arc;

    #[test]
    fn each_kind_of_failure_is_logged_once_until_a_success() {
        let (log, writer) = pipe().unwrap();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time();
        let subscriber = subscriber.with_target(false).with_writer(Arc::new(writer)).finish();
        let mut results = Results::default();
        tracing::subscriber::with_default(subscriber, || {
            results.succeeded("there was no failure");
            for kind in ["timeout", "timeout", "conflict"] {
                results.failed(kind, &"late", kind);
            }
            results.succeeded("works again");
            results.succeeded("works still");
            results.failed("conflict", &"late", "again");
        });
        assert_eq!(results.total(), 4);
        let expected = " WARN timeout error=late\n WARN conflict error=late\n INFO works again\n \
                        WARN again error=late\n";
        assert_eq!(read_to_string(log).unwrap(), expected);
    }
}
