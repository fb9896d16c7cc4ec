//! `/snapshot.json`: the latest rates, counters and score as one immutable value. The page and `top`
//! show it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::agent_status::AgentStatus;
use crate::cgroup_path::{Place, PodLevel};
use crate::identity::Workload;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::kernel::limits::Limit;
use crate::relief::{Assessment, Relief};
use crate::sample::{CgroupSample, CgroupStats, ScrapeRates, ScrapeSample};
use crate::sampler::WARM_UP;
use crate::score::{Absence, ContainerScore, PerResource};
use crate::waiting::series::PressureShares;
use crate::waiting::{Population, Ratio};

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
    /// Source and version of the estimator, such as `run-delay/5`; absent before the first score.
    pub basis: Option<String>,
    /// Time until the first score, seconds; absent if there is one, or if it is overdue.
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
    /// Contention score, 0 to 1; absent in the first 30 s.
    pub score: Option<Ratio>,
    /// Share of their demand that VMs waited for because of the node, smoothed over 30 s.
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

#[derive(Debug, Serialize)]
pub struct CgroupView<'a> {
    /// Path from the root of the hierarchy.
    pub id: &'a str,
    /// `root`, `host`, `pod`, `container`, `sandbox`, `monitor`, `nested` or `unknown`.
    pub level: &'static str,
    /// Pod UID, from the path.
    pub pod_uid: Option<&'a str>,
    /// QoS class of the pod.
    pub qos: Option<&'static str>,
    /// Namespace of the pod; absent until the pod is listed.
    pub namespace: Option<&'a str>,
    /// Name of the pod.
    pub pod: Option<&'a str>,
    /// Name of the container in the pod; empty for the pod itself.
    pub container: Option<&'a str>,
    /// Name of the VM that the pod runs.
    pub vm: Option<&'a str>,
    /// CPU request of the container, in CPUs.
    pub cpu_request: Option<f64>,
    /// Whether this is a container, or a top-level cgroup outside pods: the cgroups whose CPU use
    /// adds up to the node's.
    pub is_user: bool,
    /// Whether this is a VM container.
    pub is_vm: bool,
    /// CPU ready that the owner of the VM accepts, 0 to 1; absent without the annotation.
    pub cpu_wait_budget: Option<f64>,
    /// Whether the pod is the target of a live migration whose VM still runs on another node.
    pub awaits_handover: Option<bool>,
    /// Container ID, from the path.
    pub container_id: Option<&'a str>,
    /// Container runtime.
    pub runtime: Option<&'static str>,
    /// Shares of the window in which its tasks waited (PSI).
    pub pressure: PerResource<PressureShares>,
    /// Its part in the score; absent for cgroups that are not scored.
    pub scored: Option<ScoredView<'a>>,
    /// Usage and limits; absent where they were not read.
    #[serde(flatten)]
    pub usage: Option<UsageView>,
}

/// A container's part in the score.
#[derive(Debug, Serialize)]
pub struct ScoredView<'a> {
    #[serde(flatten)]
    pub score: &'a ContainerScore,
    /// What would change if it left; absent for containers that are not VMs, and without a score.
    pub relief: Option<ReliefView>,
}

/// What would change if a VM left the node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ReliefView {
    /// CPUs' worth of waiting that would end: its own, and that of the other VMs.
    pub cpus: f64,
    /// Score that the node would have, 0 to 1.
    pub score_without: Ratio,
}

/// Usage and limits of a cgroup.
#[derive(Debug, Default, Serialize)]
pub struct UsageView {
    /// CPU time used since the cgroup was created, seconds.
    pub cpu_seconds: Option<f64>,
    /// CPUs that its quota allows; `"max"` without a quota.
    pub cpu_limit: Option<LimitView>,
    /// Throttled time, including that of quotas above it, seconds, summed over CPUs.
    pub throttled_seconds: Option<f64>,
    /// `memory.current`, bytes.
    pub memory_bytes: Option<u64>,
    /// `memory.max`, bytes.
    pub memory_max: Option<LimitView>,
    /// `memory.high`, bytes.
    pub memory_high: Option<LimitView>,
    /// Reclaims that its own `memory.max` or `memory.high` caused.
    pub own_memory_limit_hits: Option<u64>,
    /// `io.max` by device: `"8:16": {"read_bytes": …}`, per second.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub io_max: BTreeMap<String, IoMaxView>,
}

/// `io.max` of one device, per second.
#[derive(Debug, Serialize)]
pub struct IoMaxView {
    read_bytes: LimitView,
    written_bytes: LimitView,
    reads: LimitView,
    writes: LimitView,
}

/// A number, or `"max"`.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitView {
    Max,
    #[serde(untagged)]
    At(f64),
}

impl From<Limit> for LimitView {
    fn from(limit: Limit) -> Self {
        limit.at().map_or(LimitView::Max, |value| LimitView::At(float(value)))
    }
}

#[allow(clippy::cast_precision_loss, reason = "displayed numbers need at most 52 bits")]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(micros: u64) -> f64 {
    float(micros) / 1e6
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
            CgroupView {
                is_user: sample.workloads.contains(&id),
                ..CgroupView::new(member, pressure.unwrap_or_default(), scored)
            }
        });
        let has_score = score.is_some_and(|score| score.score.is_some());
        let left = identity.warm_up_left(sample.moment.at).filter(|_| !has_score);
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
                score: score.and_then(|score| score.score),
                contention: score.map(|score| score.contention).unwrap_or_default(),
                latest: score.map(|score| score.latest).unwrap_or_default(),
                headroom_cpus: assessment.and_then(|latest| latest.headroom_cpus),
                absence: score.map(|score| score.absence).unwrap_or_default(),
                population: score.and_then(|score| score.population).map(Population::word),
                contended: score.map_or(0, |score| score.contended),
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

impl ReliefView {
    fn of(relief: &Relief) -> Self {
        Self { cpus: (relief.cpus * 1e4).round() / 1e4, score_without: relief.score_without }
    }
}

impl<'a> CgroupView<'a> {
    fn new(
        sample: &'a CgroupSample,
        pressure: PerResource<PressureShares>,
        scored: Option<ScoredView<'a>>,
    ) -> Self {
        let cgroup: &Cgroup = &sample.cgroup;
        let workload = sample.workload.as_deref();
        let pod = match &cgroup.place {
            Place::Pod(pod) => Some(pod),
            Place::Root | Place::Host | Place::MountUnit => None,
        };
        let (level, container) = match &cgroup.place {
            Place::Root => ("root", None),
            Place::Host | Place::MountUnit => ("host", None),
            Place::Pod(pod) => match &pod.level {
                PodLevel::Pod => ("pod", None),
                PodLevel::Container(container) => ("container", Some(container)),
                PodLevel::Sandbox(container) => ("sandbox", Some(container)),
                PodLevel::Nested(container) => ("nested", Some(container)),
                PodLevel::Monitor => ("monitor", None),
                PodLevel::Unknown => ("unknown", None),
            },
        };
        Self {
            id: &cgroup.path,
            level,
            pod_uid: pod.map(|pod| pod.uid.as_str()),
            qos: pod.map(|pod| pod.qos.word()),
            namespace: workload.map(|workload| &*workload.namespace),
            pod: workload.map(|workload| &*workload.pod),
            container: workload.map(|workload| &*workload.container),
            vm: workload.and_then(|workload| Some(&*workload.vm.as_ref()?.name)),
            cpu_request: workload.and_then(|workload| Some(float(workload.cpu_request?) / 1000.0)),
            is_user: false,
            is_vm: workload.is_some_and(Workload::is_vm),
            cpu_wait_budget: workload
                .and_then(|workload| workload.vm.as_ref()?.cpu_wait_budget_ratio()),
            awaits_handover: workload
                .and_then(|workload| Some(workload.vm.as_ref()?.awaits_handover)),
            container_id: container.map(|container| container.id.as_str()),
            runtime: container.map(|container| container.runtime.word()),
            pressure,
            scored,
            usage: sample.stats.as_deref().map(UsageView::new),
        }
    }
}

impl UsageView {
    fn new(stats: &CgroupStats) -> Self {
        let cpu_limit = stats.cpu.max.map(|max| match max.quota_us {
            Limit::Max => LimitView::Max,
            Limit::At(quota) => LimitView::At(float(quota) / float(max.period_us)),
        });
        let local = stats.memory.events_local;
        let hits = local.and_then(|events| events.high?.checked_add(events.max?));
        let throttled =
            stats.cpu.throttled_local_us.or(stats.cpu.stat.and_then(|cpu| cpu.throttled_us));
        let io_max = stats.io_max.iter().flatten().map(|row| {
            let device = format!("{}:{}", row.device.major, row.device.minor);
            let view = IoMaxView {
                read_bytes: row.read_bytes.into(),
                written_bytes: row.written_bytes.into(),
                reads: row.reads.into(),
                writes: row.writes.into(),
            };
            (device, view)
        });
        Self {
            cpu_seconds: stats.cpu.stat.and_then(|cpu| cpu.usage_us).map(seconds),
            cpu_limit,
            throttled_seconds: throttled.map(seconds),
            memory_bytes: stats.memory.current,
            memory_max: stats.memory.max.map(LimitView::from),
            memory_high: stats.memory.high.map(LimitView::from),
            own_memory_limit_hits: hits,
            io_max: io_max.collect(),
        }
    }
}
