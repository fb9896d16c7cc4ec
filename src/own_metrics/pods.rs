//! Metrics and log messages of the list of pods: its errors, and how it matches the cgroups.

use std::fmt::Display;
use std::time::Instant;

use prometheus::{IntCounter, IntGauge, Result};

use super::group::{Group, signed};
use crate::agent_status::SharedStatus;
use crate::client::snapshot::DatedError;
use crate::error_log::{ErrorLog, FailureLog};
use crate::identity::matching::Matching;

#[derive(Debug)]
pub struct Pods {
    listed: IntGauge,
    cgroups_without_pod: IntGauge,
    rejected_names: IntGauge,
    errors: IntCounter,
    undecodable: IntCounter,
    skipped: ErrorLog,
    log: FailureLog,
    status: SharedStatus,
}

impl Pods {
    pub(super) fn new(group: Group<'_>, status: &SharedStatus) -> Result<Self> {
        Ok(Self {
            listed: group.gauge("psi_agent_pods", "Pods of this node in the latest list.")?,
            cgroups_without_pod: group.gauge(
                "psi_agent_cgroups_without_pod",
                "Cgroups without a listed pod, which have no series: pause containers and new pods.",
            )?,
            rejected_names: group.gauge(
                "psi_agent_rejected_pod_names",
                "Names in the list of pods that are malformed or too long to export.",
            )?,
            errors: group.counter(
                "psi_agent_pod_watch_errors_total",
                "Failures to list or watch pods, or to read them from a file.",
            )?,
            undecodable: group.counter(
                "psi_agent_undecodable_pods_total",
                "Pods in lists and changes from the API server that could not be decoded, and were skipped.",
            )?,
            skipped: ErrorLog::default(),
            log: FailureLog::default(),
            status: status.clone(),
        })
    }

    /// Sets how the pods match the cgroups, if there is a list.
    pub(super) fn observe(&self, matching: Option<Matching>) {
        let Some(matching) = matching else { return };
        self.listed.set(signed(matching.pods));
        self.cgroups_without_pod.set(signed(matching.cgroups_without_pod));
        self.rejected_names.set(signed(matching.rejected_names));
    }

    /// Records a pod that could not be decoded, and is skipped.
    pub fn skipped(&self, error: &dyn Display, now: Instant) {
        self.undecodable.inc();
        if let Some(suppressed) = self.skipped.suppressed_before(("undecodable pod", None), now) {
            tracing::warn!(%error, suppressed, "Cannot decode a pod, which is skipped");
        }
    }

    /// Records that the pods were listed or changed, which ends an earlier error.
    pub fn received(&self) {
        self.status.send_modify(|status| status.pods_error = None);
        if self.log.succeeded() {
            tracing::info!("Receiving pods again");
        }
    }

    /// Records that the pods could not be listed or watched at `at_ms`, milliseconds since the
    /// epoch. Logs the error once until [`Pods::received`].
    pub fn failed(&self, error: &dyn Display, at_ms: u64) {
        self.errors.inc();
        let dated = DatedError { message: error.to_string(), at_ms };
        self.status.send_modify(|status| status.pods_error = Some(dated));
        if self.log.failed("failed") {
            tracing::warn!(%error, "Cannot follow the pods; the latest list stays in use");
        }
    }
}
