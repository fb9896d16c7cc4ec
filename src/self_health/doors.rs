//! What came of tokens and certificates: counted each time, trouble said once until it is over.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{IntCounterVec, Opts, Registry};

use super::registered;
use crate::cluster::call::CallError;
use crate::doors::verdicts::Verdict;

/// A certificate that is served now.
const LOADED: &str = "loaded";
/// Files that cannot be.
const REFUSED: &str = "refused";

#[derive(Debug)]
pub(super) struct Doors {
    reviews: IntCounterVec,
    reads: IntCounterVec,
    reviews_in_trouble: AtomicBool,
    certificate_in_trouble: AtomicBool,
}

impl Doors {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let of_result = |name, help, results: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), &["result"])?;
            for result in results {
                counter.with_label_values(&[result]);
            }
            registered(registry, counter)
        };
        let reviews = of_result(
            "psi_agent_token_reviews_total",
            "Bearer tokens that the API server was to be asked about, by what came of it.",
            &Verdict::ALL.map(Verdict::word),
        )?;
        let reads = of_result(
            "psi_agent_certificate_reads_total",
            "Times that a new TLS certificate was found, by whether it could be served.",
            &[LOADED, REFUSED],
        )?;
        Ok(Self {
            reviews,
            reads,
            reviews_in_trouble: AtomicBool::new(false),
            certificate_in_trouble: AtomicBool::new(false),
        })
    }

    pub(super) fn reviewed(&self, verdict: Verdict) {
        self.reviews.with_label_values(&[verdict.word()]).inc();
        // Who was not asked for says nothing about the API server.
        if verdict != Verdict::NotAsked && self.reviews_in_trouble.swap(false, Ordering::Relaxed) {
            tracing::info!("The API server says again whose tokens are");
        }
    }

    pub(super) fn not_reviewed(&self, error: &CallError) {
        self.reviews.with_label_values(&[Verdict::Unanswered.word()]).inc();
        if !self.reviews_in_trouble.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "Cannot ask whose a token is, so nobody new gets in; the agent's account needs the \
                 ClusterRole system:auth-delegator"
            );
        }
    }

    pub(super) fn certificate_reads(&self, is_new: bool) {
        if is_new {
            self.reads.with_label_values(&[LOADED]).inc();
            tracing::info!("Serving a new certificate");
        }
        let was_in_trouble = self.certificate_in_trouble.swap(false, Ordering::Relaxed);
        if was_in_trouble && !is_new {
            tracing::info!("The certificate's files are again what is served");
        }
    }

    pub(super) fn certificate_does_not_read(&self, error: &dyn Display) {
        self.reads.with_label_values(&[REFUSED]).inc();
        if !self.certificate_in_trouble.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "Cannot serve the new certificate; the one before stays");
        }
    }
}
