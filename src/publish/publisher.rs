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
use crate::cluster::own_node::{CallError, OwnNode};
use crate::contract::{Freshness, Key, Level, NodePressure, Prefix};
use crate::score::{BASIS, NodeScore, PerResource};

/// A value that was written longer ago says nothing of now.
const ADOPTED_UNTIL: Duration = Duration::from_secs(600);

/// What is written, and where.
pub struct Publisher {
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

/// A statement that is due, and what it takes to get it onto the Node.
struct Attempt {
    statement: Statement,
    why: Why,
}

impl Publisher {
    /// Publishes until there are no more scores. What was found of an agent before this one goes
    /// to `adopt`, since scores go on from there.
    pub async fn publish(
        self,
        mut scores: watch::Receiver<Option<Arc<NodeScore>>>,
        adopt: oneshot::Sender<NodePressure>,
        mut report: impl FnMut(Report<'_>),
    ) {
        let mut plan = Plan::new(self.thresholds, self.outputs.show_level());
        // Until the Node was seen, nobody knows what there is to go on from.
        let mut unseen = self.node.is_some().then_some(adopt);
        while scores.changed().await.is_ok() {
            let Some(score) = scores.borrow_and_update().clone() else { continue };
            let due = plan.due(score.moment.at, &score);
            if let (Some(node), true) = (&self.node, unseen.is_some()) {
                if plan.may_try(score.moment.at) {
                    match node.look().await {
                        Ok(keys) => {
                            plan.recovered();
                            let heir = unseen.take();
                            self.adopt(&keys, &score, &mut plan, heir, &mut report);
                        }
                        Err(error) => self.fail(&mut plan, &score, &error, &mut report),
                    }
                }
                continue;
            }
            if let Some((statement, why)) = due {
                let attempt = Attempt { statement, why };
                self.attempt(&mut plan, &score, &attempt, &mut report).await;
            }
        }
    }

    /// Goes on from what the Node says, if that is fresh and of our own kind.
    fn adopt(
        &self,
        keys: &NodeKeys,
        score: &NodeScore,
        plan: &mut Plan,
        heir: Option<oneshot::Sender<NodePressure>>,
        report: &mut impl FnMut(Report<'_>),
    ) {
        let now = i64::try_from(score.moment.unix_ms).ok();
        let now = now.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let found = NodePressure::from_annotations(&self.prefix, &keys.annotations);
        let (Some(now), Ok(Some(found))) = (now, found) else { return };
        let Freshness::Fresh { age } = found.freshness(now, ADOPTED_UNTIL) else { return };
        if found.basis != BASIS {
            return;
        }
        let statement = Statement {
            score: found.score,
            each: PerResource { cpu: found.cpu, memory: found.memory, io: found.io },
            level: Level::Low,
            observed_at_ms: score.moment.unix_ms,
        };
        plan.adopt(statement, self.shown_level(keys), score.moment.at, age);
        report(Report::Adopted(&found));
        // Who scores may have ended, and so will we then.
        let _ = heir.map(|heir| heir.send(found));
    }

    /// The level that the Node shows; `None` where nothing on it does.
    fn shown_level(&self, keys: &NodeKeys) -> Option<Level> {
        let label = keys.labels.get(&Key::Pressure.of(&self.prefix));
        if let Some(level) = label.and_then(|word| word.parse().ok()) {
            return Some(level);
        }
        let [medium, high] = Key::TAINTS.map(|key| keys.has_taint(&key.of(&self.prefix)));
        match (medium, high) {
            (_, true) => Some(Level::High),
            (true, false) => Some(Level::Medium),
            (false, false) if self.outputs.taints.contains(&Level::Medium) => Some(Level::Low),
            (false, false) => None,
        }
    }

    async fn attempt(
        &self,
        plan: &mut Plan,
        score: &NodeScore,
        Attempt { statement, why }: &Attempt,
        report: &mut impl FnMut(Report<'_>),
    ) {
        let (now, chance) = (score.moment.at, (self.chance)());
        let Some(node) = &self.node else {
            plan.written(*statement, *why, now, chance);
            return report(Report::WouldWrite(statement, *why, None));
        };
        let patched = async {
            let patch = node_patch(&self.prefix, &node.look().await?, statement, &self.outputs);
            if !self.dry_run {
                node.patch(&patch).await?;
            }
            Ok(patch)
        };
        match patched.await {
            Ok(patch) => {
                plan.written(*statement, *why, now, chance);
                report(if self.dry_run {
                    Report::WouldWrite(statement, *why, Some(&patch))
                } else {
                    Report::Written(statement, *why)
                });
            }
            Err(error) => self.fail(plan, score, &error, report),
        }
    }

    fn fail(
        &self,
        plan: &mut Plan,
        score: &NodeScore,
        error: &CallError,
        report: &mut impl FnMut(Report<'_>),
    ) {
        let failure = match error {
            CallError::Forbidden(_)
            | CallError::Unauthorized(_)
            | CallError::NotFound
            | CallError::Refused { .. } => Failure::Refused,
            CallError::Conflict
            | CallError::Throttled(_)
            | CallError::Failed { .. }
            | CallError::Unreachable(_)
            | CallError::TimedOut => Failure::Unavailable(error.retry_after()),
        };
        plan.failed(failure, score.moment.at, (self.chance)());
        report(Report::Failed(error));
    }
}
