//! The moves that a cluster should make now, and what stands in the way of others.

use std::collections::BTreeMap;

use crate::contract::Candidate;
use jiff::Timestamp;
use serde::Serialize;

use crate::cluster::{Cluster, HOSTNAME, HOUR, Migration, Pod, Vm, is_within};
use crate::fit::{Constraints, Free};
use crate::moves::{LEAST_DIFFERENCE, Movable, Move, Node, Rules, plan};
use crate::nodes::{self, Assessed};
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

/// What decides about moves.
struct Planning<'a> {
    cluster: &'a Cluster,
    rules: &'a Rules,
    now: Timestamp,
    nodes: Vec<Assessed<'a>>,
    free: Free<'a>,
}

/// The moves to make now.
#[must_use]
pub fn propose(cluster: &Cluster, rules: &Rules, now: Timestamp) -> Proposal {
    let (nodes, free) = (nodes::assess(cluster, now), Free::of(cluster));
    let mut proposal = Proposal::default();
    for Assessed { node, left_out, .. } in &nodes {
        let reason = left_out.clone();
        proposal.nodes.extend(reason.map(|reason| LeftOut { name: node.name.clone(), reason }));
    }
    let planning = Planning { cluster, rules, now, nodes, free };
    let most = planning.allowed();
    proposal.is_held = most.is_err();
    match most.and_then(|most| planning.moves(most, &mut proposal.vms)) {
        Ok(moves) => proposal.moves = moves,
        Err(reason) => proposal.none_because = Some(reason),
    }
    proposal
}

impl<'a> Planning<'a> {
    /// The number of moves that may begin now, at least one; otherwise the reason.
    fn allowed(&self) -> Result<usize, String> {
        let (Self { cluster, rules, nodes, .. }, now) = (self, self.now);
        if nodes.is_empty() {
            return Err("no Node can run VMs of KubeVirt".into());
        }
        let (without, all) = (nodes.iter().filter(|one| one.value.is_none()).count(), nodes.len());
        if without * 3 > all {
            let what = "nodes have no usable value, more than a third";
            return Err(format!("{without} of {all} {what}"));
        }
        let migrations = &cluster.migrations;
        let is_open =
            |name: &str| cluster.nodes.iter().any(|it| it.name == name && !it.is_cordoned);
        let evacuation = migrations.iter().find(|one| {
            let is_recent = one.is_evacuation && is_within(HOUR, one.created, now);
            is_recent && one.source.as_deref().is_some_and(is_open)
        });
        if let Some(Migration { namespace, vm, .. }) = evacuation {
            return Err(format!(
                "{namespace}/{vm} was evicted within an hour from a Node that is not cordoned: a descheduler may be \
                 at work"
            ));
        }
        let others = migrations.iter().filter(|one| !cluster.owns(one));
        let queued = others.filter(|one| one.is_queued() && !one.is_stuck(now)).count();
        if queued > 0 {
            return Err(format!("{queued} other migrations wait to start"));
        }
        // Each leaves its VM alone for an hour, so that those that were deleted or lost their label count as well.
        let is_left_alone = |one: &Migration| cluster.left_alone.contains_key(&one.name_of_vm());
        let is_own =
            |one: &&Migration| cluster.owns(one) || (!one.is_evacuation && is_left_alone(one));
        let own = || migrations.iter().filter(is_own);
        let active = own().filter(|one| one.is_active() && !one.is_stuck(now)).count();
        let begun = own().filter(|one| is_within(HOUR, one.created, now));
        let begun: Vec<String> = begun.map(Migration::name_of_vm).collect();
        let deleted = cluster.left_alone.keys().filter(|vm| !begun.contains(vm)).count();
        let begun = begun.len() + deleted;
        if active >= rules.most_active {
            return Err(format!("{active} own migrations are active, the limit"));
        }
        if begun >= rules.moves_per_hour {
            return Err(format!("{begun} own migrations began within an hour, the limit"));
        }
        Ok((rules.most_active - active).min(rules.moves_per_hour - begun))
    }

    fn moves(&self, most: usize, left_out: &mut Vec<LeftOut>) -> Result<Vec<ProposedMove>, String> {
        let mut found: Vec<Found<'_>> = Vec::new();
        for (at, source) in self.nodes.iter().enumerate().filter(|(_, one)| one.is_source) {
            for candidate in source.value.iter().flat_map(|(_, demand)| &demand.candidates) {
                match self.find(at, source, candidate) {
                    Ok(one) => found.push(one),
                    Err(reason) => left_out.push(reason),
                }
            }
        }
        let nodes: Vec<Node> = self.nodes.iter().map(|one| self.node(one)).collect();
        let movables: Vec<Movable> = found.iter().map(|one| one.movable.clone()).collect();
        let planned = plan(&nodes, &movables, self.rules, most);
        for (at, one) in found.iter().enumerate() {
            if !planned.iter().any(|planned| planned.vm == at) {
                let reason = unplanned(one, &nodes, self.rules);
                left_out.push(LeftOut { name: one.vm.full_name(), reason });
            }
        }
        if planned.is_empty() {
            let reason = match (found.is_empty(), left_out.is_empty()) {
                (true, true) => "no node that may lose a VM has candidates: none is contended",
                (true, false) => "no candidate may move",
                (false, _) => "no candidate has a target that gains",
            };
            return Err(reason.into());
        }
        Ok(planned.iter().filter_map(|one| self.proposed(one, &found, &nodes)).collect())
    }

    /// The VM of a candidate, if it may move. What the agent published is bounded by what KubeVirt knows.
    fn find(
        &self,
        at: usize,
        source: &Assessed<'_>,
        candidate: &Candidate,
    ) -> Result<Found<'a>, LeftOut> {
        let Self { cluster, rules, now, nodes, free } = self;
        let unknown = || LeftOut {
            name: format!("pod {}", candidate.uid),
            reason: "no running VM of the node has this pod".into(),
        };
        let is_it = |pod: &&Pod| pod.uid == candidate.uid && pod.is_on(&source.node.name);
        let pod = cluster.pods.iter().find(is_it).ok_or_else(unknown)?;
        let vm = cluster.vms.iter().find(|vm| pod.runs(vm)).ok_or_else(unknown)?;
        let refused = |reason| LeftOut { name: vm.full_name(), reason };
        if let Some(reason) = vms::obstacle(cluster, vm, pod, rules.rest, *now) {
            return Err(refused(reason));
        }
        let constraints = Constraints::of(cluster, vm, pod, source.node);
        let others = || nodes.iter().enumerate().filter(|(other, _)| *other != at);
        if !others().any(|(_, other)| constraints.select(other.node)) {
            return Err(refused("pinned to its node by its node selector or affinity".into()));
        }
        let (mut targets, mut obstacles) = (Vec::new(), BTreeMap::new());
        for (other, target) in others() {
            let obstacle = match &target.left_out {
                Some(_) => Some("is no target".to_owned()),
                None => constraints.obstacle(target.node, free),
            };
            match obstacle {
                None => targets.push(other),
                Some(obstacle) => *obstacles.entry(obstacle).or_default() += 1,
            }
        }
        let waiting = source.value.as_ref().map_or(0.0, |(_, demand)| demand.waiting);
        let demand = candidate.demand.min(vm.vcpus).min(source.node.cpus);
        let relief = candidate.relief.min(demand + waiting);
        let movable = Movable { node: at, demand, relief, memory: candidate.memory, targets };
        Ok(Found { vm, movable, obstacles })
    }

    /// Demand counts that of VMs with CPUs of their own, too: so a Node with such VMs takes rather too few. The kubelet
    /// gave them no more than their pods request, whatever a tenant wrote into a VM.
    fn node(&self, Assessed { node, value, .. }: &Assessed<'_>) -> Node {
        let Cluster { vms, pods, .. } = self.cluster;
        let requested = |vm: &Vm| {
            let pod = pods.iter().find(|pod| pod.runs(vm));
            pod.and_then(|pod| pod.requests.get("cpu")).copied().unwrap_or(0.0)
        };
        let of_node = vms.iter().filter(|vm| vm.exclusive_cpus > 0.0 && vm.node == node.name);
        let exclusive: f64 = of_node.map(|vm| vm.exclusive_cpus.min(requested(vm))).sum();
        let value = value.as_ref();
        Node {
            cpus: (node.cpus - exclusive).max(1.0),
            demand: value.map_or(0.0, |(_, demand)| demand.vms + demand.others),
            contention: value.and_then(|(pressure, _)| pressure.cpu).unwrap_or_default(),
        }
    }

    fn proposed(&self, one: &Move, found: &[Found<'_>], nodes: &[Node]) -> Option<ProposedMove> {
        let Found { vm, movable, .. } = found.get(one.vm)?;
        let [source, target] = [self.nodes.get(one.source)?.node, self.nodes.get(one.target)?.node];
        let load = |at: usize, cpus, added: f64| {
            let before = nodes.get(at)?.demand;
            Some(Load { before, after: (before + added).max(0.0), cpus })
        };
        Some(ProposedMove {
            namespace: vm.namespace.clone(),
            name: vm.name.clone(),
            uid: vm.uid.clone(),
            source: source.name.clone(),
            target: target.name.clone(),
            hostname: target.labels.get(HOSTNAME)?.clone(),
            demand: movable.demand,
            gain: one.gain,
            reason: match one.of {
                1 => "the only possible move".into(),
                of => format!("most gain of {of} possible moves"),
            },
            source_demand: load(one.source, source.cpus, -movable.demand)?,
            target_demand: load(one.target, target.cpus, movable.demand)?,
        })
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

#[cfg(test)]
pub(crate) mod tests;
