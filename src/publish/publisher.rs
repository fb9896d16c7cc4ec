//! Writes scores on the Node at the times that the plan sets. After failures it writes the newest
//! score only: there is no queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::marker::{Mark, Marker};
use super::node_patch::{Outputs, node_patch};
use super::plan::{Plan, WriteReason};
use super::score::PublishedScore;
use crate::client::cluster::call::CallError;
use crate::client::cluster::{NodeKeys, OwnNode, PodName};
use crate::contract::{Freshness, Key, Level, NodePressure, Prefix, Thresholds};
use crate::identity::Workload;
use crate::kernel::cgroup_tree::CgroupId;
use crate::relief::{Assessment, NoCandidate, choose};
use crate::score::{ContainerScore, NodeScore, Resource};

/// Time for which the agent keeps labels of an earlier agent that it continues from. Scores, and
/// predictions for VMs that wait for memory, need this much history.
const SETTLING: Duration = Duration::from_secs(30);

pub struct Settings {
    pub prefix: Prefix,
    pub thresholds: Thresholds,
    pub counted: Vec<Resource>,
    pub outputs: Outputs,
    /// Time after which unchanged values are renewed. Values are stale, and not adopted from an earlier
    /// agent, when they are twice as old.
    pub heartbeat: Duration,
    /// The Node; `None` on a host outside a cluster.
    pub node: Option<OwnNode>,
    pub dry_run: bool,
    /// Time for which a VM is not named after it arrived or started.
    pub candidate_min_age: Duration,
    /// Whether the pod of the VM to move first gets a label.
    pub mark_candidate: bool,
    /// A random number from 0 to 1, new at each call.
    pub random: fn() -> f64,
}

#[derive(Debug)]
pub enum Report<'a> {
    /// The publisher continues from this value of an earlier agent.
    Adopted(&'a NodePressure),
    Written(&'a PublishedScore, WriteReason),
    /// A dry run would have written this; in a cluster, with this patch.
    WouldWrite(&'a PublishedScore, WriteReason, Option<&'a Value>),
    Failed(&'a CallError),
    /// The level after a score.
    Level(Level),
    /// The VM to move first.
    Candidate(Result<&'a Workload, NoCandidate>),
    Marked(&'a Mark),
    MarkFailed(&'a CallError),
}

pub struct Publisher {
    settings: Settings,
    plan: Plan,
    /// Whether the Node was read for values of an earlier agent.
    has_read_node: bool,
    /// The last VM that was chosen to be moved first.
    named: Option<CgroupId>,
    marker: Option<Marker>,
    /// When the agent began to continue from an earlier one.
    adopted_at: Option<Instant>,
}

/// Publishes until the channel of assessments closes. Sends the value of an earlier agent, if there is
/// one to continue from, to `adopt`.
pub async fn publish(
    settings: Settings,
    mut assessments: watch::Receiver<Option<Arc<Assessment>>>,
    adopt: oneshot::Sender<NodePressure>,
    mut report: impl FnMut(&Report<'_>),
) {
    let mut publisher = Publisher::new(settings);
    let mut adopt = Some(adopt);
    while assessments.changed().await.is_ok() {
        let Some(assessment) = assessments.borrow_and_update().clone() else { continue };
        let on_report = |step: &Report<'_>| {
            if let (Report::Adopted(found), Some(adopt)) = (step, adopt.take()) {
                // This fails only while the agent stops, and has dropped the receiver.
                let _ = adopt.send(**found);
            }
            report(step);
        };
        publisher.take(&assessment, on_report).await;
    }
}

impl Publisher {
    pub fn new(settings: Settings) -> Self {
        let Settings { thresholds, counted, outputs, heartbeat, node, .. } = &settings;
        let plan = Plan::new(*thresholds, counted.clone(), outputs.show_level(), *heartbeat);
        let label = Key::MigrateFirst.of(&settings.prefix);
        let marker = (settings.mark_candidate && !settings.dry_run).then(|| Marker::new(label));
        Self {
            has_read_node: node.is_none(),
            settings,
            plan,
            named: None,
            marker,
            adopted_at: None,
        }
    }

    pub async fn take(&mut self, assessment: &Assessment, mut report: impl FnMut(&Report<'_>)) {
        self.publish(&assessment.score, &mut report).await;
        if assessment.score.score.is_some() {
            report(&Report::Level(self.plan.level()));
        }
        self.name_candidate(assessment, &mut report).await;
    }

    async fn publish(&mut self, score: &NodeScore, mut report: impl FnMut(&Report<'_>)) {
        let write = self.plan.next_write(score.moment.at, score);
        let node = self.settings.node.clone();
        match (node, write) {
            (Some(node), _) if !self.has_read_node => {
                if self.plan.may_try(score.moment.at) {
                    match node.get().await {
                        Ok(keys) => {
                            let is_marked = match &mut self.marker {
                                Some(marker) => {
                                    marker.marked(&node).await.is_ok_and(|pods| !pods.is_empty())
                                }
                                None => false,
                            };
                            self.adopt(&keys, is_marked, score, &mut report);
                        }
                        Err(error) => self.fail(score, &error, &mut report),
                    }
                }
            }
            (Some(node), Some((published, reason))) => {
                self.write(&node, score, published, reason, &mut report).await;
            }
            (None, Some((published, reason))) => {
                self.plan.written(published, reason, score.moment.at, (self.settings.random)());
                report(&Report::WouldWrite(&published, reason, None));
            }
            (_, None) => {}
        }
    }

    async fn name_candidate(
        &mut self,
        assessment: &Assessment,
        report: &mut impl FnMut(&Report<'_>),
    ) {
        let min_age = self.settings.candidate_min_age;
        let now = assessment.score.moment.at;
        let named = self.named.or_else(|| self.marked_container(assessment));
        let chosen = choose(assessment, self.plan.level(), min_age, named);
        self.named = chosen.ok().map(|one| one.cgroup.id);
        let named = chosen.map(|one| one.workload.as_deref());
        let named = named.and_then(|workload| workload.ok_or(NoCandidate::NoMoveHelps));
        report(&Report::Candidate(named));
        let Some((marker, node)) = self.marker.as_mut().zip(self.settings.node.as_ref()) else {
            return;
        };
        let pod = named.ok().map(|workload| pod_name(workload, node));
        let since = self.adopted_at.map(|at| now.saturating_duration_since(at));
        let is_settling = !self.has_read_node || since.is_some_and(|since| since < SETTLING);
        if pod.is_none() && is_settling {
            return;
        }
        let on_mark = |step: Result<&Mark, &CallError>| match step {
            Ok(mark) => report(&Report::Marked(mark)),
            Err(error) => report(&Report::MarkFailed(error)),
        };
        marker.follow(node, pod.as_ref(), now, on_mark).await;
    }

    /// The container of the VM whose pod has the label.
    fn marked_container(&self, assessment: &Assessment) -> Option<CgroupId> {
        let (marker, node) = self.marker.as_ref().zip(self.settings.node.as_ref())?;
        let is_marked = |container: &&ContainerScore| {
            let workload = container.workload.as_deref();
            workload.is_some_and(|workload| marker.has_marked(&pod_name(workload, node)))
        };
        let marked = assessment.score.containers.iter().find(is_marked)?;
        Some(marked.cgroup.id)
    }

    /// Continues from the Node's values if they are fresh. Values with another basis are not
    /// comparable, so only their level is kept. A contended node then stays marked during an
    /// upgrade of the agent, until scores with the new basis change the level. If neither a label nor
    /// taints show it, it was at least medium if a pod is marked as the one to move first.
    fn adopt(
        &mut self,
        keys: &NodeKeys,
        is_marked: bool,
        score: &NodeScore,
        report: &mut impl FnMut(&Report<'_>),
    ) {
        self.has_read_node = true;
        self.plan.recovered();
        let prefix = &self.settings.prefix;
        let found = NodePressure::from_annotations(prefix, &keys.metadata.annotations);
        let Ok(Some(found)) = found else { return };
        let age = found.freshness(score.moment.timestamp(), self.settings.heartbeat * 2);
        let Freshness::Fresh { age } = age else { return };
        self.adopted_at = Some(score.moment.at);
        let level = Level::from_labels(prefix, &keys.metadata.labels);
        let by_mark = if is_marked { Level::Medium } else { Level::Low };
        let level =
            level.unwrap_or_else(|| Level::from_taints(prefix, keys.taint_keys()).max(by_mark));
        if found.basis != score.basis {
            return self.plan.adopt_level(level);
        }
        self.plan.adopt(PublishedScore { pressure: found, level }, score.moment.at, age);
        report(&Report::Adopted(&found));
    }

    async fn write(
        &mut self,
        node: &OwnNode,
        score: &NodeScore,
        published: PublishedScore,
        reason: WriteReason,
        report: &mut impl FnMut(&Report<'_>),
    ) {
        let Settings { prefix, outputs, dry_run, .. } = &self.settings;
        let patched = async {
            let patch = node_patch(prefix, &node.get().await?, &published, outputs);
            if !dry_run {
                node.patch(&patch).await?;
            }
            Ok(patch)
        };
        match patched.await {
            Ok(patch) => {
                report(&if *dry_run {
                    Report::WouldWrite(&published, reason, Some(&patch))
                } else {
                    Report::Written(&published, reason)
                });
                self.plan.written(published, reason, score.moment.at, (self.settings.random)());
            }
            Err(error) => self.fail(score, &error, report),
        }
    }

    fn fail(&mut self, score: &NodeScore, error: &CallError, report: &mut impl FnMut(&Report<'_>)) {
        self.plan.failed(error, score.moment.at, (self.settings.random)());
        report(&Report::Failed(error));
    }
}

fn pod_name(workload: &Workload, node: &OwnNode) -> PodName {
    PodName {
        namespace: workload.namespace.to_string(),
        name: workload.pod.to_string(),
        node: node.name.clone(),
    }
}
