//! What came of writing the score on the Node: counted each time, said once.

use std::sync::{Mutex, PoisonError};

use prometheus::{Gauge, IntCounterVec, Opts, Registry};

use super::registered;
use crate::cluster::call::CallError;

/// Result of one that came through.
const WRITTEN: &str = "written";
/// Result of one that was only said.
const DRY_RUN: &str = "dry_run";

#[derive(Debug)]
pub(super) struct Publishes {
    results: IntCounterVec,
    last: Gauge,
    trouble: Mutex<Option<&'static str>>,
}

impl Publishes {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let results = IntCounterVec::new(
            Opts::new(
                "psi_agent_publishes_total",
                "Times that the score was to be written on the Node, by result.",
            ),
            &["result"],
        )?;
        for result in [WRITTEN, DRY_RUN].into_iter().chain(CallError::WORDS) {
            results.with_label_values(&[result]);
        }
        let last = Gauge::new(
            "psi_agent_last_publish_timestamp_seconds",
            "Date of the value that this agent wrote last, 0 if it wrote none.",
        )?;
        Ok(Self {
            results: registered(registry, results)?,
            last: registered(registry, last)?,
            trouble: Mutex::default(),
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "a date in seconds is far below 2^52")]
    pub(super) fn written(&self, observed_at_ms: u64) {
        self.results.with_label_values(&[WRITTEN]).inc();
        self.last.set((observed_at_ms / 1000) as f64);
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.take().is_some() {
            tracing::info!("The score is published again");
        }
    }

    pub(super) fn would_be_written(&self) {
        self.results.with_label_values(&[DRY_RUN]).inc();
    }

    pub(super) fn not_written(&self, error: &CallError) {
        self.results.with_label_values(&[error.word()]).inc();
        // Every Node is written by others too: that happens, and is mended in seconds.
        if *error == CallError::Conflict {
            return tracing::debug!(%error, "Writing the score again");
        }
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.replace(error.word()) != Some(error.word()) {
            tracing::warn!(%error, "Cannot publish the score; trying again, later each time");
        }
    }
}
