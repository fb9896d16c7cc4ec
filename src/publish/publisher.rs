//! Writes scores on the Node at the times that the plan sets. After failures it writes the newest
//! score only: there is no queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::demand::demand;
use super::marker::Marker;
use super::node_patch::{node_patch, without_headroom_label};
use super::plan::{Plan, WriteReason};
use super::score::PublishedScore;
use crate::client::cluster::call::CallError;
use crate::client::cluster::{NodeKeys, OwnNode, PodName};
use crate::client::snapshot::CandidateName;
use crate::config::{Publish, PublishingFlags, RunConfig, ScoreFlags};
use crate::contract::{Freshness, Key, Level, NodeDemand, NodePressure, Prefix};
use crate::identity::Workload;
use crate::kernel::cgroup_tree::CgroupId;
use crate::own_metrics::OwnMetrics;
use crate::relief::{Assessment, NoCandidate, candidates, first};

/// Time for which the agent keeps labels of an earlier agent that it continues from. Scores, and
/// predictions for VMs that wait for memory, need this much history.
const SETTLING: Duration = Duration::from_secs(30);

/// Time for which the agent keeps the demand and the label of an earlier agent, until it has enough
/// history of slow demand itself.
const DEMAND_KEPT_FOR: Duration = Duration::from_secs(600);

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
    /// The demand that the earlier agent published, for [`DEMAND_KEPT_FOR`] or until the agent has its own.
    earlier_demand: Option<NodeDemand>,
    /// Whether the API server denied the label of the headroom.
    is_label_denied: bool,
    metrics: Arc<OwnMetrics>,
}

impl Publisher {
    /// `random` returns a number from 0 to 1, a new one at each call.
    pub fn new(
        config: &RunConfig,
        node: Option<OwnNode>,
        metrics: Arc<OwnMetrics>,
        random: fn() -> f64,
    ) -> Self {
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
            metrics,
            prefix,
            flags,
            dry_run,
            node,
            random,
        }
    }

    /// Publishes the score, and labels the VM to move first. Returns the value of an earlier agent once, when
    /// it begins to continue from it.
    pub async fn take(&mut self, assessment: &Assessment) -> Option<NodePressure> {
        let score = &assessment.score;
        let published = self.publish(assessment).await;
        if let Err(error) = &published {
            self.plan.failed(error, score.moment.at, (self.random)());
            self.metrics.publish_failed(error, score.moment.unix_ms);
        }
        if score.score.is_some() {
            self.metrics.set_level(self.plan.levels.level().word());
        }
        self.choose_candidate(assessment).await;
        published.ok().flatten()
    }

    /// Reads the Node for values of an earlier agent, and writes later scores. Returns the value that it
    /// adopted.
    async fn publish(
        &mut self,
        assessment: &Assessment,
    ) -> Result<Option<NodePressure>, CallError> {
        let score = &assessment.score;
        let now = score.moment.at;
        let demand = self.demand(assessment);
        let write = self.plan.next_write(now, score, demand);
        let node = self.node.clone();
        if let (Some(node), false) = (&node, self.has_read_node) {
            if !self.plan.may_try(now) {
                return Ok(None);
            }
            return Ok(self.adopt(&node.get().await?, assessment));
        }
        let Some((published, reason)) = write else { return Ok(None) };
        if let Some(node) = node.filter(|_| !self.dry_run) {
            let keys = node.get().await?;
            let patch = node_patch(&self.prefix, &keys, &published, &self.flags.outputs);
            self.send(&node, &patch, reason).await?;
        }
        self.metrics.published(&published.pressure);
        log(self.dry_run, &published, reason);
        self.plan.written(published, reason, now, (self.random)());
        Ok(None)
    }

    /// Writes the patch or, if the API server denies it, without the label of the headroom. Admission
    /// policies are updated apart from the agent, so heartbeats try it again.
    async fn send(
        &mut self,
        node: &OwnNode,
        patch: &Value,
        reason: WriteReason,
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
                    tracing::warn!(
                        %error,
                        "Published without the label of the headroom, which the API server denies; \
                         apply the admission policies of this release"
                    );
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
        let since = self.adopted_at.map(|at| now.saturating_duration_since(at));
        let is_over = since.is_some_and(|since| since >= DEMAND_KEPT_FOR);
        self.earlier_demand.take_if(|_| own.is_some() || is_over);
        own.or_else(|| self.earlier_demand.clone())
    }

    async fn choose_candidate(&mut self, assessment: &Assessment) {
        let min_age = self.flags.candidate_min_age;
        let now = assessment.score.moment.at;
        let labelled: Vec<(CgroupId, &Workload)> = labelled(assessment).collect();
        let last = self.candidate.or(labelled.first().map(|(id, _)| *id));
        let candidate = candidates(assessment, self.plan.levels.level(), min_age)
            .and_then(|found| first(&found, last).ok_or(NoCandidate::NoMoveHelps));
        self.candidate = candidate.ok().map(|vm| vm.cgroup.id);
        match candidate {
            Ok(vm) => self.metrics.set_candidate(vm_name(vm.workload), "named"),
            Err(reason) => self.metrics.set_candidate(None, reason.into_str()),
        }
        let Some((marker, node)) = self.marker.as_mut().zip(self.node.as_ref()) else {
            return;
        };
        let pod = candidate.ok().map(|vm| pod_name(vm.workload));
        let since = self.adopted_at.map(|at| now.saturating_duration_since(at));
        let has_little = candidate.err() == Some(NoCandidate::TooLittleHistory);
        let settling = if has_little { DEMAND_KEPT_FOR } else { SETTLING };
        let is_settling = !self.has_read_node || since.is_some_and(|since| since < settling);
        if pod.is_none() && is_settling {
            return;
        }
        let labelled: Vec<PodName> = labelled.iter().map(|(_, vm)| pod_name(vm)).collect();
        marker.follow(node, &labelled, pod.as_ref(), now, &self.metrics).await;
    }

    /// Continues from the Node's values if they are fresh. Values with another basis are not
    /// comparable, so only their level is kept. A contended node then keeps its level during an
    /// upgrade of the agent, until scores with the new basis change the level. If neither a label nor
    /// taints show it, it was at least medium if it had a candidate. The demand is written again as it is
    /// until enough history is there.
    fn adopt(&mut self, keys: &NodeKeys, assessment: &Assessment) -> Option<NodePressure> {
        let score = &assessment.score;
        self.has_read_node = true;
        self.plan.recovered();
        let prefix = &self.prefix;
        let found = NodePressure::from_annotations(prefix, &keys.metadata.annotations);
        let found = found.ok().flatten()?;
        let age = found.freshness(score.moment.timestamp(), self.flags.heartbeat_interval * 2);
        let Freshness::Fresh { age } = age else { return None };
        self.adopted_at = Some(score.moment.at);
        let demand = NodeDemand::from_annotations(prefix, &keys.metadata.annotations);
        let demand = demand.ok().flatten();
        self.earlier_demand.clone_from(&demand);
        let level = Level::from_labels(prefix, &keys.metadata.labels);
        let has_candidate = labelled(assessment).next().is_some()
            || demand.as_ref().is_some_and(|demand| !demand.candidates.is_empty());
        let by_mark = if has_candidate { Level::Medium } else { Level::Low };
        let level =
            level.unwrap_or_else(|| Level::from_taints(prefix, keys.taint_keys()).max(by_mark));
        if found.basis != score.basis {
            self.plan.levels.adopt(level);
            return None;
        }
        let published = PublishedScore { pressure: found, level, demand };
        self.plan.adopt(published, score.moment.at, age);
        self.metrics.adopted(&found);
        Some(found)
    }
}

/// The containers of VMs whose pods have the label of the VM to move first.
fn labelled(assessment: &Assessment) -> impl Iterator<Item = (CgroupId, &Workload)> {
    let containers = assessment.score.containers.iter().map(|container| &container.measured);
    containers.filter_map(|container| {
        let workload = container.workload.as_deref()?;
        let is_labelled = workload.vm.as_ref()?.has_candidate_label;
        is_labelled.then_some((container.cgroup.id, workload))
    })
}

fn vm_name(workload: &Workload) -> Option<CandidateName> {
    let vm = workload.vm.as_ref()?;
    Some(CandidateName { namespace: workload.namespace.to_string(), name: vm.name.to_string() })
}

/// Logs a write; a heartbeat, which changes no value, at the level debug.
fn log(dry_run: bool, published: &PublishedScore, reason: WriteReason) {
    let what = if dry_run { "Would publish" } else { "Published" };
    let level = published.level.word();
    let NodePressure { score, cpu, memory, io, .. } = published.pressure;
    let [cpu, memory, io] =
        [cpu, memory, io].map(|points| points.map_or("-".to_owned(), |points| points.to_string()));
    if reason == WriteReason::Heartbeat {
        tracing::debug!(score, %cpu, %memory, %io, level, "{what}");
    } else {
        tracing::info!(score, %cpu, %memory, %io, level, "{what}");
    }
}

fn pod_name(workload: &Workload) -> PodName {
    PodName { namespace: workload.namespace.to_string(), name: workload.pod.to_string() }
}

#[cfg(test)]
mod tests {
    use std::io::{pipe, read_to_string};

    use super::*;
    use crate::contract::Basis;

    /// The line that is logged for a change.
    fn logged(dry_run: bool, published: &PublishedScore) -> String {
        let (lines, writer) = pipe().unwrap();
        let format = tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(writer));
        tracing::subscriber::with_default(format.finish(), || {
            log(dry_run, published, WriteReason::Change);
        });
        read_to_string(lines).unwrap()
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
        let values = r#"score=25 cpu=25 memory=- io=- level="medium""#;
        for (dry_run, what) in [(false, "Published"), (true, "Would publish")] {
            let line = logged(dry_run, &score);
            assert!(line.trim_end().ends_with(&format!("{what} {values}")), "{line}");
        }
    }
}
