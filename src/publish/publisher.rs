//! Writes scores on the Node at the times that the plan sets. After failures it writes the newest
//! score only: there is no queue.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::demand::demand;
use super::marker::{Mark, Marker};
use super::node_patch::{node_patch, without_headroom_label};
use super::plan::{Plan, WriteReason};
use super::score::PublishedScore;
use crate::client::cluster::call::CallError;
use crate::client::cluster::{NodeKeys, OwnNode, PodName};
use crate::config::{Publish, PublishingFlags, RunConfig, ScoreFlags};
use crate::contract::{Freshness, Key, Level, NodeDemand, NodePressure, Prefix};
use crate::identity::Workload;
use crate::kernel::cgroup_tree::CgroupId;
use crate::relief::{Assessment, NoCandidate, candidates, first};
use crate::score::ContainerScore;

/// Time for which the agent keeps labels of an earlier agent that it continues from. Scores, and
/// predictions for VMs that wait for memory, need this much history.
const SETTLING: Duration = Duration::from_secs(30);

/// Time for which the agent keeps the demand and the label of an earlier agent, until it has enough
/// history of slow demand itself.
const DEMAND_KEPT_FOR: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub enum Report<'a> {
    /// The publisher continues from this value of an earlier agent.
    Adopted(&'a NodePressure),
    /// This was written or, in a dry run, would have been.
    Written(&'a PublishedScore, WriteReason),
    Failed(&'a CallError),
    /// The API server denied the label of the headroom. All else was written.
    LabelDenied(&'a CallError),
    /// The level after a score.
    Level(Level),
    /// The VM to move first.
    Candidate(Result<&'a Workload, NoCandidate>),
    /// The label of that VM's pod was set or removed, or could not be.
    Marked(Result<&'a Mark, &'a CallError>),
}

pub struct Publisher {
    prefix: Prefix,
    flags: PublishingFlags,
    dry_run: bool,
    /// The Node; `None` on a host outside a cluster.
    node: Option<OwnNode>,
    random: fn() -> f64,
    plan: Plan,
    /// Whether the Node was read for values of an earlier agent.
    has_read_node: bool,
    /// The last VM that was chosen to be moved first.
    candidate: Option<CgroupId>,
    /// `None` if no pod gets a label.
    marker: Option<Marker>,
    /// When the agent began to continue from an earlier one.
    adopted_at: Option<Instant>,
    /// The demand that an earlier agent published, and when the agent began to continue from it.
    earlier_demand: Option<(NodeDemand, Instant)>,
    /// Whether the API server denied the label of the headroom.
    is_label_denied: bool,
}

impl Publisher {
    /// `random` returns a number from 0 to 1, a new one at each call.
    pub fn new(config: &RunConfig, node: Option<OwnNode>, random: fn() -> f64) -> Self {
        let (prefix, flags) = (config.source.api.prefix.clone(), config.publishing.clone());
        let dry_run = flags.publish.mode(&config.source) != Publish::On;
        let shows_level = flags.outputs.label || !flags.outputs.taint_levels.is_empty();
        let ScoreFlags { levels, score_resources } = config.score.clone();
        let label = Key::MigrateFirst.of(&prefix);
        Self {
            plan: Plan::new(levels, score_resources, shows_level, flags.heartbeat_interval),
            has_read_node: node.is_none(),
            candidate: None,
            marker: (flags.mark_candidate && !dry_run).then(|| Marker::new(label)),
            adopted_at: None,
            earlier_demand: None,
            is_label_denied: false,
            prefix,
            flags,
            dry_run,
            node,
            random,
        }
    }

    pub async fn take(&mut self, assessment: &Assessment, mut report: impl FnMut(&Report<'_>)) {
        let score = &assessment.score;
        if let Err(error) = self.publish(assessment, &mut report).await {
            self.plan.failed(&error, score.moment.at, (self.random)());
            report(&Report::Failed(&error));
        }
        if score.score.is_some() {
            report(&Report::Level(self.plan.level()));
        }
        self.choose_candidate(assessment, &mut report).await;
    }

    /// Reads the Node for values of an earlier agent, and writes later scores.
    async fn publish(
        &mut self,
        assessment: &Assessment,
        report: &mut impl FnMut(&Report<'_>),
    ) -> Result<(), CallError> {
        let score = &assessment.score;
        let now = score.moment.at;
        let demand = self.demand(assessment);
        let write = self.plan.next_write(now, score, demand);
        let node = self.node.clone();
        if let (Some(node), false) = (&node, self.has_read_node) {
            if self.plan.may_try(now) {
                self.adopt(&node.get().await?, assessment, report);
            }
            return Ok(());
        }
        let Some((published, reason)) = write else { return Ok(()) };
        if let Some(node) = node.filter(|_| !self.dry_run) {
            let keys = node.get().await?;
            let patch = node_patch(&self.prefix, &keys, &published, &self.flags.outputs);
            self.send(&node, &patch, reason, report).await?;
        }
        report(&Report::Written(&published, reason));
        self.plan.written(published, reason, now, (self.random)());
        Ok(())
    }

    /// Writes the patch or, if the API server denies it, without the label of the headroom. Admission
    /// policies are updated apart from the agent, so heartbeats try it again.
    async fn send(
        &mut self,
        node: &OwnNode,
        patch: &Value,
        reason: WriteReason,
        report: &mut impl FnMut(&Report<'_>),
    ) -> Result<(), CallError> {
        let without_label = without_headroom_label(&self.prefix, patch);
        if self.is_label_denied && reason != WriteReason::Heartbeat {
            return node.patch(&without_label).await;
        }
        match node.patch(patch).await {
            Err(error @ (CallError::Forbidden(_) | CallError::Refused { .. }))
                if without_label != *patch =>
            {
                node.patch(&without_label).await?;
                if !std::mem::replace(&mut self.is_label_denied, true) {
                    report(&Report::LabelDenied(&error));
                }
            }
            written => {
                written?;
                self.is_label_denied = false;
            }
        }
        Ok(())
    }

    /// The demand of the node or, until that is known, of an earlier agent.
    fn demand(&mut self, assessment: &Assessment) -> Option<NodeDemand> {
        let own = demand(assessment, self.flags.candidate_min_age);
        let now = assessment.score.moment.at;
        self.earlier_demand.take_if(|(_, since)| {
            own.is_some() || now.saturating_duration_since(*since) >= DEMAND_KEPT_FOR
        });
        own.or_else(|| Some(self.earlier_demand.as_ref()?.0.clone()))
    }

    async fn choose_candidate(
        &mut self,
        assessment: &Assessment,
        report: &mut impl FnMut(&Report<'_>),
    ) {
        let min_age = self.flags.candidate_min_age;
        let now = assessment.score.moment.at;
        let labelled: Vec<&ContainerScore> = labelled(assessment).collect();
        let last = self.candidate.or(labelled.first().map(|container| container.cgroup.id));
        let candidate = candidates(assessment, self.plan.level(), min_age)
            .and_then(|found| first(&found, last).ok_or(NoCandidate::NoMoveHelps));
        self.candidate = candidate.ok().map(|vm| vm.cgroup.id);
        let candidate = candidate.map(|vm| vm.workload.as_deref());
        let candidate = candidate.and_then(|workload| workload.ok_or(NoCandidate::NoMoveHelps));
        report(&Report::Candidate(candidate));
        let Some((marker, node)) = self.marker.as_mut().zip(self.node.as_ref()) else {
            return;
        };
        let pod = candidate.ok().map(pod_name);
        let since = self.adopted_at.map(|at| now.saturating_duration_since(at));
        let has_little = candidate == Err(NoCandidate::TooLittleHistory);
        let settling = if has_little { DEMAND_KEPT_FOR } else { SETTLING };
        let is_settling = !self.has_read_node || since.is_some_and(|since| since < settling);
        if pod.is_none() && is_settling {
            return;
        }
        let workloads = labelled.iter().filter_map(|container| container.workload.as_deref());
        let labelled: Vec<PodName> = workloads.map(pod_name).collect();
        let report = |step: Result<&Mark, &CallError>| report(&Report::Marked(step));
        marker.follow(node, &labelled, pod.as_ref(), now, report).await;
    }

    /// Continues from the Node's values if they are fresh. Values with another basis are not
    /// comparable, so only their level is kept. A contended node then keeps its level during an
    /// upgrade of the agent, until scores with the new basis change the level. If neither a label nor
    /// taints show it, it was at least medium if it had a candidate. The demand is written again as it is
    /// until enough history is there.
    fn adopt(
        &mut self,
        keys: &NodeKeys,
        assessment: &Assessment,
        report: &mut impl FnMut(&Report<'_>),
    ) {
        let score = &assessment.score;
        self.has_read_node = true;
        self.plan.recovered();
        let prefix = &self.prefix;
        let found = NodePressure::from_annotations(prefix, &keys.metadata.annotations);
        let Ok(Some(found)) = found else { return };
        let age = found.freshness(score.moment.timestamp(), self.flags.heartbeat_interval * 2);
        let Freshness::Fresh { age } = age else { return };
        self.adopted_at = Some(score.moment.at);
        let demand = NodeDemand::from_annotations(prefix, &keys.metadata.annotations);
        let demand = demand.ok().flatten();
        self.earlier_demand = demand.clone().map(|demand| (demand, score.moment.at));
        let level = Level::from_labels(prefix, &keys.metadata.labels);
        let has_candidate = labelled(assessment).next().is_some()
            || demand.as_ref().is_some_and(|demand| !demand.candidates.is_empty());
        let by_mark = if has_candidate { Level::Medium } else { Level::Low };
        let level =
            level.unwrap_or_else(|| Level::from_taints(prefix, keys.taint_keys()).max(by_mark));
        if found.basis != score.basis {
            return self.plan.adopt_level(level);
        }
        let published = PublishedScore { pressure: found, level, demand };
        self.plan.adopt(published, score.moment.at, age);
        report(&Report::Adopted(&found));
    }
}

/// The containers of VMs whose pods have the label of the VM to move first.
fn labelled(assessment: &Assessment) -> impl Iterator<Item = &ContainerScore> {
    assessment.score.containers.iter().filter(|container| {
        let vm = container.workload.as_ref().and_then(|workload| workload.vm.as_ref());
        vm.is_some_and(|vm| vm.has_candidate_label)
    })
}

fn pod_name(workload: &Workload) -> PodName {
    PodName { namespace: workload.namespace.to_string(), name: workload.pod.to_string() }
}
