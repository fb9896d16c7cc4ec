//! `/snapshot.json`: the latest rates, counters and score as one immutable value. The page and `top`
//! show it.

mod cgroup;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::agent_status::AgentStatus;
use crate::kernel::cgroup_tree::CgroupId;
use crate::relief::Assessment;
use crate::sample::{ScrapeRates, ScrapeSample};
use crate::sampler::WARM_UP;
use crate::score::{Absence, ContainerScore, MissingScore, PerResource, Resource};
use crate::waiting::series::PressureShares;
use crate::waiting::{Population, Ratio};
pub use cgroup::{
    CgroupView, IoMaxView, LimitView, PathView, ReliefView, ScoredView, UsageView, WorkloadView,
};

/// The node and its cgroups at one moment.
#[derive(Debug, Serialize)]
pub struct Snapshot<'a> {
    /// Version of the agent.
    pub version: &'static str,
    /// Name of the Node, or of the host outside a cluster.
    pub node_name: Option<&'a str>,
    /// Scores at which the levels begin, 0 to 1.
    pub levels: LevelsView,
    /// When the counters were read, Unix time in milliseconds.
    pub observed_at_ms: u64,
    /// Window of the rates, seconds; absent before the second sample.
    pub window_s: Option<f64>,
    /// Source and version of the estimator, such as `run-delay/6`; absent before the first score.
    pub basis: Option<String>,
    /// Time until the first score, seconds; absent if there is one, or if it is overdue, or if something
    /// else than the short history prevents it.
    pub warm_up_left_s: Option<f64>,
    /// End of the score's latest window, Unix time in milliseconds; absent before the first score.
    pub scored_at_ms: Option<u64>,
    /// State of the agent; absent where `top` reads the kernel itself.
    pub agent: Option<AgentView>,
    pub node: NodeView,
    /// Its cgroups, by path.
    pub cgroups: Vec<CgroupView<'a>>,
}

/// Properties that do not change while the agent runs.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// Name of the Node, or of the host outside a cluster.
    pub name: Option<String>,
    pub levels: LevelsView,
    /// Resources that make up the score.
    pub counted: Vec<Resource>,
    /// When this process began to read.
    pub started_at: Instant,
}

impl NodeIdentity {
    /// Time until the first score is due.
    fn warm_up_left(&self, now: Instant) -> Option<Duration> {
        (self.started_at + WARM_UP).checked_duration_since(now)
    }
}

/// Scores at which the levels begin, 0 to 1.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LevelsView {
    pub medium: f64,
    pub high: f64,
}

/// State of a running agent.
#[derive(Debug, Serialize)]
pub struct AgentView {
    /// Time of the last tick, Unix time in milliseconds.
    pub ticked_at_ms: Option<u64>,
    /// Window of the last tick, seconds; absent before the second tick.
    pub tick_window_s: Option<f64>,
    /// Whether the pods of this node are listed; absent without a source of pods.
    pub pods_listed: Option<bool>,
    /// Errors, and the published score.
    #[serde(flatten)]
    pub status: AgentStatus,
}

#[derive(Debug, Serialize)]
pub struct NodeView {
    #[serde(flatten)]
    pub score: ScoreView,
    /// Shares of the window in which tasks waited (PSI).
    pub pressure: PerResource<PressureShares>,
    /// Share of the CPUs' time in use.
    pub utilization: Option<Ratio>,
    /// Share of the CPUs' time that the hypervisor gave to others.
    pub steal: Option<Ratio>,
    pub cpus: Option<u64>,
    /// `MemTotal`, bytes.
    pub memory_total: Option<u64>,
    /// `MemAvailable`, bytes.
    pub memory_available: Option<u64>,
    /// Pages scanned by the node's own reclaim since boot.
    pub pages_scanned: Option<u64>,
}

/// The node's score and its causes.
#[derive(Debug, Default, Serialize)]
pub struct ScoreView {
    /// Contention score, 0 to 1; absent in the first 30 s.
    pub score: Option<Ratio>,
    /// Why there is no score, and what to do; absent while `warm_up_left_s` is the reason.
    pub no_score: Option<String>,
    /// Share of their demand that workloads waited for because of the node, smoothed over 30 s.
    pub contention: PerResource<Option<Ratio>>,
    /// The same in the last tick, not smoothed.
    pub latest: PerResource<Option<Ratio>>,
    /// Why `contention` is absent.
    pub absence: PerResource<Option<Absence>>,
    /// What is scored: `VMs`, `containers` or `units`; absent before the first score.
    pub population: Option<&'static str>,
    /// Scored workloads whose CPU ready or memory contention is 5 % or more.
    pub contended: usize,
    /// Busy vCPUs that can be added before the level is `medium`; absent without a score.
    pub headroom_cpus: Option<f64>,
}

impl ScoreView {
    fn new(assessment: &Assessment, missing: Option<MissingScore>) -> Self {
        let score = &assessment.score;
        Self {
            score: score.score,
            no_score: missing.map(|missing| format!("{missing}: {}", missing.remedy())),
            contention: score.contention,
            latest: score.latest,
            absence: score.absence,
            population: score.population.map(Population::plural),
            contended: score.contended,
            headroom_cpus: assessment.headroom_cpus,
        }
    }
}

impl<'a> Snapshot<'a> {
    /// Joins a sample with the rates and the score of the latest tick.
    pub fn new(
        identity: &'a NodeIdentity,
        sample: &'a ScrapeSample,
        rates: Option<&ScrapeRates>,
        assessment: Option<&'a Assessment>,
        agent: Option<AgentView>,
    ) -> Self {
        let (node, score) = (&sample.node, assessment.map(|latest| &latest.score));
        let scanned = node.reclaim.map(|reclaim| {
            let (kswapd, direct) = (reclaim.pgscan_kswapd, reclaim.pgscan_direct);
            kswapd.unwrap_or_default().saturating_add(direct.unwrap_or_default())
        });
        let population = score.and_then(|score| score.population);
        let scored = score.into_iter().flat_map(|score| &score.containers);
        let scored: HashMap<CgroupId, &ContainerScore> =
            scored.map(|container| (container.cgroup.id, container)).collect();
        let cgroups = sample.cgroups.iter().chain(&sample.beside).map(|member| {
            let id = member.cgroup.id;
            let pressure = rates.and_then(|rates| rates.cgroups.get(&id)).copied();
            let scored = scored.get(&id).map(|score| ScoredView {
                score,
                relief: assessment.and_then(|latest| latest.relief.get(&id)).map(ReliefView::of),
            });
            let is_user = sample.workloads.contains(&id);
            CgroupView::new(member, is_user, pressure.unwrap_or_default(), scored, population)
        });
        let has_score = score.is_some_and(|score| score.score.is_some());
        let missing = score.and_then(|score| score.missing(&identity.counted));
        let warms_up = missing.is_none_or(|missing| missing.absence == Absence::WarmingUp);
        let left = identity.warm_up_left(sample.moment.at).filter(|_| warms_up && !has_score);
        let missing = missing.filter(|_| left.is_none());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            node_name: identity.name.as_deref(),
            levels: identity.levels,
            observed_at_ms: sample.moment.unix_ms,
            window_s: rates.map(|rates| rates.window.as_secs_f64()),
            basis: score.map(|score| score.basis.to_string()),
            warm_up_left_s: left.map(|left| left.as_secs_f64()),
            scored_at_ms: score.map(|score| score.moment.unix_ms),
            agent,
            node: NodeView {
                score: assessment.map(|latest| ScoreView::new(latest, missing)).unwrap_or_default(),
                pressure: rates.map(|rates| rates.pressure).unwrap_or_default(),
                utilization: rates.and_then(|rates| rates.utilization),
                steal: rates.and_then(|rates| rates.steal),
                cpus: node.cpu_times.map(|times| times.value.cpus),
                memory_total: node.memory.and_then(|memory| memory.total),
                memory_available: node.memory.and_then(|memory| memory.available),
                pages_scanned: scanned,
            },
            cgroups: cgroups.collect(),
        }
    }
}
