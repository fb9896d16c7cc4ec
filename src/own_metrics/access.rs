//! Metrics and log messages of token reviews and TLS certificates.

use std::fmt::Display;

use prometheus::{IntCounterVec, Result};

use super::group::Group;
use crate::client::cluster::call::CallError;
use crate::error_log::FailureLog;
use crate::serve::token_cache::Decision;

const LOADED: &str = "loaded";
const REFUSED: &str = "refused";

#[derive(Debug)]
pub struct Reviews {
    results: IntCounterVec,
    log: FailureLog,
}

impl Reviews {
    pub(super) fn new(group: Group<'_>) -> Result<Self> {
        let name = "psi_agent_token_reviews_total";
        let help = "Bearer tokens without a cached decision, by the result of their review.";
        Ok(Self { results: group.counters(name, help, "result", &[])?, log: FailureLog::default() })
    }

    /// Records that a token was reviewed, or that the limit of reviews was reached.
    pub fn decided(&self, decision: Decision) {
        self.results.with_label_values(&[decision.word()]).inc();
        // A token that was not reviewed does not show whether reviews work again.
        if decision != Decision::NotAsked && self.log.succeeded() {
            tracing::info!("The API server reviews tokens again");
        }
    }

    pub fn failed(&self, error: &CallError) {
        let result = Decision::Unanswered.word();
        self.results.with_label_values(&[result]).inc();
        if self.log.failed(result) {
            tracing::warn!(
                %error,
                "Cannot review tokens, so no new client gets access; the agent's account needs the \
                 ClusterRole system:auth-delegator"
            );
        }
    }
}

#[derive(Debug)]
pub struct Certificates {
    results: IntCounterVec,
    log: FailureLog,
}

impl Certificates {
    pub(super) fn new(group: Group<'_>) -> Result<Self> {
        let name = "psi_agent_certificate_reads_total";
        let help = "New TLS certificates, by whether they could be served.";
        Ok(Self {
            results: group.counters(name, help, "result", &[LOADED, REFUSED])?,
            log: FailureLog::default(),
        })
    }

    /// Records that the certificate was read again. `Ok(true)` means that it is new.
    pub fn read(&self, outcome: std::result::Result<bool, impl Display>) {
        match outcome {
            Ok(is_new) => {
                if is_new {
                    self.results.with_label_values(&[LOADED]).inc();
                    tracing::info!("Serving a new certificate");
                }
                if self.log.succeeded() && !is_new {
                    tracing::info!("The certificate's files match the served certificate again");
                }
            }
            Err(error) => {
                self.results.with_label_values(&[REFUSED]).inc();
                if self.log.failed(REFUSED) {
                    tracing::warn!(%error, "Cannot serve the new certificate; the old one is kept");
                }
            }
        }
    }
}
