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
pub(super) struct Reviews {
    results: IntCounterVec,
    in_trouble: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Certificates {
    reads: IntCounterVec,
    in_trouble: AtomicBool,
}

/// Counts that are there from the start, each of them 0.
fn of_result(
    registry: &Registry,
    name: &str,
    help: &str,
    results: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counter = IntCounterVec::new(Opts::new(name, help), &["result"])?;
    for result in results {
        counter.with_label_values(&[result]);
    }
    registered(registry, counter)
}

impl Reviews {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let results = of_result(
            registry,
            "psi_agent_token_reviews_total",
            "Bearer tokens that the API server was to be asked about, by what came of it.",
            &Verdict::ALL.map(Verdict::word),
        )?;
        Ok(Self { results, in_trouble: AtomicBool::new(false) })
    }

    pub(super) fn reviewed(&self, verdict: Verdict) {
        self.results.with_label_values(&[verdict.word()]).inc();
        // Who was not asked for says nothing about the API server.
        if verdict != Verdict::NotAsked && self.in_trouble.swap(false, Ordering::Relaxed) {
            tracing::info!("The API server says again whose tokens are");
        }
    }

    pub(super) fn not_reviewed(&self, error: &CallError) {
        self.results.with_label_values(&[Verdict::Unanswered.word()]).inc();
        if !self.in_trouble.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "Cannot ask whose a token is, so nobody new gets in; the agent's account needs the \
                 ClusterRole system:auth-delegator"
            );
        }
    }
}

impl Certificates {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let reads = of_result(
            registry,
            "psi_agent_certificate_reads_total",
            "Times that a new TLS certificate was found, by whether it could be served.",
            &[LOADED, REFUSED],
        )?;
        Ok(Self { reads, in_trouble: AtomicBool::new(false) })
    }

    pub(super) fn read(&self, is_new: bool) {
        if is_new {
            self.reads.with_label_values(&[LOADED]).inc();
            tracing::info!("Serving a new certificate");
        }
        let was_in_trouble = self.in_trouble.swap(false, Ordering::Relaxed);
        if was_in_trouble && !is_new {
            tracing::info!("The certificate's files are again what is served");
        }
    }

    pub(super) fn do_not_read(&self, error: &dyn Display) {
        self.reads.with_label_values(&[REFUSED]).inc();
        if !self.in_trouble.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "Cannot serve the new certificate; the one before stays");
        }
    }
}
