//! The bridge's own metrics, and log messages about errors.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::iter::once;

use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};

use super::certificates::{self, CERTIFICATES};
use super::process::write_process;
use super::results::Results;
use crate::text_format::Number::Whole;
use crate::text_format::{FamiliesOf, families, write_families};

/// The protocol of a request; a value of the label `form`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Form {
    Query,
    Watcher,
    Prioritize,
}

/// A value of the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Outcome {
    Answered,
    Refused,
    /// No Node has a known score.
    Unknown,
}

#[derive(Debug, Default)]
pub struct BridgeMetrics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Nodes by the state of their value.
    nodes: BTreeMap<&'static str, usize>,
    requests: BTreeMap<(Form, Outcome), u64>,
    watch: Results,
    lacks_scores: bool,
    certificates: Option<Results>,
}

static BRIDGE: &FamiliesOf<State> = families! {
    "psi_agent_bridge_nodes" = |it, lines| for (standing, count) in &it.nodes {
            lines.write(&[("standing", standing)], Whole(*count as u64));
        },
        "Selected Nodes, by the state of their value.";
    "psi_agent_bridge_requests_total" = |it, lines| for form in Form::VARIANTS {
            for outcome in Outcome::VARIANTS {
                let count = it.requests.get(&(*form, *outcome)).copied().unwrap_or_default();
                let labels = [("form", form.into_str()), ("result", outcome.into_str())];
                lines.write(&labels, Whole(count));
            }
        },
        "Requests, by form and result.";
    "psi_agent_bridge_watch_errors_total" = |it, lines| lines.write(&[], Whole(it.watch.total())),
        "Failures to list or watch Nodes.";
};

impl BridgeMetrics {
    /// Counts a request. If no Node has a known score, that is logged once until a Node has one:
    /// the descheduler logs only the status of the response.
    pub fn requested(&self, form: Form, outcome: Outcome) {
        let mut state = self.0.lock();
        *state.requests.entry((form, outcome)).or_default() += 1;
        // load-watcher's document can have no Nodes, so its client gets no error.
        if form == Form::Watcher || outcome == Outcome::Refused {
            return;
        }
        let lacks_scores = outcome == Outcome::Unknown;
        if std::mem::replace(&mut state.lacks_scores, lacks_scores) == lacks_scores {
            return;
        }
        if lacks_scores {
            tracing::warn!(
                "No Node has a known score, so requests get no scores: agents have published no \
                 fresh value, or for less than half of --window; see `psi-agent nodes`"
            );
        } else {
            tracing::info!("Scores of Nodes are known again");
        }
    }

    /// Records that Nodes were listed or changed, which ends an earlier error.
    pub fn nodes_received(&self) {
        if self.0.lock().watch.succeeded() {
            tracing::info!("Receiving Nodes again");
        }
    }

    /// Records that the Nodes could not be listed or watched. Logs the error once until
    /// [`BridgeMetrics::nodes_received`].
    pub fn nodes_failed(&self, error: &dyn Display) {
        if self.0.lock().watch.failed("failed") {
            tracing::warn!(%error, "Cannot follow the Nodes; their last values hold until they are stale");
        }
    }

    /// Records that the certificate was read. `Ok(true)` means that it is new.
    pub fn certificate_read(&self, outcome: Result<bool, impl Display>) {
        certificates::record(&mut self.0.lock().certificates, outcome);
    }

    /// The metrics in the text format, with the number of Nodes for each state of their value.
    pub fn render(&self, nodes: BTreeMap<&'static str, usize>) -> Vec<u8> {
        let (mut chunks, mut state) = (Vec::new(), self.0.lock());
        state.nodes = nodes;
        write_process(&mut chunks);
        write_families(&mut chunks, BRIDGE, once(&*state));
        write_families(&mut chunks, CERTIFICATES, state.certificates.iter());
        chunks.concat()
    }
}
