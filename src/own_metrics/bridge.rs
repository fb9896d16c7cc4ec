//! The bridge's own metrics, and log messages about errors.

use std::fmt::Display;

use prometheus::{
    Encoder, GaugeVec, IntCounter, IntCounterVec, Opts, Registry, Result, TextEncoder,
};

use super::access::Certificates;
use super::group::Group;
use super::process::ProcessMetrics;
use crate::error_log::FailureLog;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Query,
    Watcher,
    Prioritize,
}

impl Form {
    pub const ALL: [Self; 3] = [Self::Query, Self::Watcher, Self::Prioritize];

    fn word(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Watcher => "watcher",
            Self::Prioritize => "prioritize",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    Refused,
    /// No Node has a known score.
    Unknown,
}

impl Outcome {
    pub const ALL: [Self; 3] = [Self::Answered, Self::Refused, Self::Unknown];

    fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug)]
pub struct BridgeMetrics {
    registry: Registry,
    nodes: GaugeVec,
    requests: IntCounterVec,
    watch_errors: IntCounter,
    watch_log: FailureLog,
    score_log: FailureLog,
    pub certificates: Certificates,
    process: ProcessMetrics,
}

impl BridgeMetrics {
    /// The metrics, with these values of the label `standing`. Those of TLS certificates are
    /// exported only where TLS is in use.
    pub fn new(standings: &[&'static str], uses_tls: bool) -> Result<Self> {
        let registry = Registry::new();
        let group = Group::new(&registry, true);
        let help = "Selected Nodes, by the state of their value.";
        let nodes = group.gauges("psi_agent_bridge_nodes", help, &["standing"])?;
        for standing in standings {
            nodes.with_label_values(&[standing]);
        }
        let requests =
            Opts::new("psi_agent_bridge_requests_total", "Requests, by form and result.");
        let requests = group.add(IntCounterVec::new(requests, &["form", "result"]))?;
        for form in Form::ALL {
            for outcome in Outcome::ALL {
                requests.with_label_values(&[form.word(), outcome.word()]);
            }
        }
        Ok(Self {
            nodes,
            requests,
            watch_errors: group.counter(
                "psi_agent_bridge_watch_errors_total",
                "Failures to list or watch Nodes.",
            )?,
            watch_log: FailureLog::default(),
            score_log: FailureLog::default(),
            certificates: Certificates::new(Group::new(&registry, uses_tls))?,
            process: ProcessMetrics::new(group)?,
            registry,
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "a cluster has fewer than 2^52 Nodes")]
    pub fn set_nodes(&self, standing: &str, count: usize) {
        self.nodes.with_label_values(&[standing]).set(count as f64);
    }

    /// Counts a request. If no Node has a known score, that is logged once until a Node has one:
    /// the descheduler logs only the status of the response.
    pub fn requested(&self, form: Form, outcome: Outcome) {
        self.requests.with_label_values(&[form.word(), outcome.word()]).inc();
        match (form, outcome) {
            // load-watcher's document can have no Nodes, so its client gets no error.
            (Form::Watcher, _) | (_, Outcome::Refused) => {}
            (Form::Query | Form::Prioritize, Outcome::Unknown) => {
                if self.score_log.failed(outcome.word()) {
                    tracing::warn!(
                        "No Node has a known score, so requests get no scores: agents have \
                         published no fresh value, or for less than half of --window; see \
                         `psi-agent nodes`"
                    );
                }
            }
            (Form::Query | Form::Prioritize, Outcome::Answered) => {
                if self.score_log.succeeded() {
                    tracing::info!("Scores of Nodes are known again");
                }
            }
        }
    }

    /// Records that Nodes were listed or changed, which ends an earlier error.
    pub fn nodes_received(&self) {
        if self.watch_log.succeeded() {
            tracing::info!("Receiving Nodes again");
        }
    }

    /// Records that the Nodes could not be listed or watched. Logs the error once until
    /// [`BridgeMetrics::nodes_received`].
    pub fn nodes_failed(&self, error: &dyn Display) {
        self.watch_errors.inc();
        if self.watch_log.failed("failed") {
            tracing::warn!(%error, "Cannot follow the Nodes; their last values hold until they are stale");
        }
    }

    /// The metrics in the text format.
    pub fn render(&self) -> Result<Vec<u8>> {
        self.process.update();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
