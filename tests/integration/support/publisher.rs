//! The publisher of an agent, as the command line configures it, with the metrics and the log that it
//! writes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use psi_agent::client::cluster::OwnNode;
use psi_agent::config::Command;
use psi_agent::contract::NodePressure;
use psi_agent::own_metrics::OwnMetrics;
use psi_agent::publish::publisher::Publisher;
use psi_agent::relief::Assessment;
use tracing::Dispatch;
use tracing::instrument::WithSubscriber;

use super::exposition::parse;

const LABEL_DENIED: &str = "Published without the label of the headroom";

/// What happens without a failure.
const SUCCESSES: [&str; 4] = ["adopted", "written", "dry_run", "pod written"];

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A publisher, and what it did so far.
pub(crate) struct ObservedPublisher {
    publisher: Publisher,
    pub(crate) metrics: Arc<OwnMetrics>,
    log: Log,
    dispatch: Dispatch,
    /// What happened so far, tick by tick: `adopted`, `label denied`, the result of each attempt to publish
    /// and, after `pod `, that of each attempt to change the label of a pod.
    pub(crate) outcomes: Vec<String>,
    /// How often each outcome was counted so far.
    counts: BTreeMap<String, u64>,
}

/// The publisher of `psi-agent run` with these flags on this Node.
pub(crate) fn publisher(node: OwnNode, flags: &str, random: fn() -> f64) -> ObservedPublisher {
    let line = format!("psi-agent --kubeconfig unused --node-name {} {flags}", node.name);
    let (command, _) = Command::parse(line.split_whitespace().map(Into::into)).unwrap();
    let Command::Run(config) = command else { panic!("{line}") };
    let metrics = Arc::new(OwnMetrics::default());
    let (flags, mode) = (&config.publishing, config.publishing.publish.mode(&config.source));
    metrics.set_publishing(mode.into_str(), flags.heartbeat_interval, flags.mark_candidate);
    let log = Log::default();
    let writer = log.clone();
    let format = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
    let dispatch = Dispatch::new(format.with_writer(move || writer.clone()).finish());
    let publisher = Publisher::new(&config, Some(node), Arc::clone(&metrics), random);
    let (outcomes, counts) = (Vec::new(), BTreeMap::new());
    ObservedPublisher { publisher, metrics, log, dispatch, outcomes, counts }
}

impl ObservedPublisher {
    /// Takes what a tick gave. Returns the value that it adopts.
    pub(crate) async fn take(&mut self, assessment: &Assessment) -> Option<NodePressure> {
        let taken = self.publisher.take(assessment).with_subscriber(self.dispatch.clone());
        let adopted = taken.await;
        self.outcomes.extend(adopted.map(|_| "adopted".to_owned()));
        let counts = self.count();
        for (outcome, count) in &counts {
            let earlier = self.counts.get(outcome).copied().unwrap_or_default();
            self.outcomes.extend((earlier..*count).map(|_| outcome.clone()));
        }
        self.counts = counts;
        adopted
    }

    pub(crate) fn outcomes(&self) -> Vec<&str> {
        self.outcomes.iter().map(String::as_str).collect()
    }

    /// The outcomes that are failures.
    pub(crate) fn failures(&self) -> Vec<&str> {
        let mut failures = self.outcomes();
        failures.retain(|outcome| !SUCCESSES.contains(outcome));
        failures
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8(self.log.0.lock().unwrap().clone()).unwrap()
    }

    /// How often each outcome was counted or, where no metric counts it, logged: all but `adopted`.
    #[allow(clippy::cast_possible_truncation, reason = "counters are whole numbers")]
    fn count(&self) -> BTreeMap<String, u64> {
        let mut chunks = Vec::new();
        self.metrics.write(&mut chunks);
        let series = parse(&String::from_utf8(chunks.concat()).unwrap());
        let counted = series.into_iter().filter_map(|series| {
            let prefix = match series.name.as_str() {
                "psi_agent_publishes_total" => "",
                "psi_agent_candidate_writes_total" => "pod ",
                _ => return None,
            };
            Some((format!("{prefix}{}", series.labels["result"]), series.value as u64))
        });
        let denied = self.log().matches(LABEL_DENIED).count();
        counted.chain([("label denied".to_owned(), denied as u64)]).collect()
    }
}
