//! Metrics and log messages of publishing the score on the Node.

use std::fmt::Display;
use std::time::Duration;

use prometheus::{Gauge, IntCounterVec, IntGauge, Registry, Result};

use super::candidates::Candidates;
use super::group::{Feature, Group};
use crate::agent_status::SharedStatus;
use crate::client::cluster::call::CallError;
use crate::client::snapshot::{DatedError, PublishStatus, PublishedValue};
use crate::error_log::FailureLog;

const WRITTEN: &str = "written";
const DRY_RUN: &str = "dry_run";

/// Metrics of publishing. Each kind of error is logged once until a value is published.
#[derive(Debug)]
pub struct Publishes {
    results: IntCounterVec,
    last: IntGauge,
    unrestricted: IntGauge,
    heartbeat: Gauge,
    pub candidates: Candidates,
    log: FailureLog,
    status: SharedStatus,
}

impl Publishes {
    pub(super) fn new(
        registry: &Registry,
        features: &[Feature],
        status: &SharedStatus,
    ) -> Result<Self> {
        let uses = |feature| features.contains(&feature);
        let either = Group::new(registry, uses(Feature::DryRun) || uses(Feature::Publishing));
        let publishing = Group::new(registry, uses(Feature::Publishing));
        let candidate = Group::new(registry, uses(Feature::Candidate));
        // The alert on failures compares them with the successes.
        let first = if uses(Feature::DryRun) { DRY_RUN } else { WRITTEN };
        Ok(Self {
            results: either.counters(
                "psi_agent_publishes_total",
                "Attempts to publish the score on the Node, by result.",
                "result",
                &[first],
            )?,
            last: publishing.gauge(
                "psi_agent_last_publish_timestamp_seconds",
                "Unix time of the value that this agent published last, in seconds, 0 if none.",
            )?,
            unrestricted: publishing.gauge(
                "psi_agent_writes_unrestricted",
                "Whether the API server let dry runs of the agent change a key of others or another Node (1) or not (0).",
            )?,
            heartbeat: publishing.add(Gauge::new(
                "psi_agent_heartbeat_interval_seconds",
                "Time after which the agent renews an unchanged value on the Node, in seconds.",
            ))?,
            candidates: Candidates::new(either, candidate, status)?,
            log: FailureLog::default(),
            status: status.clone(),
        })
    }

    fn update(&self, change: impl FnOnce(&mut PublishStatus)) {
        self.status.send_modify(|status| change(&mut status.publish));
    }

    pub fn set_heartbeat(&self, interval: Duration) {
        self.heartbeat.set(interval.as_secs_f64());
    }

    pub fn set_mode(&self, mode: &'static str) {
        self.update(|publish| publish.mode = Some(mode.into()));
    }

    pub fn set_level(&self, level: &'static str) {
        self.update(|publish| publish.level = Some(level.into()));
    }

    /// A dry run showed that no admission policy denies this write.
    pub fn unrestricted(&self, allowed: &impl Display) {
        self.unrestricted.set(1);
        tracing::warn!(
            "No admission policy restricts this agent: {allowed}; apply \
             daemonset/base/admission.yaml, with the name of this agent's account"
        );
    }

    /// Dry runs showed that admission policies deny writes that are not the agent's.
    pub fn restricted(&self) {
        if self.unrestricted.get() > 0 {
            tracing::info!("Admission policies restrict this agent again");
        }
        self.unrestricted.set(0);
    }

    pub fn published(&self, value: PublishedValue) {
        self.last.set(i64::try_from(value.observed_at_ms / 1000).unwrap_or(i64::MAX));
        self.succeeded(WRITTEN, value);
        if self.log.succeeded() {
            tracing::info!("The score is published again");
        }
    }

    /// A value would have been published, but for the dry run.
    pub fn would_publish(&self, value: PublishedValue) {
        self.succeeded(DRY_RUN, value);
    }

    fn succeeded(&self, result: &str, value: PublishedValue) {
        self.results.with_label_values(&[result]).inc();
        self.update(|publish| (publish.last, publish.error) = (Some(value), None));
    }

    /// Publishing failed at this time, milliseconds since the epoch.
    pub fn failed(&self, error: &CallError, at_ms: u64) {
        self.results.with_label_values(&[error.into_str()]).inc();
        // Other components write the Node too, so a conflict is usual; the next attempt follows at once.
        if *error == CallError::Conflict {
            return tracing::debug!(%error, "Writing the score again");
        }
        let dated = DatedError { message: error.to_string(), at_ms };
        self.update(|publish| publish.error = Some(dated));
        if self.log.failed(error.into_str()) {
            tracing::warn!(%error, "Cannot publish the score; trying again, later each time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_status::shared;

    #[test]
    fn an_error_is_shown_until_a_value_is_published() {
        let status = shared();
        let publishes = Publishes::new(&Registry::new(), &[], &status).unwrap();
        let publish = || status.borrow().publish.clone();
        assert_eq!(publish(), PublishStatus::default());
        publishes.set_mode("on");
        publishes.failed(&CallError::Conflict, 1);
        assert_eq!(publish().error, None, "a conflict is not an error");
        publishes.failed(&CallError::NotFound, 2);
        publishes.failed(&CallError::NotFound, 3);
        let error = DatedError { message: CallError::NotFound.to_string(), at_ms: 3 };
        let failing = PublishStatus {
            mode: Some("on".into()),
            error: Some(error),
            ..PublishStatus::default()
        };
        assert_eq!(publish(), failing);
        let value = PublishedValue { score: 35, observed_at_ms: 4 };
        publishes.published(value);
        let working = PublishStatus {
            mode: Some("on".into()),
            last: Some(value),
            ..PublishStatus::default()
        };
        assert_eq!(publish(), working);
    }
}
