//! The publisher as configured, with its log lines.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::client::cluster::call::CallError;
use crate::client::cluster::{OwnNode, PodName};
use crate::client::snapshot::{CandidateName, PublishedValue};
use crate::clock;
use crate::config::{Publish, RunConfig};
use crate::contract::NodePressure;
use crate::identity::Workload;
use crate::own_metrics::OwnMetrics;
use crate::publish::PublishedScore;
use crate::publish::plan::WriteReason;
use crate::publish::publisher::{Publisher, Report};
use crate::relief::Assessment;

/// Time between two checks of the agent's restrictions, until they hold.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The same afterwards, on average: each check is several requests.
const LATER_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Starts to publish the scores on `node`, unless publishing is off. Without a Node, values are
/// only logged.
pub(super) fn start(
    config: &RunConfig,
    node: Option<OwnNode>,
    mut assessments: watch::Receiver<Option<Arc<Assessment>>>,
    adopt: oneshot::Sender<NodePressure>,
    metrics: &Arc<OwnMetrics>,
) {
    let (flags, mode) = (&config.publishing, config.publishing.publish.mode(&config.source));
    metrics.set_publishing(mode.into_str(), flags.heartbeat_interval, flags.mark_candidate);
    if mode == Publish::Off {
        return;
    }
    if mode == Publish::On
        && let Some(node) = &node
    {
        tokio::spawn(check_restriction(node.clone(), Arc::clone(metrics)));
    }
    let mut publisher = Publisher::new(config, node, random);
    let (metrics, mut adopt) = (Arc::clone(metrics), Some(adopt));
    tokio::spawn(async move {
        while assessments.changed().await.is_ok() {
            let Some(assessment) = assessments.borrow_and_update().clone() else { continue };
            let on_report = |report: &Report<'_>| {
                if let Report::Adopted(found) = report
                    && let Some(adopt) = adopt.take()
                {
                    // This fails only while the agent stops, and has dropped the receiver.
                    let _ = adopt.send(**found);
                }
                record(&metrics, mode, report);
            };
            publisher.take(&assessment, on_report).await;
        }
    });
}

/// Checks that admission policies restrict the agent's writes. Policies that were applied together with the agent take
/// effect seconds later, so only the second finding in a row is reported.
async fn check_restriction(node: OwnNode, metrics: Arc<OwnMetrics>) {
    let mut findings = 0_u32;
    loop {
        let mut wait = CHECK_INTERVAL;
        match node.foreign_write().await {
            Ok(None) => {
                metrics.restricted();
                (findings, wait) = (0, LATER_INTERVAL.mul_f64(0.5 + random()));
            }
            Ok(Some(allowed)) => {
                findings = findings.saturating_add(1);
                if findings == 2 {
                    metrics.unrestricted(&allowed);
                }
            }
            // Some admission webhooks refuse dry runs.
            Err(error @ CallError::Refused { .. }) => {
                tracing::info!(%error, "Cannot check whether the agent's writes are restricted");
                wait = LATER_INTERVAL;
            }
            Err(error) => {
                tracing::debug!(%error, "Cannot check the restrictions of the agent's writes")
            }
        }
        tokio::time::sleep(wait).await;
    }
}

fn record(metrics: &OwnMetrics, mode: Publish, report: &Report<'_>) {
    match report {
        Report::Adopted(found) => {
            let score = found.score;
            metrics.publishing_recovered();
            tracing::info!(score, "Continuing from the value that an earlier agent published");
        }
        Report::Written(published, reason) => {
            metrics.published(value(published));
            log(mode, published, *reason);
        }
        Report::Level(level) => metrics.set_level(level.word()),
        Report::LabelDenied(error) => tracing::warn!(
            %error,
            "Published without the label of the headroom, which the API server denies; apply the \
             admission policies of this release"
        ),
        Report::Failed(error) => metrics.publish_failed(error, clock::now().unix_ms),
        Report::Candidate(Ok(workload)) => {
            metrics.set_candidate(candidate(workload), "named");
        }
        Report::Candidate(Err(reason)) => metrics.set_candidate(None, reason.into_str()),
        Report::Marked(Ok(mark)) => {
            metrics.candidate_written();
            let PodName { namespace, name, .. } = &mark.pod;
            let done = if mark.is_set { "Labelled" } else { "Removed the label of" };
            tracing::info!(%namespace, pod = %name, "{done} the pod of the VM to move first");
        }
        Report::Marked(Err(error)) => metrics.candidate_failed(error),
    }
}

fn candidate(workload: &Workload) -> Option<CandidateName> {
    let vm = workload.vm.as_ref()?;
    Some(CandidateName { namespace: workload.namespace.to_string(), name: vm.name.to_string() })
}

fn value(published: &PublishedScore) -> PublishedValue {
    let NodePressure { score, observed_at, .. } = published.pressure;
    let observed_at_ms = u64::try_from(observed_at.as_millisecond()).unwrap_or_default();
    PublishedValue { score, observed_at_ms }
}

/// Logs a write; a heartbeat, which changes no value, at the level debug.
fn log(mode: Publish, published: &PublishedScore, reason: WriteReason) {
    let what = if mode == Publish::On { "Published" } else { "Would publish" };
    let level = published.level.word();
    let NodePressure { score, cpu, memory, io, .. } = published.pressure;
    let [cpu, memory, io] =
        [cpu, memory, io].map(|points| points.map_or("-".to_owned(), |points| points.to_string()));
    match reason {
        WriteReason::Change | WriteReason::Demand => {
            tracing::info!(score, %cpu, %memory, %io, level, "{what}")
        }
        WriteReason::Heartbeat => {
            tracing::debug!(score, %cpu, %memory, %io, level, "{what}")
        }
    }
}

/// A number from 0 to 1 that differs between nodes.
fn random() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Mutex;

    use super::*;
    use crate::contract::{Basis, Level};

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

    /// The line that is logged for a report.
    fn logged(mode: Publish, report: &Report<'_>) -> String {
        let log = Log::default();
        let writer = log.clone();
        let format = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let metrics = OwnMetrics::default();
        tracing::subscriber::with_default(format.finish(), || {
            record(&metrics, mode, report);
        });
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn the_level_is_shown_whatever_the_node_gets() {
        let metrics = OwnMetrics::default();
        record(&metrics, Publish::On, &Report::Level(Level::High));
        assert_eq!(metrics.status().publish.level.as_deref(), Some("high"));
    }

    #[test]
    fn a_dry_run_logs_the_score_that_would_be_published() {
        let pressure = NodePressure {
            score: 25,
            cpu: Some(25),
            memory: None,
            io: None,
            observed_at: jiff::Timestamp::UNIX_EPOCH,
            basis: Basis::Psi(1),
        };
        let score = PublishedScore { pressure, level: Level::Medium, demand: None };
        let report = Report::Written(&score, WriteReason::Change);
        let values = r#"score=25 cpu=25 memory=- io=- level="medium""#;
        for (mode, what) in [(Publish::On, "Published"), (Publish::DryRun, "Would publish")] {
            let line = logged(mode, &report);
            assert!(line.trim_end().ends_with(&format!("{what} {values}")), "{line}");
        }
    }
}
