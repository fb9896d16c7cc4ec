//! A cgroup in `/snapshot.json`.

use crate::cgroup_path::{Place, Unit};
use crate::client::snapshot::{self, Limit, Pressure, Scored, Waiting};
use crate::identity::Workload;
use crate::kernel::cgroup_tree::Cgroup;
use crate::kernel::resource::PerResource;
use crate::relief::Relief;
use crate::sample::CgroupSample;
use crate::score::ContainerScore;
use crate::waiting::series::PressureShares;
use crate::waiting::{Population, Ratio};

pub(super) fn cgroup(
    sample: &CgroupSample,
    is_user: bool,
    pressure: PerResource<Pressure>,
    scored: Option<Scored>,
    population: Option<Population>,
) -> snapshot::Cgroup {
    let (cgroup, workload) = (&*sample.cgroup, sample.workload.as_deref());
    let stats = sample.stats.as_deref();
    let unit = outermost_unit(cgroup);
    let is_unit_vm = unit.as_ref().is_some_and(|unit| unit.vm.is_some())
        && scored.is_some()
        && population == Some(Population::Vms);
    let (unit, unit_vm) = unit.map(|unit| (unit.name, unit.vm)).unzip();
    let vm = workload.and_then(|workload| workload.vm.as_deref());
    snapshot::Cgroup {
        id: cgroup.path.to_string(),
        level: level(&cgroup.place).into(),
        unit,
        namespace: workload.map(|workload| workload.namespace.to_string()),
        pod: workload.map(|workload| workload.pod.to_string()),
        container: workload.map(|workload| workload.container.to_string()),
        vm: vm.map(|vm| vm.name.to_string()).or(unit_vm.flatten()),
        cpu_request: workload
            .and_then(|workload| workload.cpu_request)
            .map(|millis| millis as f64 / 1000.0),
        cpu_wait_budget: vm.and_then(|vm| vm.cpu_wait_budget),
        awaits_handover: vm.map(|vm| vm.awaits_handover),
        is_user,
        is_vm: is_unit_vm || workload.is_some_and(Workload::is_vm),
        pressure,
        scored,
        cpu_seconds: stats
            .and_then(|stats| stats.cpu_stat?.usage_us)
            .map(|micros| micros as f64 / 1e6),
        used: None,
        cpu_limit: stats.and_then(|stats| stats.cpu_max).map(|max| limit(max.cpus())),
        memory_bytes: stats.and_then(|stats| stats.memory_current),
        memory_max: stats
            .and_then(|stats| stats.memory_max)
            .map(|max| limit(max.map(|bytes| bytes as f64))),
    }
}

pub(super) fn scored(container: &ContainerScore, relief: Option<&Relief>) -> Scored {
    Scored {
        usage: container.usage,
        contention: container.contention.map(|value| value.map(share)),
        cpu_ready: container.cpu_ready.map(share),
        pressure: container.pressure.map(pressure),
        waiting: container.waiting.map(|wait| {
            wait.map(|wait| Waiting {
                raw: share(wait.raw),
                own_limit: share(wait.own_limit),
                node: Some(share(wait.node)),
                contention: Some(share(wait.contention)),
                demand: Some(wait.demand),
            })
        }),
        iothreads_waiting: container.iothreads_waiting.map(rounded),
        relief: relief.map(|relief| snapshot::Relief {
            cpus: rounded(relief.cpus),
            score_without: Some(share(relief.score_without)),
        }),
    }
}

fn limit(at: Option<f64>) -> Limit {
    at.map_or(Limit::Max, Limit::At)
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
        Place::Pod(pod) => (&pod.level).into(),
    }
}

/// To four decimals: more would be noise.
fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

pub(super) fn share(ratio: Ratio) -> f64 {
    rounded(ratio.get())
}

pub(super) fn pressure(shares: PressureShares) -> Pressure {
    Pressure { some: shares.some.map(share), full: shares.full.map(share) }
}
