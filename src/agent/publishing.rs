//! Publishing as configured, with its metrics and log messages.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::clock;
use crate::cluster::connect;
use crate::cluster::own_node::OwnNode;
use crate::config::{Config, PodSource, Publish};
use crate::contract::NodePressure;
use crate::health::{Health, PublishedValue, Publishes};
use crate::publish::Statement;
use crate::publish::plan::Why;
use crate::publish::publisher::{Report, Settings, publish};
use crate::score::NodeScore;

/// Starts to publish the scores, unless publishing is off.
pub(super) async fn start(
    config: &Config,
    scores: watch::Receiver<Option<Arc<NodeScore>>>,
    adopt: oneshot::Sender<NodePressure>,
    health: &Arc<Health>,
) -> anyhow::Result<()> {
    health.publishes.set_mode(match config.publish {
        Publish::On => "on",
        Publish::DryRun => "dry-run",
        Publish::Off => "off",
    });
    if config.publish == Publish::Off {
        return Ok(());
    }
    let node = match &config.pods {
        PodSource::Cluster(cluster) => {
            Some(OwnNode::new(connect(cluster).await?, cluster.node_name.clone()))
        }
        PodSource::Nobody | PodSource::File(_) => None,
    };
    let settings = Settings {
        prefix: config.prefix.clone(),
        thresholds: config.thresholds,
        outputs: config.outputs.clone(),
        node,
        dry_run: config.publish == Publish::DryRun,
        chance,
    };
    let health = Arc::clone(health);
    let shows_level = config.outputs.show_level();
    tokio::spawn(async move {
        publish(settings, scores, adopt, |report| observe(&health.publishes, report, shows_level))
            .await;
    });
    Ok(())
}

fn observe(publishes: &Publishes, report: &Report<'_>, shows_level: bool) {
    match report {
        Report::Adopted(found) => {
            let score = found.score;
            tracing::info!(score, "Going on from what the agent before this one published");
        }
        Report::Written(statement, why) => {
            publishes.published(value(statement, shows_level));
            log("Published", statement, *why, "");
        }
        Report::WouldWrite(statement, why, patch) => {
            publishes.would_publish(value(statement, shows_level));
            let patch = patch.map(ToString::to_string).unwrap_or_default();
            log("Would publish", statement, *why, &patch);
        }
        Report::Failed(error) => publishes.failed(error, clock::now().unix_ms),
    }
}

fn value(statement: &Statement, shows_level: bool) -> PublishedValue {
    let Statement { score, level, observed_at_ms, .. } = *statement;
    PublishedValue { score, level: shows_level.then_some(level.word()), observed_at_ms }
}

/// Heartbeats repeat a value, so they are logged at debug level.
fn log(what: &str, statement: &Statement, why: Why, patch: &str) {
    let level = statement.level.word();
    let each = statement.each.map(|points| points.map_or("-".into(), |points| points.to_string()));
    let (score, cpu, memory, io) = (statement.score, &each.cpu, &each.memory, &each.io);
    match why {
        Why::Change | Why::Level => {
            tracing::info!(score, %cpu, %memory, %io, level, patch, "{what}")
        }
        Why::Heartbeat => tracing::debug!(score, %cpu, %memory, %io, level, patch, "{what}"),
    }
}

/// A random number from 0 to 1, so that nodes don't write at the same time.
#[allow(clippy::cast_precision_loss, reason = "53 random bits are enough")]
fn chance() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
