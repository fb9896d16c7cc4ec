//! Metrics and log messages about the VM to move first.

use prometheus::{GaugeVec, IntCounterVec, Result};

use super::group::Group;
use crate::agent_status::SharedStatus;
use crate::client::cluster::call::CallError;
use crate::client::snapshot::CandidateName;
use crate::error_log::FailureLog;

const LABELS: [&str; 3] = ["namespace", "name", "reason"];
const WRITTEN: &str = "written";

/// Metrics of the VM to move first, or of the reason why there is none.
#[derive(Debug)]
pub struct Candidates {
    info: GaugeVec,
    writes: IntCounterVec,
    log: FailureLog,
    status: SharedStatus,
}

impl Candidates {
    /// `writes` is the group of agents that label the pod of that VM.
    pub(super) fn new(group: Group<'_>, writes: Group<'_>, status: &SharedStatus) -> Result<Self> {
        let help = "VM to move first as the labels namespace and name, or without them the reason why \
                    there is none; always 1.";
        let info = group.gauges("psi_agent_candidate_info", help, &LABELS)?;
        let help = "Attempts to set or remove the label of the VM to move first, by result.";
        let name = "psi_agent_candidate_writes_total";
        let writes = writes.counters(name, help, "result", &[WRITTEN])?;
        let (log, status) = (FailureLog::default(), status.clone());
        let candidates = Self { info, writes, log, status };
        candidates.named(None, "no_score");
        Ok(candidates)
    }

    /// Sets the VM to move first and the reason for it, or `None` and the reason why there is none.
    pub fn named(&self, vm: Option<CandidateName>, reason: &'static str) {
        self.info.reset();
        let (namespace, name) =
            vm.as_ref().map_or(("", ""), |vm| (vm.namespace.as_str(), vm.name.as_str()));
        self.info.with_label_values(&[namespace, name, reason]).set(1.0);
        self.status.send_modify(|status| status.publish.candidate = vm);
    }

    /// Records that the label was set or removed.
    pub fn written(&self) {
        self.writes.with_label_values(&[WRITTEN]).inc();
        self.log.succeeded();
    }

    pub fn failed(&self, error: &CallError) {
        self.writes.with_label_values(&[error.into_str()]).inc();
        if self.log.failed(error.into_str()) {
            tracing::warn!(
                %error,
                "Cannot label the pod of the VM to move first; trying again every minute: see \
                 daemonset/components/candidate for the rights"
            );
        }
    }
}
