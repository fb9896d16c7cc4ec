//! A cgroup in `/snapshot.json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::cgroup_path::{Place, PodLevel, Qos, Runtime, Unit};
use crate::identity::{Vm, Workload};
use crate::kernel::cgroup_tree::Cgroup;
use crate::kernel::limits::Limit;
use crate::relief::Relief;
use crate::sample::{CgroupSample, CgroupStats};
use crate::score::{ContainerScore, PerResource};
use crate::waiting::series::PressureShares;
use crate::waiting::{Population, Ratio};

#[derive(Debug, Serialize)]
pub struct CgroupView<'a> {
    /// Path from the root of the hierarchy.
    pub id: &'a str,
    /// `root`, `host`, `pod`, `container`, `sandbox`, `monitor`, `nested` or `unknown`.
    pub level: &'static str,
    #[serde(flatten)]
    pub path: PathView<'a>,
    #[serde(flatten)]
    pub workload: WorkloadView<'a>,
    /// Whether this is a container, or a top-level cgroup outside pods: the cgroups whose CPU use
    /// adds up to the node's.
    pub is_user: bool,
    /// Whether this is a VM container of KubeVirt, or a scored VM of another stack.
    pub is_vm: bool,
    /// Shares of the window in which its tasks waited (PSI).
    pub pressure: PerResource<PressureShares>,
    /// Its part in the score; absent for cgroups that are not scored.
    pub scored: Option<ScoredView<'a>>,
    /// Usage and limits; absent where they were not read.
    #[serde(flatten)]
    pub usage: Option<UsageView>,
}

/// What the path contains.
#[derive(Debug, Default, Serialize)]
pub struct PathView<'a> {
    /// Pod UID.
    pub pod_uid: Option<&'a str>,
    /// QoS class of the pod.
    pub qos: Option<Qos>,
    /// Container ID.
    pub container_id: Option<&'a str>,
    /// Container runtime.
    pub runtime: Option<Runtime>,
    /// Unescaped name of the systemd unit; absent in pods, and for units below others.
    pub unit: Option<String>,
}

/// What the API server has about the pod.
#[derive(Debug, Default, Serialize)]
pub struct WorkloadView<'a> {
    /// Namespace of the pod; absent until the pod is listed.
    pub namespace: Option<&'a str>,
    /// Name of the pod.
    pub pod: Option<&'a str>,
    /// Name of the container in the pod; empty for the pod itself.
    pub container: Option<&'a str>,
    /// Name of the VM that the pod runs, or the unit, from its name.
    pub vm: Option<Cow<'a, str>>,
    /// CPU request of the container, in CPUs.
    pub cpu_request: Option<f64>,
    /// CPU ready that the owner of the VM accepts, 0 to 1; absent without the annotation.
    pub cpu_wait_budget: Option<f64>,
    /// Whether the pod is the target of a live migration whose VM still runs on another node.
    pub awaits_handover: Option<bool>,
}

/// A container's or unit's part in the score.
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

impl ReliefView {
    pub(super) fn of(relief: &Relief) -> Self {
        Self { cpus: (relief.cpus * 1e4).round() / 1e4, score_without: relief.score_without }
    }
}

impl<'a> CgroupView<'a> {
    pub(super) fn new(
        sample: &'a CgroupSample,
        is_user: bool,
        pressure: PerResource<PressureShares>,
        scored: Option<ScoredView<'a>>,
        population: Option<Population>,
    ) -> Self {
        let cgroup: &Cgroup = &sample.cgroup;
        let workload = sample.workload.as_deref();
        let unit = outermost_unit(cgroup);
        let is_unit_vm = unit.as_ref().is_some_and(|unit| unit.vm.is_some())
            && scored.is_some()
            && population == Some(Population::Vms);
        let (unit, unit_vm) = unit.map(|unit| (unit.name, unit.vm)).unzip();
        let mut names = workload.map(WorkloadView::new).unwrap_or_default();
        names.vm = names.vm.or(unit_vm.flatten().map(Cow::Owned));
        Self {
            id: &cgroup.path,
            level: level(&cgroup.place),
            path: PathView { unit, ..PathView::new(&cgroup.place) },
            workload: names,
            is_user,
            is_vm: is_unit_vm || workload.is_some_and(Workload::is_vm),
            pressure,
            scored,
            usage: sample.stats.as_deref().map(UsageView::new),
        }
    }
}

/// Units below others, as those of a user's session, can have the names of other units.
fn outermost_unit(cgroup: &Cgroup) -> Option<Unit> {
    let is_below = [".service/", ".scope/"].iter().any(|end| cgroup.path.contains(end));
    let is_outermost = cgroup.place == Place::Host && !is_below;
    is_outermost.then(|| Unit::of_path(&cgroup.path)).flatten()
}

fn level(place: &Place) -> &'static str {
    match place {
        Place::Root => "root",
        Place::Host => "host",
        Place::Pod(pod) => match pod.level {
            PodLevel::Pod => "pod",
            PodLevel::Container(_) => "container",
            PodLevel::Sandbox(_) => "sandbox",
            PodLevel::Nested(_) => "nested",
            PodLevel::Monitor => "monitor",
            PodLevel::Unknown => "unknown",
        },
    }
}

impl<'a> PathView<'a> {
    fn new(place: &'a Place) -> Self {
        let Place::Pod(pod) = place else { return Self::default() };
        let container = match &pod.level {
            PodLevel::Container(container)
            | PodLevel::Sandbox(container)
            | PodLevel::Nested(container) => Some(container),
            PodLevel::Pod | PodLevel::Monitor | PodLevel::Unknown => None,
        };
        Self {
            pod_uid: Some(&pod.uid),
            qos: Some(pod.qos),
            container_id: container.map(|container| &*container.id),
            runtime: container.map(|container| container.runtime),
            unit: None,
        }
    }
}

impl<'a> WorkloadView<'a> {
    fn new(workload: &'a Workload) -> Self {
        let vm = workload.vm.as_deref();
        Self {
            namespace: Some(&workload.namespace),
            pod: Some(&workload.pod),
            container: Some(&workload.container),
            vm: vm.map(|vm| Cow::Borrowed(&*vm.name)),
            cpu_request: workload.cpu_request.map(|millis| float(millis) / 1000.0),
            cpu_wait_budget: vm.and_then(Vm::cpu_wait_budget_ratio),
            awaits_handover: vm.map(|vm| vm.awaits_handover),
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
