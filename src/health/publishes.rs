//! Metrics and log messages of publishing the score on the Node.

use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use prometheus::{Gauge, IntCounterVec, Registry};

use super::candidates::Candidates;
use super::registry::{counters, locked, register};
use super::view::{DatedError, PublishView, PublishedValue};
use crate::client::cluster::call::CallError;

const WRITTEN: &str = "written";
const DRY_RUN: &str = "dry_run";

/// Metrics of publishing. Each kind of error is logged once until a value is published.
#[derive(Debug)]
pub struct Publishes {
    results: IntCounterVec,
    last: Gauge,
    unrestricted: Gauge,
    heartbeat: Gauge,
    pub candidates: Candidates,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    view: PublishView,
    /// The kind of error that was logged since the last success.
    logged: Option<&'static str>,
}

impl Publishes {
    pub(super) fn new() -> prometheus::Result<Self> {
        let (name, help) =
            ("psi_agent_publishes_total", "Attempts to publish the score on the Node, by result.");
        let results = counters((name, help), "result", &[])?;
        let last = Gauge::new(
            "psi_agent_last_publish_timestamp_seconds",
            "Unix time of the value that this agent published last, in seconds, 0 if none.",
        )?;
        let unrestricted = Gauge::new(
            "psi_agent_writes_unrestricted",
            "Whether the API server let dry runs of the agent change a key of others or another Node (1) or not (0).",
        )?;
        let heartbeat = Gauge::new(
            "psi_agent_heartbeat_interval_seconds",
            "Time after which the agent renews an unchanged value on the Node, in seconds.",
        )?;
        let (candidates, state) = (Candidates::new()?, Mutex::default());
        Ok(Self { results, last, unrestricted, heartbeat, candidates, state })
    }

    pub(super) fn register_dry_run(&self, registry: &Registry) -> prometheus::Result<()> {
        self.results.with_label_values(&[DRY_RUN]);
        register(registry, &self.results)?;
        self.candidates.register(registry)
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        // The alert on failures compares them with the successes.
        self.results.with_label_values(&[WRITTEN]);
        register(registry, &self.results)?;
        for gauge in [&self.last, &self.unrestricted, &self.heartbeat] {
            register(registry, gauge)?;
        }
        self.candidates.register(registry)
    }

    pub fn set_heartbeat(&self, interval: Duration) {
        self.heartbeat.set(interval.as_secs_f64());
    }

    pub fn set_mode(&self, mode: &'static str) {
        locked(&self.state).view.mode = Some(mode);
    }

    pub fn set_level(&self, level: &'static str) {
        locked(&self.state).view.level = Some(level);
    }

    /// A dry run showed that no admission policy denies this write.
    pub fn unrestricted(&self, allowed: &impl Display) {
        self.unrestricted.set(1.0);
        tracing::warn!(
            "No admission policy restricts this agent: {allowed}; apply \
             daemonset/base/admission.yaml, with the name of this agent's account"
        );
    }

    /// Dry runs showed that admission policies deny writes that are not the agent's.
    pub fn restricted(&self) {
        if self.unrestricted.get() > 0.0 {
            tracing::info!("Admission policies restrict this agent again");
        }
        self.unrestricted.set(0.0);
    }

    pub(super) fn view(&self) -> PublishView {
        let candidate = self.candidates.view();
        PublishView { candidate, ..locked(&self.state).view.clone() }
    }

    #[allow(clippy::cast_precision_loss, reason = "a date in seconds is far below 2^52")]
    pub fn published(&self, value: PublishedValue) {
        self.results.with_label_values(&[WRITTEN]).inc();
        self.last.set((value.observed_at_ms / 1000) as f64);
        let mut state = locked(&self.state);
        state.view.last = Some(value);
        state.view.error = None;
        if state.logged.take().is_some() {
            tracing::info!("The score is published again");
        }
    }

    /// A value would have been published, but for the dry run.
    pub fn would_publish(&self, value: PublishedValue) {
        self.results.with_label_values(&[DRY_RUN]).inc();
        let mut state = locked(&self.state);
        state.view.last = Some(value);
        state.view.error = None;
    }

    /// Publishing failed at this time, milliseconds since the epoch.
    pub fn failed(&self, error: &CallError, at_ms: u64) {
        self.results.with_label_values(&[error.word()]).inc();
        // Other components write the Node too, so a conflict is usual; the next attempt follows at once.
        if *error == CallError::Conflict {
            return tracing::debug!(%error, "Writing the score again");
        }
        let mut state = locked(&self.state);
        state.view.error = Some(DatedError { message: error.to_string(), at_ms });
        if state.logged.replace(error.word()) != Some(error.word()) {
            tracing::warn!(%error, "Cannot publish the score; trying again, later each time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_until_a_value_is_published() {
        let publishes = Publishes::new().unwrap();
        assert_eq!(publishes.view(), PublishView::default());
        publishes.set_mode("on");
        publishes.failed(&CallError::Conflict, 1);
        assert_eq!(publishes.view().error, None, "a conflict is not an error");
        publishes.failed(&CallError::NotFound, 2);
        publishes.failed(&CallError::NotFound, 3);
        let error = DatedError { message: CallError::NotFound.to_string(), at_ms: 3 };
        let failing =
            PublishView { mode: Some("on"), error: Some(error), ..PublishView::default() };
        assert_eq!(publishes.view(), failing);
        let value = PublishedValue { score: 35, level: "high", observed_at_ms: 4 };
        publishes.published(value);
        let working = PublishView { mode: Some("on"), last: Some(value), ..PublishView::default() };
        assert_eq!(publishes.view(), working);
    }
}
