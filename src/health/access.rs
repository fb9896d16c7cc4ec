//! Metrics and log messages of token reviews and TLS certificates.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{IntCounterVec, Registry};

use super::registry::{counters, register};
use crate::client::cluster::call::CallError;
use crate::serve::token_cache::Decision;

const LOADED: &str = "loaded";
const REFUSED: &str = "refused";

/// Outcomes of one kind of work, counted. A failure is logged once until there is a success.
#[derive(Debug)]
struct Outcomes {
    counts: IntCounterVec,
    is_failing: AtomicBool,
}

impl Outcomes {
    fn count(&self, result: &str) {
        self.counts.with_label_values(&[result]).inc();
    }

    fn new(name_and_help: (&str, &str), from_start: &[&str]) -> prometheus::Result<Self> {
        let counts = counters(name_and_help, "result", from_start)?;
        Ok(Self { counts, is_failing: AtomicBool::new(false) })
    }

    /// Records an outcome. Returns whether the one before was of the other kind.
    fn changes_to(&self, failing: bool) -> bool {
        self.is_failing.swap(failing, Ordering::Relaxed) != failing
    }
}

#[derive(Debug)]
pub struct Reviews(Outcomes);

impl Reviews {
    pub(super) fn new() -> prometheus::Result<Self> {
        let name = "psi_agent_token_reviews_total";
        let help = "Bearer tokens without a cached decision, by the result of their review.";
        Outcomes::new((name, help), &[]).map(Self)
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        register(registry, &self.0.counts)
    }

    /// Records that a token was reviewed, or that the limit of reviews was reached.
    pub fn decided(&self, decision: Decision) {
        self.0.count(decision.word());
        // A token that was not reviewed does not show whether reviews work again.
        if decision != Decision::NotAsked && self.0.changes_to(false) {
            tracing::info!("The API server reviews tokens again");
        }
    }

    pub fn failed(&self, error: &CallError) {
        self.0.count(Decision::Unanswered.word());
        if self.0.changes_to(true) {
            tracing::warn!(
                %error,
                "Cannot review tokens, so no new client gets access; the agent's account needs the \
                 ClusterRole system:auth-delegator"
            );
        }
    }
}

#[derive(Debug)]
pub struct Certificates(Outcomes);

impl Certificates {
    pub(super) fn new() -> prometheus::Result<Self> {
        let name = "psi_agent_certificate_reads_total";
        let help = "New TLS certificates, by whether they could be served.";
        Outcomes::new((name, help), &[LOADED, REFUSED]).map(Self)
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        register(registry, &self.0.counts)
    }

    /// Records that the certificate was read again. `Ok(true)` means that it is new.
    pub fn read(&self, outcome: Result<bool, impl Display>) {
        match outcome {
            Ok(is_new) => {
                if is_new {
                    self.0.count(LOADED);
                    tracing::info!("Serving a new certificate");
                }
                if self.0.changes_to(false) && !is_new {
                    tracing::info!("The certificate's files match the served certificate again");
                }
            }
            Err(error) => {
                self.0.count(REFUSED);
                if self.0.changes_to(true) {
                    tracing::warn!(%error, "Cannot serve the new certificate; the old one is kept");
                }
            }
        }
    }
}
