//! The bridge's own metrics, and log messages about errors.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use super::access::Certificates;
use super::process::{ProcessMetrics, register_build_info};
use super::registry::{registered, signed};

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
pub struct BridgeHealth {
    registry: Registry,
    nodes: IntGaugeVec,
    requests: IntCounterVec,
    watch_errors: IntCounter,
    is_watch_failing: AtomicBool,
    is_no_node_known: AtomicBool,
    pub certificates: Certificates,
    process: ProcessMetrics,
}

impl BridgeHealth {
    /// Registers the metrics, with these values of the label `standing`.
    pub fn new(standings: &[&'static str]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        register_build_info(&registry)?;
        let nodes = IntGaugeVec::new(
            Opts::new("psi_agent_bridge_nodes", "Selected Nodes, by the state of their value."),
            &["standing"],
        )?;
        for standing in standings {
            nodes.with_label_values(&[standing]);
        }
        let requests = IntCounterVec::new(
            Opts::new("psi_agent_bridge_requests_total", "Requests, by form and result."),
            &["form", "result"],
        )?;
        for form in Form::ALL {
            for outcome in Outcome::ALL {
                requests.with_label_values(&[form.word(), outcome.word()]);
            }
        }
        let watch_errors = IntCounter::new(
            "psi_agent_bridge_watch_errors_total",
            "Failures to list or watch Nodes.",
        )?;
        Ok(Self {
            nodes: registered(&registry, nodes)?,
            requests: registered(&registry, requests)?,
            watch_errors: registered(&registry, watch_errors)?,
            is_watch_failing: AtomicBool::new(false),
            is_no_node_known: AtomicBool::new(false),
            certificates: Certificates::new()?,
            process: ProcessMetrics::new(&registry)?,
            registry,
        })
    }

    /// Exports the metrics of TLS certificates, which exist only where TLS is in use.
    pub fn export_certificates(&self) -> prometheus::Result<()> {
        self.certificates.register(&self.registry)
    }

    pub fn set_nodes(&self, standing: &str, count: usize) {
        self.nodes.with_label_values(&[standing]).set(signed(count));
    }

    /// Counts a request. If no Node has a known score, that is logged once until a Node has one:
    /// the descheduler logs only the status of the response.
    pub fn requested(&self, form: Form, outcome: Outcome) {
        self.requests.with_label_values(&[form.word(), outcome.word()]).inc();
        match (form, outcome) {
            // load-watcher's document can have no Nodes, so its client gets no error.
            (Form::Watcher, _) | (_, Outcome::Refused) => {}
            (Form::Query | Form::Prioritize, Outcome::Unknown) => {
                if !self.is_no_node_known.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "No Node has a known score, so requests get no scores: agents have \
                         published no fresh value, or for less than half of --window; see \
                         `psi-agent nodes`"
                    );
                }
            }
            (Form::Query | Form::Prioritize, Outcome::Answered) => {
                if self.is_no_node_known.swap(false, Ordering::Relaxed) {
                    tracing::info!("Scores of Nodes are known again");
                }
            }
        }
    }

    /// Records that Nodes were listed or changed, which ends an earlier error.
    pub fn nodes_received(&self) {
        if self.is_watch_failing.swap(false, Ordering::Relaxed) {
            tracing::info!("Receiving Nodes again");
        }
    }

    /// Records that the Nodes could not be listed or watched. Logs the error once until
    /// [`BridgeHealth::nodes_received`].
    pub fn nodes_failed(&self, error: &dyn Display) {
        self.watch_errors.inc();
        if !self.is_watch_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "Cannot follow the Nodes; their last values hold until they are stale");
        }
    }

    /// The metrics in the text format.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        self.process.update();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
