//! Metrics and log messages about the VM to move first.

use std::sync::Mutex;

use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};
use serde::Serialize;

use super::registry::{counters, locked, register};
use crate::client::cluster::call::CallError;

const LABELS: [&str; 3] = ["namespace", "name", "reason"];
const WRITTEN: &str = "written";

/// The VM to move first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CandidateView {
    pub namespace: String,
    /// Name of the VM.
    pub name: String,
}

/// Metrics of the VM to move first, or of the reason why there is none.
#[derive(Debug)]
pub struct Candidates {
    info: GaugeVec,
    writes: IntCounterVec,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    named: Option<CandidateView>,
    reason: &'static str,
    /// The kind of error that was logged since the last success.
    logged: Option<&'static str>,
}

impl Candidates {
    pub(super) fn new() -> prometheus::Result<Self> {
        let help = "VM to move first as the labels namespace and name, or without them the reason why \
                    there is none; always 1.";
        let info = GaugeVec::new(Opts::new("psi_agent_candidate_info", help), &LABELS)?;
        let help = "Attempts to set or remove the label of the VM to move first, by result.";
        let writes = counters(("psi_agent_candidate_writes_total", help), "result", &[])?;
        let candidates = Self { info, writes, state: Mutex::default() };
        candidates.named(None, "no_score");
        Ok(candidates)
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        register(registry, &self.info)
    }

    pub(super) fn register_writes(&self, registry: &Registry) -> prometheus::Result<()> {
        self.writes.with_label_values(&[WRITTEN]);
        register(registry, &self.writes)
    }

    /// Sets the VM to move first and the reason for it, or `None` and the reason why there is none.
    pub fn named(&self, named: Option<CandidateView>, reason: &'static str) {
        let mut state = locked(&self.state);
        if state.reason == reason && state.named == named {
            return;
        }
        self.info.reset();
        let (namespace, name) =
            named.as_ref().map_or(("", ""), |vm| (vm.namespace.as_str(), vm.name.as_str()));
        self.info.with_label_values(&[namespace, name, reason]).set(1.0);
        (state.named, state.reason) = (named, reason);
    }

    pub(super) fn view(&self) -> Option<CandidateView> {
        locked(&self.state).named.clone()
    }

    /// Records that the label was set or removed.
    pub fn written(&self) {
        self.writes.with_label_values(&[WRITTEN]).inc();
        locked(&self.state).logged = None;
    }

    pub fn failed(&self, error: &CallError) {
        self.writes.with_label_values(&[error.word()]).inc();
        if locked(&self.state).logged.replace(error.word()) != Some(error.word()) {
            tracing::warn!(
                %error,
                "Cannot label the pod of the VM to move first; trying again every minute: see \
                 daemonset/components/candidate for the rights"
            );
        }
    }
}
