//! What came of writing the score on the Node: counted each time, said once.

use std::sync::{Mutex, MutexGuard};

use prometheus::{Gauge, IntCounterVec, Opts, Registry};

use super::view::{PublishView, PublishedValue, Trouble};
use super::{locked, registered};
use crate::cluster::call::CallError;

/// Result of one that came through.
const WRITTEN: &str = "written";
/// Result of one that was only said.
const DRY_RUN: &str = "dry_run";

#[derive(Debug)]
pub(super) struct Publishes {
    results: IntCounterVec,
    last: Gauge,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    view: PublishView,
    /// The kind of trouble that was said.
    said: Option<&'static str>,
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
            state: Mutex::default(),
        })
    }

    pub(super) fn begin(&self, mode: &'static str) {
        self.state().view.mode = Some(mode);
    }

    pub(super) fn view(&self) -> PublishView {
        self.state().view.clone()
    }

    #[allow(clippy::cast_precision_loss, reason = "a date in seconds is far below 2^52")]
    pub(super) fn written(&self, value: PublishedValue) {
        self.results.with_label_values(&[WRITTEN]).inc();
        self.last.set((value.observed_at_ms / 1000) as f64);
        let mut state = self.state();
        state.view.last = Some(value);
        state.view.error = None;
        if state.said.take().is_some() {
            tracing::info!("The score is published again");
        }
    }

    pub(super) fn would_be_written(&self, value: PublishedValue) {
        self.results.with_label_values(&[DRY_RUN]).inc();
        let mut state = self.state();
        state.view.last = Some(value);
        state.view.error = None;
    }

    pub(super) fn not_written(&self, error: &CallError, at_ms: u64) {
        self.results.with_label_values(&[error.word()]).inc();
        // Every Node is written by others too: that happens, and is mended in seconds.
        if *error == CallError::Conflict {
            return tracing::debug!(%error, "Writing the score again");
        }
        let mut state = self.state();
        state.view.error = Some(Trouble { message: error.to_string(), at_ms });
        if state.said.replace(error.word()) != Some(error.word()) {
            tracing::warn!(%error, "Cannot publish the score; trying again, later each time");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_seen_until_a_value_is_written() {
        let publishes = Publishes::new(&Registry::new()).unwrap();
        assert_eq!(publishes.view(), PublishView::default());
        publishes.begin("on");
        publishes.not_written(&CallError::Conflict, 1);
        assert_eq!(publishes.view().error, None, "a conflict is mended in seconds");
        publishes.not_written(&CallError::NotFound, 2);
        publishes.not_written(&CallError::NotFound, 3);
        let error = Trouble { message: CallError::NotFound.to_string(), at_ms: 3 };
        let failing = PublishView { mode: Some("on"), last: None, error: Some(error) };
        assert_eq!(publishes.view(), failing);
        let value = PublishedValue { score: 35, level: None, observed_at_ms: 4 };
        publishes.written(value);
        let well = PublishView { mode: Some("on"), last: Some(value), error: None };
        assert_eq!(publishes.view(), well);
    }
}
