//! The bridge's view of itself: what it knows of Nodes, who asks it, what goes wrong, what it costs.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use super::doors::Certificates;
use super::{OwnProcess, ProcessMetrics, register_build_info, registered, signed};

/// In which form the bridge is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As a Prometheus.
    Query,
    /// As a load-watcher.
    Watcher,
    /// As a scheduler's extender.
    Prioritize,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Query, Self::Watcher, Self::Prioritize];

    fn word(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Watcher => "watcher",
            Self::Prioritize => "prioritize",
        }
    }
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answered,
    /// It asked for something that is not there to be had.
    Refused,
    /// No Node is known.
    Unknown,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Answered, Self::Refused, Self::Unknown];

    fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// The bridge's own metrics.
#[derive(Debug)]
pub struct BridgeHealth {
    registry: Registry,
    nodes: IntGaugeVec,
    requests: IntCounterVec,
    watch_errors: IntCounter,
    watch_in_trouble: AtomicBool,
    nobody_known: AtomicBool,
    certificates: Certificates,
    process: ProcessMetrics,
}

impl BridgeHealth {
    /// Registers all of them. Nodes are counted by these standings.
    ///
    /// # Errors
    /// Only when two of them had one name.
    pub fn new(standings: &[&'static str]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        register_build_info(&registry)?;
        let nodes = IntGaugeVec::new(
            Opts::new(
                "psi_agent_bridge_nodes",
                "Nodes that were selected, by what is known of them.",
            ),
            &["standing"],
        )?;
        for standing in standings {
            nodes.with_label_values(&[standing]);
        }
        let requests = IntCounterVec::new(
            Opts::new(
                "psi_agent_bridge_requests_total",
                "Requests, by their form and what came of them.",
            ),
            &["form", "result"],
        )?;
        for form in Form::ALL {
            for outcome in Outcome::ALL {
                requests.with_label_values(&[form.word(), outcome.word()]);
            }
        }
        let watch_errors = IntCounter::new(
            "psi_agent_bridge_watch_errors_total",
            "Times that the API server did not tell of Nodes.",
        )?;
        Ok(Self {
            nodes: registered(&registry, nodes)?,
            requests: registered(&registry, requests)?,
            watch_errors: registered(&registry, watch_errors)?,
            watch_in_trouble: AtomicBool::new(false),
            nobody_known: AtomicBool::new(false),
            certificates: Certificates::new(&registry)?,
            process: ProcessMetrics::new(&registry)?,
            registry,
        })
    }

    /// So many Nodes have this standing now.
    pub fn nodes(&self, standing: &str, count: usize) {
        self.nodes.with_label_values(&[standing]).set(signed(count));
    }

    /// A request came to this: counted each time. That nobody is known is said once until somebody
    /// is, since the descheduler's log has the status alone.
    pub fn asked(&self, form: Form, outcome: Outcome) {
        self.requests.with_label_values(&[form.word(), outcome.word()]).inc();
        match (form, outcome) {
            // load-watcher's document has an answer to that, too.
            (Form::Watcher, _) | (_, Outcome::Refused) => {}
            (Form::Query | Form::Prioritize, Outcome::Unknown) => {
                if !self.nobody_known.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "No Node is known, so nobody is told a score: agents have written nothing \
                         that is fresh, or not for half of --window yet; see `psi-agent nodes`"
                    );
                }
            }
            (Form::Query | Form::Prioritize, Outcome::Answered) => {
                if self.nobody_known.swap(false, Ordering::Relaxed) {
                    tracing::info!("Nodes are known again");
                }
            }
        }
    }

    /// The Nodes were told: trouble is over.
    pub fn nodes_told(&self) {
        if self.watch_in_trouble.swap(false, Ordering::Relaxed) {
            tracing::info!("The Nodes are told again");
        }
    }

    /// The Nodes were not told: counted each time, said once until it is over.
    pub fn nodes_not_told(&self, error: &dyn Display) {
        self.watch_errors.inc();
        if !self.watch_in_trouble.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "Cannot follow the Nodes; what was told before holds until it is stale");
        }
    }

    /// The certificate's files read; perhaps what they say is new.
    pub fn certificate_reads(&self, is_new: bool) {
        self.certificates.read(is_new);
    }

    /// They do not: counted each time, said once until they do.
    pub fn certificate_does_not_read(&self, error: &dyn Display) {
        self.certificates.do_not_read(error);
    }

    /// All of them as text.
    ///
    /// # Errors
    /// Only when a metric has no valid name.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        if let Ok(process) = OwnProcess::read() {
            self.process.set(&process);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
