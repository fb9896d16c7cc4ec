//! Counts results and decides which failures are logged. Pure: the callers log.

use std::collections::BTreeMap;

use crate::text_format::Lines;
use crate::text_format::Number::Whole;

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

    /// Counts a failure. Returns whether it is to be logged.
    pub(super) fn failed(&mut self, kind: &'static str) -> bool {
        self.count(kind);
        self.failure.replace(kind) != Some(kind)
    }

    /// Records a success. Returns whether it ends a failure.
    pub(super) fn succeeded(&mut self) -> bool {
        self.failure.take().is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_is_logged_once_until_a_success() {
        let mut results = Results::default();
        assert!(!results.succeeded(), "there was no failure");
        assert!(results.failed("timeout") && !results.failed("timeout"));
        assert!(results.failed("conflict"));
        assert!(results.succeeded() && !results.succeeded());
        assert!(results.failed("conflict"));
        assert_eq!(results.total(), 4);
    }
}
