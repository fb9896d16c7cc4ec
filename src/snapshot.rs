//! Joins a sample with the rates and the score of the latest tick for `/snapshot.json`.

mod cgroup;

use std::collections::HashMap;
use std::time::Instant;

use crate::client::snapshot::{Agent, Levels, Node, Snapshot};
use crate::contract::Thresholds;
use crate::kernel::cgroup_tree::CgroupId;
use crate::relief::Assessment;
use crate::sample::{ScrapeRates, ScrapeSample};
use crate::sampler::WARM_UP;
use crate::score::{Absence, PerResource, Resource};
use crate::waiting::Ratio;
use cgroup::{cgroup, pressure, scored, share};

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

/// The snapshot of a sample, with the rates and the score of the latest tick.
pub fn snapshot(
    identity: &NodeIdentity,
    sample: &ScrapeSample,
    rates: Option<&ScrapeRates>,
    assessment: Option<&Assessment>,
    agent: Option<Agent>,
) -> Snapshot {
    let score = assessment.map(|latest| &latest.score);
    let population = score.and_then(|score| score.population);
    let containers = score.into_iter().flat_map(|score| &score.containers);
    let containers: HashMap<CgroupId, _> =
        containers.map(|container| (container.cgroup.id, container)).collect();
    let cgroups = sample.cgroups.iter().chain(&sample.beside).map(|member| {
        let id = member.cgroup.id;
        let shares = rates.and_then(|rates| rates.cgroups.get(&id)).copied();
        let relief = assessment.and_then(|latest| latest.relief.get(&id));
        let scored = containers.get(&id).map(|container| scored(container, relief));
        let (is_user, shares) = (sample.workloads.contains(&id), shares.unwrap_or_default());
        cgroup(member, is_user, shares.map(pressure), scored, population)
    });
    let missing = score.and_then(|score| score.missing(&identity.counted));
    let warms_up = missing.is_none_or(|missing| missing.absence == Absence::WarmingUp);
    let has_score = score.is_some_and(|score| score.score.is_some());
    let left = (identity.started_at + WARM_UP).checked_duration_since(sample.moment.at);
    let left = left.filter(|_| warms_up && !has_score);
    let missing = missing.filter(|_| left.is_none());
    let points = |points| f64::from(points) / 100.0;
    Snapshot {
        version: env!("CARGO_PKG_VERSION").into(),
        node_name: identity.name.clone(),
        levels: Levels {
            medium: points(identity.levels.medium),
            high: points(identity.levels.high),
        },
        scope: Some(identity.scope.into()),
        observed_at_ms: sample.moment.unix_ms,
        window_s: rates.map(|rates| rates.window.as_secs_f64()),
        basis: score.map(|score| score.basis.to_string()),
        warm_up_left_s: left.map(|left| left.as_secs_f64()),
        scored_at_ms: score.map(|score| score.moment.unix_ms),
        agent,
        node: Node {
            no_score: missing.map(|missing| format!("{missing}: {}", missing.remedy())),
            ..node(sample, rates, assessment)
        },
        cgroups: cgroups.collect(),
    }
}

fn node(
    sample: &ScrapeSample,
    rates: Option<&ScrapeRates>,
    assessment: Option<&Assessment>,
) -> Node {
    let score = assessment.map(|latest| &latest.score);
    let shares = |shares: PerResource<Option<Ratio>>| shares.map(|one| one.map(share));
    let memory = sample.node.memory;
    Node {
        score: score.and_then(|score| score.score).map(share),
        no_score: None,
        contention: shares(score.map(|score| score.contention).unwrap_or_default()),
        latest: shares(score.map(|score| score.latest).unwrap_or_default()),
        population: score.and_then(|score| Some(score.population?.plural().to_owned())),
        contended: score.map_or(0, |score| score.contended),
        headroom_cpus: assessment.and_then(|latest| latest.headroom_cpus),
        pressure: rates.map(|rates| rates.node.pressure).unwrap_or_default().map(pressure),
        utilization: rates.and_then(|rates| rates.node.utilization).map(share),
        steal: rates.and_then(|rates| rates.node.steal).map(share),
        cpus: sample.node.cpu_times.as_ref().map(|times| times.value.each.len() as u64),
        memory_total: memory.and_then(|memory| memory.total),
        memory_available: memory.and_then(|memory| memory.available),
    }
}
