//! Keeps the Node's keys true: follows the scores, writes what the plan says is due, and goes on
//! whatever the API server answers. Only the newest score is ever written; nothing queues.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::Statement;
use super::level::Thresholds;
use super::node_patch::{Outputs, node_patch};
use super::plan::{Failure, Plan, Why};
use crate::cluster::NodeKeys;
use crate::cluster::call::CallError;
use crate::cluster::own_node::OwnNode;
use crate::contract::{Freshness, Key, Level, NodePressure, Prefix};
use crate::score::{NodeScore, PerResource};

/// A value that was written longer ago says nothing of now.
const ADOPTED_UNTIL: Duration = Duration::from_secs(600);

/// What is written, and where.
pub struct Settings {
    /// What keys begin with.
    pub prefix: Prefix,
    /// Where levels begin.
    pub thresholds: Thresholds,
    /// What is written besides annotations.
    pub outputs: Outputs,
    /// The Node; `None` on a host that is in no cluster.
    pub node: Option<OwnNode>,
    /// Whether nothing is written, only said.
    pub dry_run: bool,
    /// A number from 0 to 1, another each time, which keeps agents apart.
    pub chance: fn() -> f64,
}

/// What came of it.
#[derive(Debug)]
pub enum Report<'a> {
    /// The value of an agent before this one was taken over.
    Adopted(&'a NodePressure),
    /// It stands on the Node.
    Written(&'a Statement, Why),
    /// It would stand there; in a cluster, by this patch.
    WouldWrite(&'a Statement, Why, Option<&'a Value>),
    /// The API server did not look, or did not write.
    Failed(&'a CallError),
}

/// Publishes one score after another.
pub struct Publisher {
    settings: Settings,
    plan: Plan,
    /// Until the Node was seen, nobody knows what there is to go on from.
    has_seen_node: bool,
}

/// Publishes until there are no more scores. What was found of an agent before this one goes to
/// `adopt`, since scores go on from there.
pub async fn publish(
    settings: Settings,
    mut scores: watch::Receiver<Option<Arc<NodeScore>>>,
    adopt: oneshot::Sender<NodePressure>,
    mut report: impl FnMut(&Report<'_>),
) {
    let mut publisher = Publisher::new(settings);
    let mut adopt = Some(adopt);
    while scores.changed().await.is_ok() {
        let Some(score) = scores.borrow_and_update().clone() else { continue };
        let hear = |heard: &Report<'_>| {
            if let (Report::Adopted(found), Some(adopt)) = (heard, adopt.take()) {
                // Who scores may have ended, and so will we then.
                let _ = adopt.send((*found).clone());
            }
            report(heard);
        };
        publisher.take(&score, hear).await;
    }
}

impl Publisher {
    /// One that has written nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let plan = Plan::new(settings.thresholds, settings.outputs.show_level());
        let has_seen_node = settings.node.is_none();
        Self { settings, plan, has_seen_node }
    }

    /// Takes in a score, and writes what is due.
    pub async fn take(&mut self, score: &NodeScore, mut report: impl FnMut(&Report<'_>)) {
        let due = self.plan.due(score.moment.at, score);
        let node = self.settings.node.clone();
        match (node, due) {
            (Some(node), _) if !self.has_seen_node => {
                if self.plan.may_try(score.moment.at) {
                    match node.look().await {
                        Ok(keys) => self.adopt(&keys, score, &mut report),
                        Err(error) => self.fail(score, &error, &mut report),
                    }
                }
            }
            (Some(node), Some((statement, why))) => {
                self.write(&node, score, statement, why, &mut report).await;
            }
            (None, Some((statement, why))) => {
                self.plan.written(statement, why, score.moment.at, (self.settings.chance)());
                report(&Report::WouldWrite(&statement, why, None));
            }
            (_, None) => {}
        }
    }

    /// Goes on from what the Node says, if that is fresh and of our own kind.
    fn adopt(&mut self, keys: &NodeKeys, score: &NodeScore, report: &mut impl FnMut(&Report<'_>)) {
        self.has_seen_node = true;
        self.plan.recovered();
        let now = i64::try_from(score.moment.unix_ms).ok();
        let now = now.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let found = NodePressure::from_annotations(&self.settings.prefix, &keys.annotations);
        let (Some(now), Ok(Some(found))) = (now, found) else { return };
        let Freshness::Fresh { age } = found.freshness(now, ADOPTED_UNTIL) else { return };
        if found.basis != score.basis {
            return;
        }
        let each = PerResource { cpu: found.cpu, memory: found.memory, io: found.io };
        let level = self.shown_level(keys);
        self.plan.adopt(found.score, each, level, score.moment.at, age);
        report(&Report::Adopted(&found));
    }

    /// The level that the Node shows; `None` where nothing on it does.
    fn shown_level(&self, keys: &NodeKeys) -> Option<Level> {
        let Settings { prefix, outputs, .. } = &self.settings;
        let label = keys.labels.get(&Key::Pressure.of(prefix));
        if let Some(level) = label.and_then(|word| word.parse().ok()) {
            return Some(level);
        }
        let [medium, high] = Key::TAINTS.map(|key| keys.has_taint(&key.of(prefix)));
        match (medium, high) {
            (_, true) => Some(Level::High),
            (true, false) => Some(Level::Medium),
            (false, false) if outputs.taints.contains(&Level::Medium) => Some(Level::Low),
            (false, false) => None,
        }
    }

    async fn write(
        &mut self,
        node: &OwnNode,
        score: &NodeScore,
        statement: Statement,
        why: Why,
        report: &mut impl FnMut(&Report<'_>),
    ) {
        let Settings { prefix, outputs, dry_run, .. } = &self.settings;
        let patched = async {
            let patch = node_patch(prefix, &node.look().await?, &statement, score.basis, outputs);
            if !dry_run {
                node.patch(&patch).await?;
            }
            Ok(patch)
        };
        match patched.await {
            Ok(patch) => {
                report(&if *dry_run {
                    Report::WouldWrite(&statement, why, Some(&patch))
                } else {
                    Report::Written(&statement, why)
                });
                self.plan.written(statement, why, score.moment.at, (self.settings.chance)());
            }
            Err(error) => self.fail(score, &error, report),
        }
    }

    fn fail(&mut self, score: &NodeScore, error: &CallError, report: &mut impl FnMut(&Report<'_>)) {
        let failure = match error {
            CallError::Forbidden(_)
            | CallError::Unauthorized(_)
            | CallError::NotFound
            | CallError::Refused { .. } => Failure::Refused,
            CallError::Conflict
            | CallError::Throttled(_)
            | CallError::Failed { .. }
            | CallError::Unreachable(_)
            | CallError::TimedOut(_) => Failure::Unavailable(error.retry_after()),
        };
        self.plan.failed(failure, score.moment.at, (self.settings.chance)());
        report(&Report::Failed(error));
    }
}
