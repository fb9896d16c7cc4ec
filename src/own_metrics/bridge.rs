//! The bridge's own metrics, and log messages about errors.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use strum::VariantArray;

use super::certificates::{self, CERTIFICATES, certificate_reads};
use super::process::write_process;
use super::results::Results;
use crate::text_format::Number::Whole;
use crate::text_format::{FamiliesOf, families, write_families};

/// The protocol of a request; a value of the label `form`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Form {
    Query,
    Watcher,
    Prioritize,
}

/// A value of the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Outcome {
    Answered,
    Refused,
    /// No Node has a known score.
    Unknown,
}

#[derive(Debug)]
pub struct BridgeMetrics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Nodes by the state of their value.
    nodes: BTreeMap<&'static str, usize>,
    /// Requests by form and result.
    requests: BTreeMap<(&'static str, &'static str), u64>,
    watch: Results,
    lacks_scores: bool,
    certificates: Results,
}

static BRIDGE: &FamiliesOf<State> = families! {
    "psi_agent_bridge_nodes" = |it, lines| for (standing, count) in &it.nodes {
            lines.write(&[("standing", standing)], Whole(*count as u64));
        },
        "Selected Nodes, by the state of their value.";
    "psi_agent_bridge_requests_total" = |it, lines| for ((form, result), count) in &it.requests {
            lines.write(&[("form", form), ("result", result)], Whole(*count));
        },
        "Requests, by form and result.";
    "psi_agent_bridge_watch_errors_total" = |it, lines| lines.write(&[], Whole(it.watch.total())),
        "Failures to list or watch Nodes.";
};

impl BridgeMetrics {
    /// The metrics, with these values of the label `standing`. Those of TLS certificates are
    /// exported only where TLS is in use.
    pub fn new(standings: &[&'static str], uses_tls: bool) -> Self {
        let of_form = |form: &'static Form| {
            let outcomes = Outcome::VARIANTS.iter();
            outcomes.map(|outcome| ((form.into_str(), outcome.into_str()), 0))
        };
        Self(Mutex::new(State {
            nodes: standings.iter().map(|&standing| (standing, 0)).collect(),
            requests: Form::VARIANTS.iter().flat_map(of_form).collect(),
            certificates: certificate_reads(uses_tls),
            ..State::default()
        }))
    }

    /// The state, which is valid even after a panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_nodes(&self, standing: &'static str, count: usize) {
        self.state().nodes.insert(standing, count);
    }

    /// Counts a request. If no Node has a known score, that is logged once until a Node has one:
    /// the descheduler logs only the status of the response.
    pub fn requested(&self, form: Form, outcome: Outcome) {
        let mut state = self.state();
        *state.requests.entry((form.into_str(), outcome.into_str())).or_default() += 1;
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
        if self.state().watch.succeeded() {
            tracing::info!("Receiving Nodes again");
        }
    }

    /// Records that the Nodes could not be listed or watched. Logs the error once until
    /// [`BridgeMetrics::nodes_received`].
    pub fn nodes_failed(&self, error: &dyn Display) {
        if self.state().watch.failed("failed") {
            tracing::warn!(%error, "Cannot follow the Nodes; their last values hold until they are stale");
        }
    }

    /// Records that the certificate was read again. `Ok(true)` means that it is new.
    pub fn certificate_read(&self, outcome: Result<bool, impl Display>) {
        certificates::record(&mut self.state().certificates, outcome);
    }

    /// The metrics in the text format.
    pub fn render(&self) -> Vec<u8> {
        let (mut chunks, state) = (Vec::new(), self.state());
        write_process(&mut chunks);
        write_families(&mut chunks, BRIDGE, slice::from_ref(&*state));
        write_families(&mut chunks, CERTIFICATES, slice::from_ref(&state.certificates));
        chunks.concat()
    }
}
