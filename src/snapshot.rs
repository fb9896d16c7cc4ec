//! Joins a sample with the score of the latest tick for `/snapshot.json`.

use std::collections::HashMap;
use std::time::Instant;

use crate::cgroup_path::{Place, Unit};
use crate::client::snapshot::{
    self, Agent, Levels, Limit, Node, Pressure, Scored, Snapshot, Waiting,
};
use crate::contract::Thresholds;
use crate::identity::Workload;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::relief::{Assessment, Relief};
use crate::sample::{CgroupSample, NodeRates, ScrapeSample};
use crate::sampler::WARM_UP;
use crate::score::{Absence, ContainerScore, PerResource, Resource};
use crate::waiting::series::PressureShares;
use crate::waiting::{Population, Ratio};

/// Properties that do not change while the agent runs.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// Name of the Node, or of the host outside a cluster.
    pub name: Option<String>,
    /// `--scope`, as a word.
    pub scope: &'static str,
    /// Scores at which the levels begin.
    pub levels: Thresholds,
    /// Resources that make up the score.
    pub counted: Vec<Resource>,
    /// When this process began to read.
    pub started_at: Instant,
}

/// The snapshot of a sample, with the score of the latest tick.
pub fn snapshot(
    identity: &NodeIdentity,
    sample: &ScrapeSample,
    assessment: Option<&Assessment>,
    agent: Option<Agent>,
) -> Snapshot {
    let score = assessment.map(|latest| &latest.score);
    let population = score.and_then(|score| score.population);
    let containers = score.into_iter().flat_map(|score| &score.containers);
    let containers: HashMap<CgroupId, _> =
        containers.map(|container| (container.measured.cgroup.id, container)).collect();
    let cgroups = sample.cgroups.iter().chain(&sample.beside).map(|member| {
        let id = member.cgroup.id;
        let relief = assessment.and_then(|latest| latest.relief.get(&id));
        let scored = containers.get(&id).map(|container| scored(container, relief));
        cgroup(member, sample.workloads.contains(&id), scored, population)
    });
    let missing = score.and_then(|score| score.missing(&identity.counted));
    let warms_up = missing.is_none_or(|missing| missing.absence == Absence::WarmingUp);
    let has_score = score.is_some_and(|score| score.score.is_some());
    let left = (identity.started_at + WARM_UP).checked_duration_since(sample.moment.at);
    let left = left.filter(|_| warms_up && !has_score);
    let missing = missing.filter(|_| left.is_none());
    let levels = [identity.levels.medium(), identity.levels.high()];
    let [medium, high] = levels.map(|points| f64::from(points) / 100.0);
    Snapshot {
        version: env!("CARGO_PKG_VERSION").into(),
        node_name: identity.name.clone(),
        levels: Levels { medium, high },
        scope: Some(identity.scope.into()),
        observed_at_ms: sample.moment.unix_ms,
        window_s: sample.window.map(|window| window.as_secs_f64()),
        basis: score.map(|score| score.basis.to_string()),
        warm_up_left_s: left.map(|left| left.as_secs_f64()),
        scored_at_ms: score.map(|score| score.moment.unix_ms),
        agent,
        node: Node {
            no_score: missing.map(|missing| format!("{missing}: {}", missing.remedy())),
            ..node(sample, assessment)
        },
        cgroups: cgroups.collect(),
    }
}

fn node(sample: &ScrapeSample, assessment: Option<&Assessment>) -> Node {
    let score = assessment.map(|latest| &latest.score);
    let shares = |shares: PerResource<Option<Ratio>>| shares.map(|one| one.map(share));
    let (rates, memory) = (NodeRates::of(&sample.node), sample.node.memory);
    Node {
        score: score.and_then(|score| score.score).map(share),
        no_score: None,
        contention: shares(score.map(|score| score.contention).unwrap_or_default()),
        latest: shares(score.map(|score| score.latest).unwrap_or_default()),
        population: score.and_then(|score| Some(score.population?.plural().to_owned())),
        contended: score.map_or(0, |score| score.contended),
        headroom_cpus: assessment.and_then(|latest| latest.headroom_cpus),
        pressure: rates.pressure.map(pressure),
        utilization: rates.utilization.map(share),
        steal: rates.steal.map(share),
        cpus: rates.cpus,
        memory_total: memory.and_then(|memory| memory.total),
        memory_available: memory.and_then(|memory| memory.available),
    }
}

fn cgroup(
    sample: &CgroupSample,
    is_user: bool,
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
        cpu_request: workload.and_then(|workload| Some(workload.cpu_request? as f64 / 1000.0)),
        cpu_wait_budget: vm.and_then(|vm| vm.cpu_wait_budget),
        awaits_handover: vm.map(|vm| vm.awaits_handover),
        is_user,
        is_vm: is_unit_vm || workload.is_some_and(Workload::is_vm),
        pressure: sample.rates.map(pressure),
        scored,
        cpu_seconds: stats.and_then(|stats| Some(stats.cpu_stat?.usage_us? as f64 / 1e6)),
        used: None,
        cpu_limit: stats.and_then(|stats| stats.cpu_max).map(|max| limit(max.cpus())),
        memory_bytes: stats.and_then(|stats| stats.memory_current),
        memory_max: stats.and_then(|stats| Some(limit(stats.memory_max?.map(|max| max as f64)))),
    }
}

fn scored(container: &ContainerScore, relief: Option<&Relief>) -> Scored {
    let measured = &container.measured;
    Scored {
        usage: measured.used,
        contention: container.contention.map(|value| value.map(share)),
        cpu_ready: container.cpu_ready.map(share),
        pressure: measured.pressure.map(pressure),
        waiting: measured.waits.map(|wait| {
            wait.ok().map(|wait| Waiting {
                raw: share(wait.raw),
                own_limit: share(wait.own_limit),
                node: Some(share(wait.node)),
                contention: Some(share(wait.contention)),
                demand: Some(wait.demand),
            })
        }),
        iothreads_waiting: measured.iothreads_waited.map(rounded),
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

fn share(ratio: Ratio) -> f64 {
    rounded(ratio.get())
}

fn pressure(shares: PressureShares) -> Pressure {
    Pressure { some: shares.some.map(share), full: shares.full.map(share) }
}
