//! What people see: the newest rates beside the newest counters, as one immutable value. The page
//! and the JSON at `/snapshot.json` are made from it and from nothing else.

use std::collections::{BTreeMap, HashMap};

use serde::{Serialize, Serializer};

use crate::cgroup_path::{Place, PodLevel};
use crate::health::HealthView;
use crate::identity::Workload;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::kernel::limits::Limit;
use crate::rates::{PressureRates, Ratio, ScrapeRates};
use crate::sample::{CgroupSample, CgroupStats, ScrapeSample};
use crate::score::{ContainerScore, NodeScore, PerResource, Wait};

/// The node and its cgroups at one moment.
#[derive(Debug, Serialize)]
pub struct Snapshot<'a> {
    /// The agent's version.
    pub version: &'static str,
    /// When the counters were read, milliseconds since the epoch.
    pub observed_at_ms: u64,
    /// How long the rates were averaged over, seconds; absent until there are two samples.
    pub window_s: Option<f64>,
    /// What the score is worked out from, such as `psi/9`; absent before the first.
    pub basis: Option<String>,
    /// When the newest window of the score ended, milliseconds since the epoch; absent before the
    /// first.
    pub scored_at_ms: Option<u64>,
    /// The agent that made this; absent where `top` reads the kernel itself.
    pub agent: Option<AgentView>,
    /// The node.
    pub node: NodeView,
    /// Its cgroups, by path.
    pub cgroups: Vec<CgroupView<'a>>,
}

/// The running agent: whether it looks, whether it knows whose cgroups are, and what goes wrong.
#[derive(Debug, Serialize)]
pub struct AgentView {
    /// When it last looked by itself, milliseconds since the epoch.
    pub ticked_at_ms: Option<u64>,
    /// How long the window before that was, seconds; absent before the second tick.
    pub tick_window_s: Option<f64>,
    /// Whether the pods of this node are listed; absent where nobody tells of pods.
    pub pods_listed: Option<bool>,
    /// What goes wrong, and what stands on the Node.
    #[serde(flatten)]
    pub health: HealthView,
}

/// The node.
#[derive(Debug, Serialize)]
pub struct NodeView {
    /// How much it holds its VMs back; absent while there is too little history.
    pub score: Option<Ratio>,
    /// Share of what VMs wanted that they had to wait for, smoothed.
    pub contention: PerResource<Option<Ratio>>,
    /// The same of the last tick alone.
    pub latest: PerResource<Option<Ratio>>,
    /// VMs that wait for a tenth or more of what they want.
    pub held_back: usize,
    /// Shares of the window in which tasks waited.
    pub pressure: PressureRates,
    /// Share of the CPUs' time in which they ran something.
    pub utilization: Option<Ratio>,
    /// Share of the CPUs' time that the hypervisor below gave to others.
    pub steal: Option<Ratio>,
    /// CPUs online.
    pub cpus: Option<u64>,
    /// Usable memory, bytes.
    pub memory_total: Option<u64>,
    /// Memory to be had without swapping, bytes.
    pub memory_available: Option<u64>,
    /// Pages looked at to free memory, by the node itself, since boot.
    pub pages_scanned: Option<u64>,
}

/// A cgroup.
#[derive(Debug, Serialize)]
pub struct CgroupView<'a> {
    /// Its path from the root of the hierarchy.
    pub id: &'a str,
    /// `root`, `host`, `pod`, `container`, `sandbox`, `monitor`, `nested` or `unknown`.
    pub level: &'static str,
    /// The pod, as the path names it.
    pub pod_uid: Option<&'a str>,
    /// The pod's class.
    pub qos: Option<&'static str>,
    /// The pod's namespace, its name, and the container's name in it, where they are known.
    pub namespace: Option<&'a str>,
    /// See `namespace`.
    pub pod: Option<&'a str>,
    /// See `namespace`; empty for the pod itself.
    pub container: Option<&'a str>,
    /// The VM that the pod runs.
    pub vm: Option<&'a str>,
    /// CPUs that the container asked for, where it is known.
    pub cpu_request: Option<f64>,
    /// Whether it is one of those that use the node, each of which stands for itself: a container,
    /// or what stands highest outside pods.
    pub is_user: bool,
    /// Whether this is the container that the VM itself runs in.
    pub is_vm: bool,
    /// Whether a migration made the pod, and its VM does not run here yet.
    pub awaits_handover: Option<bool>,
    /// The container, where it is one.
    pub container_id: Option<&'a str>,
    /// Who made the container.
    pub runtime: Option<&'static str>,
    /// Shares of the window in which its tasks waited.
    pub pressure: PressureRates,
    /// What its waiting comes to in the score, where it is about this cgroup.
    pub scored: Option<ScoredView>,
    /// What it uses and may use; absent where it was not read.
    #[serde(flatten)]
    pub usage: Option<UsageView>,
}

/// Why a container counts in the score as it does.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ScoredView {
    /// CPUs used in the last tick.
    pub usage: Option<f64>,
    /// Share of what it wanted that it had to wait for because of the node, smoothed.
    pub contention: PerResource<Option<Ratio>>,
    /// The last tick's pressure.
    pub pressure: PressureRates,
    /// The same, and whose fault it was.
    pub waiting: PerResource<Option<Wait>>,
}

/// What a cgroup uses, and what holds it back by its own doing.
#[derive(Debug, Default, Serialize)]
pub struct UsageView {
    /// CPU time used since it was made, seconds.
    pub cpu_seconds: Option<f64>,
    /// CPUs that its own quota allows; `"max"` without one.
    pub cpu_limit: Option<LimitView>,
    /// CPU time it was throttled here or above, seconds, summed over CPUs.
    pub throttled_seconds: Option<f64>,
    /// Memory in use, bytes.
    pub memory_bytes: Option<u64>,
    /// `memory.max`, bytes.
    pub memory_max: Option<LimitView>,
    /// `memory.high`, bytes.
    pub memory_high: Option<LimitView>,
    /// Times that its own `memory.max` or `memory.high` made it reclaim.
    pub own_memory_limit_hits: Option<u64>,
    /// Devices with an `io.max`: `"8:16": {"read_bytes": …}`, per second.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub io_max: BTreeMap<String, IoMaxView>,
}

/// Limits of one device, per second.
#[derive(Debug, Serialize)]
pub struct IoMaxView {
    read_bytes: LimitView,
    written_bytes: LimitView,
    reads: LimitView,
    writes: LimitView,
}

/// A number, or `"max"`.
#[derive(Debug, Clone, Copy)]
pub enum LimitView {
    /// No limit.
    Max,
    /// The limit.
    At(f64),
}

impl Serialize for LimitView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            LimitView::Max => serializer.serialize_str("max"),
            LimitView::At(value) => serializer.serialize_f64(*value),
        }
    }
}

impl From<Limit> for LimitView {
    fn from(limit: Limit) -> Self {
        limit.at().map_or(LimitView::Max, |value| LimitView::At(float(value)))
    }
}

#[allow(clippy::cast_precision_loss, reason = "people need no more than 52 bits of a number")]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(micros: u64) -> f64 {
    float(micros) / 1e6
}

impl<'a> Snapshot<'a> {
    /// Joins a sample with the rates of the newest tick.
    #[must_use]
    pub fn new(
        sample: &'a ScrapeSample,
        rates: Option<&ScrapeRates>,
        score: Option<&NodeScore>,
        agent: Option<AgentView>,
    ) -> Self {
        let node = &sample.node;
        let scanned = node.reclaim.map(|reclaim| {
            let (kswapd, direct) = (reclaim.pgscan_kswapd, reclaim.pgscan_direct);
            kswapd.unwrap_or_default().saturating_add(direct.unwrap_or_default())
        });
        let scored: HashMap<CgroupId, ScoredView> =
            score.into_iter().flat_map(|score| &score.containers).map(scored_view).collect();
        let cgroups = sample.cgroups.iter().chain(&sample.beside).map(|member| {
            let id = &member.cgroup.id;
            let rates = rates.and_then(|rates| rates.cgroups.get(id));
            let scored = scored.get(id).copied();
            let is_user = sample.workloads.contains(id);
            let rates = rates.copied().unwrap_or_default();
            CgroupView { is_user, ..CgroupView::new(member, rates, scored) }
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            observed_at_ms: sample.moment.unix_ms,
            window_s: rates.map(|rates| rates.node.window.as_secs_f64()),
            basis: score.map(|score| score.basis.to_string()),
            scored_at_ms: score.map(|score| score.moment.unix_ms),
            agent,
            node: NodeView {
                score: score.and_then(|score| score.score),
                contention: score.map(|score| score.contention).unwrap_or_default(),
                latest: score.map(|score| score.latest).unwrap_or_default(),
                held_back: score.map_or(0, |score| score.waiting_vms),
                pressure: rates.map(|rates| rates.node.pressure).unwrap_or_default(),
                utilization: rates.and_then(|rates| rates.node.utilization),
                steal: rates.and_then(|rates| rates.node.steal),
                cpus: node.cpu_times.map(|times| times.cpus),
                memory_total: node.memory.and_then(|memory| memory.total),
                memory_available: node.memory.and_then(|memory| memory.available),
                pages_scanned: scanned,
            },
            cgroups: cgroups.collect(),
        }
    }
}

fn scored_view(member: &ContainerScore) -> (CgroupId, ScoredView) {
    let ContainerScore { usage, contention, pressure, wait, .. } = *member;
    (member.cgroup.id, ScoredView { usage, contention, pressure, waiting: wait })
}

impl<'a> CgroupView<'a> {
    fn new(sample: &'a CgroupSample, pressure: PressureRates, scored: Option<ScoredView>) -> Self {
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
        let cpu_limit = stats.cpu_max.map(|max| match max.quota_us {
            Limit::Max => LimitView::Max,
            Limit::At(quota) => LimitView::At(float(quota) / float(max.period_us)),
        });
        let local = stats.memory_events_local;
        let hits = local.and_then(|events| events.high?.checked_add(events.max?));
        let throttled = stats.throttled_local_us.or(stats.cpu.and_then(|cpu| cpu.throttled_us));
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
            cpu_seconds: stats.cpu.and_then(|cpu| cpu.usage_us).map(seconds),
            cpu_limit,
            throttled_seconds: throttled.map(seconds),
            memory_bytes: stats.memory_current,
            memory_max: stats.memory_max.map(LimitView::from),
            memory_high: stats.memory_high.map(LimitView::from),
            own_memory_limit_hits: hits,
            io_max: io_max.collect(),
        }
    }
}
