//! The bridge's own metrics, and log messages about errors.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::iter::once;

use http::StatusCode;
use parking_lot::Mutex;

use super::process::write_process;
use super::results::{CERTIFICATES, Results, certificate_read};
use crate::text_format::Number::Whole;
use crate::text_format::{FamiliesOf, families, write_families};

/// The protocols of requests, as the label `form` names them.
pub const QUERY: &str = "query";
pub const WATCHER: &str = "watcher";
pub const PRIORITIZE: &str = "prioritize";

const ANSWERED: &str = "answered";
const REFUSED: &str = "refused";
/// No Node has a known score.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Default)]
pub struct BridgeMetrics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Nodes by the state of their value.
    nodes: BTreeMap<&'static str, usize>,
    requests: BTreeMap<(&'static str, &'static str), u64>,
    watch: Results,
    /// Why the last request got no scores; `None` if it got some.
    unknown_because: Option<String>,
    certificates: Option<Results>,
}

static BRIDGE: &FamiliesOf<State> = families! {
    "psi_agent_bridge_nodes" = |it, lines| for (standing, count) in &it.nodes {
            lines.write(&[("standing", standing)], Whole(*count as u64));
        },
        "Selected Nodes, by the state of their value.";
    "psi_agent_bridge_requests_total" = |it, lines| for form in [QUERY, WATCHER, PRIORITIZE] {
            for result in [ANSWERED, REFUSED, UNKNOWN] {
                let count = it.requests.get(&(form, result)).copied().unwrap_or_default();
                lines.write(&[("form", form), ("result", result)], Whole(count));
            }
        },
        "Requests, by form and result.";
    "psi_agent_bridge_watch_errors_total" = |it, lines| lines.write(&[], Whole(it.watch.total())),
        "Failures to list or watch Nodes.";
};

impl BridgeMetrics {
    /// Counts a request that was answered, or an error with its status and reason. Each reason why there are no
    /// scores is logged once, until there are: the descheduler logs only the status.
    pub fn requested(&self, form: &'static str, error: Option<&(StatusCode, String)>) {
        let mut state = self.0.lock();
        let result = match error {
            None => ANSWERED,
            Some((StatusCode::SERVICE_UNAVAILABLE, _)) => UNKNOWN,
            Some(_) => REFUSED,
        };
        *state.requests.entry((form, result)).or_default() += 1;
        let reason = error.map(|(_, reason)| reason.clone());
        // load-watcher's document can have no Nodes, so its requests do not show whether there are scores.
        if form == WATCHER || result == REFUSED || reason == state.unknown_because {
            return;
        }
        match &reason {
            Some(error) => tracing::warn!(%error, "Requests get no scores"),
            None => tracing::info!("Scores of Nodes are known again"),
        }
        state.unknown_because = reason;
    }

    /// Records that Nodes were listed or changed, which ends an earlier error.
    pub fn nodes_received(&self) {
        self.0.lock().watch.succeeded("Receiving Nodes again");
    }

    /// Records that the Nodes could not be listed or watched. Logs the error once until
    /// [`BridgeMetrics::nodes_received`].
    pub fn nodes_failed(&self, error: &dyn Display) {
        let message = "Cannot follow the Nodes; their last values hold until they are stale";
        self.0.lock().watch.failed("failed", error, message);
    }

    /// Records that the certificate was read. `Ok(true)` means that it is new.
    pub fn certificate_read(&self, outcome: Result<bool, impl Display>) {
        certificate_read(&mut self.0.lock().certificates, outcome);
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
