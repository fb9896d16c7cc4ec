//! The moves that a cluster should make now, and what stands in the way of others.

use std::collections::BTreeMap;

use crate::contract::Candidate;
use jiff::Timestamp;
use serde::Serialize;

use crate::cluster::{Cluster, HOSTNAME, HOUR, Migration, Pod, Vm, is_within};
use crate::fit::{Constraints, Free};
use crate::moves::{LEAST_DIFFERENCE, Movable, Move, Node, Rules, plan};
use crate::nodes::{self, Assessed, Value};
use crate::vms;

/// The demand of a node, with its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Load {
    /// CPUs that its VMs and all else would use without waiting, before the move.
    pub before: f64,
    /// The same after the move.
    pub after: f64,
    /// Number of CPUs.
    pub cpus: f64,
}

/// A move to make.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProposedMove {
    /// Namespace of the VM.
    pub namespace: String,
    /// Name of the VM.
    #[serde(rename = "vm")]
    pub name: String,
    /// UID of the VM.
    #[serde(skip)]
    pub uid: String,
    /// The Node that it leaves.
    pub source: String,
    /// The Node that it enters.
    pub target: String,
    /// The target's value of the label [`HOSTNAME`].
    #[serde(skip)]
    pub hostname: String,
    /// CPUs that the VM would use without waiting.
    pub demand: f64,
    /// CPUs' worth of waiting that end, on both nodes together.
    pub gain: f64,
    /// Why this VM and this target.
    pub reason: String,
    /// Demand of the source.
    pub source_demand: Load,
    /// Demand of the target.
    pub target_demand: Load,
}

impl ProposedMove {
    /// Namespace and name of the VM.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A VM or a Node without a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Name of the Node, or namespace and name of the VM.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A plan, with explanations.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Proposal {
    /// The moves, the largest gain first.
    pub moves: Vec<ProposedMove>,
    /// Candidates that do not move.
    pub vms: Vec<LeftOut>,
    /// Nodes that are no source or no target.
    pub nodes: Vec<LeftOut>,
    /// Why there are no moves.
    #[serde(rename = "noMovesBecause")]
    pub none_because: Option<String>,
    /// Whether there can be none, whatever the candidates.
    #[serde(skip)]
    pub is_held: bool,
}

/// A candidate that may move.
struct Found<'a> {
    vm: &'a Vm,
    movable: Movable,
    /// Why Nodes do not fit, with their number.
    obstacles: BTreeMap<String, usize>,
}

/// The moves to make now.
#[must_use]
pub fn propose(cluster: &Cluster, rules: &Rules, now: Timestamp) -> Proposal {
    let nodes = nodes::assess(cluster, now);
    let mut proposal = Proposal::default();
    for one in &nodes {
        let reason = one.left_out.clone();
        let reason = reason.or_else(|| Some(format!("no target: {}", one.not_target.as_ref()?)));
        let name = one.node.name.clone();
        proposal.nodes.extend(reason.map(|reason| LeftOut { name, reason }));
    }
    let most = allowed(cluster, &nodes, rules, now);
    proposal.is_held = most.is_err();
    let moves = most.and_then(|most| moves(cluster, &nodes, rules, now, most, &mut proposal.vms));
    match moves {
        Ok(moves) => proposal.moves = moves,
        Err(reason) => proposal.none_because = Some(reason),
    }
    proposal
}

fn moves(
    cluster: &Cluster,
    nodes: &[Assessed<'_>],
    rules: &Rules,
    now: Timestamp,
    most: usize,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<ProposedMove>, String> {
    let free = Free::of(cluster);
    let mut found: Vec<Found<'_>> = Vec::new();
    for (at, source) in nodes.iter().enumerate().filter(|(_, one)| one.left_out.is_none()) {
        let Some(Value { demand, .. }) = &source.value else { continue };
        for candidate in &demand.candidates {
            match find(cluster, nodes, at, candidate, &free, rules, now) {
                Ok(one) => found.push(one),
                Err(reason) => left_out.push(reason),
            }
        }
    }
    let of_nodes: Vec<Node> = nodes.iter().map(|one| node(cluster, one)).collect();
    let movables: Vec<Movable> = found.iter().map(|one| one.movable.clone()).collect();
    let planned = plan(&of_nodes, &movables, rules, most);
    for (at, one) in found.iter().enumerate() {
        if !planned.iter().any(|planned| planned.vm == at) {
            let reason = unplanned(one, &of_nodes, rules);
            left_out.push(LeftOut { name: one.vm.full_name(), reason });
        }
    }
    if planned.is_empty() {
        return Err(match (found.is_empty(), left_out.is_empty()) {
            (true, true) => "no node that may lose a VM has candidates: none is contended".into(),
            (true, false) => "no candidate may move".into(),
            (false, _) => "no candidate has a target that gains".into(),
        });
    }
    Ok(planned.iter().filter_map(|one| proposed(one, &found, nodes, &of_nodes)).collect())
}

/// The number of moves that may begin now, at least one; otherwise the reason.
fn allowed(
    cluster: &Cluster,
    nodes: &[Assessed<'_>],
    rules: &Rules,
    now: Timestamp,
) -> Result<usize, String> {
    let without = nodes.iter().filter(|one| one.value.is_none()).count();
    if nodes.is_empty() {
        return Err("no Node can run VMs of KubeVirt".into());
    }
    if without * 3 > nodes.len() {
        let all = nodes.len();
        return Err(format!("{without} of {all} nodes have no usable value, more than a third"));
    }
    let migrations = &cluster.migrations;
    let is_open =
        |name: &String| cluster.nodes.iter().any(|node| node.name == *name && !node.is_cordoned);
    let evacuation = migrations.iter().find(|one| {
        let is_recent = one.is_evacuation && is_within(HOUR, one.created, now);
        is_recent && one.source.as_ref().is_some_and(is_open)
    });
    if let Some(Migration { namespace, vm, .. }) = evacuation {
        return Err(format!(
            "{namespace}/{vm} was evicted within an hour from a Node that is not cordoned: a descheduler may be at work"
        ));
    }
    let is_queued = |one: &&Migration| !cluster.owns(one) && one.is_queued() && !one.is_stuck(now);
    let queued = migrations.iter().filter(is_queued).count();
    if queued > 0 {
        return Err(format!("{queued} other migrations wait to start"));
    }
    // Each leaves its VM alone for an hour, so that those that were deleted or lost their label count as well.
    let is_left_alone = |one: &Migration| cluster.left_alone.contains_key(&one.name_of_vm());
    let is_own = |one: &&Migration| cluster.owns(one) || (!one.is_evacuation && is_left_alone(one));
    let own = || migrations.iter().filter(is_own);
    let active = own().filter(|one| one.is_active() && !one.is_stuck(now)).count();
    let begun = own().filter(|one| is_within(HOUR, one.created, now)).map(Migration::name_of_vm);
    let begun: Vec<String> = begun.collect();
    let deleted = cluster.left_alone.keys().filter(|vm| !begun.contains(vm)).count();
    let begun = begun.len() + deleted;
    let left = rules.most_active.saturating_sub(active);
    if left == 0 {
        return Err(format!("{active} own migrations are active, the limit"));
    }
    match rules.moves_per_hour.saturating_sub(begun) {
        0 => Err(format!("{begun} own migrations began within an hour, the limit")),
        of_hour => Ok(left.min(of_hour)),
    }
}

/// The VM of a candidate, if it may move. What the agent published is bounded by what KubeVirt knows.
fn find<'a>(
    cluster: &'a Cluster,
    nodes: &[Assessed<'a>],
    at: usize,
    candidate: &Candidate,
    free: &Free<'_>,
    rules: &Rules,
    now: Timestamp,
) -> Result<Found<'a>, LeftOut> {
    let unknown = || LeftOut {
        name: format!("pod {}", candidate.uid),
        reason: "no running VM of the node has this pod".into(),
    };
    let Assessed { node: source, value, .. } = nodes.get(at).ok_or_else(unknown)?;
    let is_it = |pod: &&Pod| pod.uid == candidate.uid && pod.is_on(&source.name);
    let pod = cluster.pods.iter().find(is_it).ok_or_else(unknown)?;
    let vm = cluster.vms.iter().find(|vm| pod.runs(vm)).ok_or_else(unknown)?;
    let refused = |reason| LeftOut { name: vm.full_name(), reason };
    if let Some(reason) = vms::obstacle(cluster, vm, pod, rules.rest, now) {
        return Err(refused(reason));
    }
    let constraints = Constraints::of(cluster, vm, pod, source);
    let others = || nodes.iter().enumerate().filter(|(other, _)| *other != at);
    if !others().any(|(_, other)| constraints.select(other.node)) {
        return Err(refused("pinned to its node by its node selector or affinity".into()));
    }
    let (mut targets, mut obstacles) = (Vec::new(), BTreeMap::new());
    for (other, target) in others() {
        let closed = target.left_out.is_some() || target.not_target.is_some();
        let obstacle = if closed {
            Some("is no target".to_owned())
        } else {
            constraints.obstacle(target.node, free)
        };
        match obstacle {
            None => targets.push(other),
            Some(obstacle) => *obstacles.entry(obstacle).or_default() += 1,
        }
    }
    let waiting = value.as_ref().map_or(0.0, |value| value.demand.waiting);
    let demand = candidate.demand.min(vm.vcpus).min(source.cpus);
    let relief = candidate.relief.min(demand + waiting);
    let movable = Movable { node: at, demand, relief, memory: candidate.memory, targets };
    Ok(Found { vm, movable, obstacles })
}

/// Demand counts that of VMs with CPUs of their own, too: so a Node with such VMs takes rather too few. The kubelet
/// gave them no more than their pods request, whatever a tenant wrote into a VM.
fn node(cluster: &Cluster, one: &Assessed<'_>) -> Node {
    let value = one.value.as_ref();
    let requested = |vm: &Vm| {
        let pod = cluster.pods.iter().find(|pod| pod.runs(vm));
        pod.and_then(|pod| pod.requests.get("cpu")).copied().unwrap_or(0.0)
    };
    let of_node =
        cluster.vms.iter().filter(|vm| vm.exclusive_cpus > 0.0 && vm.node == one.node.name);
    let exclusive: f64 = of_node.map(|vm| vm.exclusive_cpus.min(requested(vm))).sum();
    Node {
        cpus: (one.node.cpus - exclusive).max(1.0),
        demand: value.map_or(0.0, |value| value.demand.vms + value.demand.others),
        contention: value.map_or(0, |value| value.contention),
    }
}

fn unplanned(one: &Found<'_>, nodes: &[Node], rules: &Rules) -> String {
    if one.movable.targets.is_empty() {
        let counts = one.obstacles.iter().map(|(what, count)| format!("{what} ({count})"));
        return format!("no node fits: {}", counts.collect::<Vec<_>>().join(", "));
    }
    if plan(nodes, std::slice::from_ref(&one.movable), rules, 1).is_empty() {
        let Rules { least_gain, .. } = rules;
        return format!(
            "no target gains {least_gain} CPUs on both nodes together, and has {LEAST_DIFFERENCE} points less CPU \
             contention"
        );
    }
    "a move with a larger gain comes first".into()
}

fn proposed(
    one: &Move,
    found: &[Found<'_>],
    assessed: &[Assessed<'_>],
    nodes: &[Node],
) -> Option<ProposedMove> {
    let Found { vm, movable, .. } = found.get(one.vm)?;
    let name = |at: usize| Some(assessed.get(at)?.node.name.clone());
    let load = |at: usize, added: f64| {
        let (before, cpus) = (nodes.get(at)?.demand, assessed.get(at)?.node.cpus);
        Some(Load { before, after: (before + added).max(0.0), cpus })
    };
    Some(ProposedMove {
        namespace: vm.namespace.clone(),
        name: vm.name.clone(),
        uid: vm.uid.clone(),
        source: name(one.source)?,
        target: name(one.target)?,
        hostname: assessed.get(one.target)?.node.labels.get(HOSTNAME)?.clone(),
        demand: movable.demand,
        gain: one.gain,
        reason: match one.of {
            1 => "the only possible move".into(),
            of => format!("most gain of {of} possible moves"),
        },
        source_demand: load(one.source, -movable.demand)?,
        target_demand: load(one.target, movable.demand)?,
    })
}

#[cfg(test)]
pub(crate) mod tests;
