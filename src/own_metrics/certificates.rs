//! Metrics and log messages of TLS certificates, which agent and bridge have.

use std::fmt::Display;

use super::results::Results;
use crate::text_format::{FamiliesOf, families};

const LOADED: &str = "loaded";
const REFUSED: &str = "refused";

pub(super) static CERTIFICATES: &FamiliesOf<Results> = families! {
    "psi_agent_certificate_reads_total" = Results::write,
        "New TLS certificates, by whether they could be served.";
};

/// Records that the certificate was read. `Ok(true)` means that it is new. Before the first reading there are no
/// series.
pub(super) fn record(reads: &mut Option<Results>, outcome: Result<bool, impl Display>) {
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
