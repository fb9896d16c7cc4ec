//! Which Nodes a VM may leave, and which it may enter.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::{Basis, Freshness, NodeDemand, NodePressure, STALE_AFTER};
use jiff::Timestamp;

use crate::cluster::{Cluster, ClusterNode, HOSTNAME, HOUR, SCHEDULABLE, is_within};

/// Seconds without moves after a migration: the averages then describe the new distribution.
const REST: i64 = 600;

/// Memory contention from which a Node is no target: the default of `medium`.
const MEDIUM: u8 = 10;

/// Most VMs that enter a Node in an hour. A false value of one agent attracts no more.
const MOST_ARRIVALS: usize = 2;

/// A Node that can run VMs.
pub(crate) struct Assessed<'a> {
    pub(crate) node: &'a ClusterNode,
    /// `None` if there is no value that a plan can use.
    pub(crate) value: Option<Value>,
    /// Why it is neither source nor target.
    pub(crate) left_out: Option<String>,
    /// Why it is no target.
    pub(crate) not_target: Option<String>,
}

/// What a Node's agent published, as far as a plan uses it.
pub(crate) struct Value {
    pub(crate) demand: NodeDemand,
    /// CPU contention, 0 to 100.
    pub(crate) contention: u8,
    memory: Option<u8>,
    basis: Basis,
}

/// The Nodes that can run VMs.
pub(crate) fn assess(cluster: &Cluster, now: Timestamp) -> Vec<Assessed<'_>> {
    let nodes: Vec<&ClusterNode> =
        cluster.nodes.iter().filter(|node| node.labels.contains_key(SCHEDULABLE)).collect();
    let values: Vec<_> = nodes.iter().map(|node| value(cluster, node, now)).collect();
    let most = Basis::most_common(values.iter().flatten().map(|value| value.basis));
    let migrating = migrating(cluster, now);
    let assessed = nodes.into_iter().zip(values).map(|(node, value)| {
        let value = value.and_then(|value| {
            let basis = value.basis;
            if Some(basis) == most { Ok(value) } else { Err(format!("basis {basis}")) }
        });
        let is_migrating = migrating.contains(node.name.as_str());
        let left_out = value.as_ref().err().cloned().or_else(|| closed(node, is_migrating));
        let value = value.ok();
        let not_target = value.as_ref().and_then(|value| {
            short_of_memory(value.memory).or_else(|| crowded(cluster, node, now))
        });
        Assessed { node, value, left_out, not_target }
    });
    assessed.collect()
}

/// CPUs' worth of waiting of the VMs of each Node that may have some and whose agent publishes it.
pub(crate) fn waiting(cluster: &Cluster, now: Timestamp) -> BTreeMap<&str, f64> {
    let known = cluster.nodes.iter().filter(|node| is_schedulable(node)).filter_map(|node| {
        let value = value(cluster, node, now).ok()?;
        Some((node.name.as_str(), value.demand.waiting))
    });
    known.collect()
}

/// What a Node's agent published, or why it is not usable. Not more vCPUs than there are can wait.
fn value(cluster: &Cluster, node: &ClusterNode, now: Timestamp) -> Result<Value, String> {
    let prefix = &cluster.prefix;
    if !node.is_ready {
        return Err("not ready".into());
    }
    let pressure = NodePressure::from_annotations(prefix, &node.annotations);
    let pressure = pressure.map_err(|error| error.to_string())?.ok_or("no published score")?;
    match pressure.freshness(now, STALE_AFTER) {
        Freshness::Fresh { .. } => {}
        Freshness::Stale { age } => {
            return Err(format!("score is stale: {} min old", age.as_secs() / 60));
        }
        Freshness::Future => return Err("score is dated in the future".into()),
    }
    let contention = pressure.cpu.ok_or("unknown CPU contention")?;
    let demand = NodeDemand::from_annotations(prefix, &node.annotations);
    let mut demand = demand.map_err(|error| error.to_string())?.ok_or("no published demand")?;
    let of_node = cluster.vms.iter().filter(|vm| vm.node == node.name);
    demand.waiting = demand.waiting.min(of_node.map(|vm| vm.vcpus).sum());
    Ok(Value { demand, contention, memory: pressure.memory, basis: pressure.basis })
}

/// Whether KubeVirt runs VMs on a Node.
fn is_schedulable(node: &ClusterNode) -> bool {
    node.labels.get(SCHEDULABLE).is_some_and(|value| value == "true")
}

/// Why a Node with a value takes part in no move.
fn closed(node: &ClusterNode, is_migrating: bool) -> Option<String> {
    let not_true = format!("not schedulable for KubeVirt: label {SCHEDULABLE} is not true");
    let reasons = [
        (node.is_cordoned, "cordoned"),
        (!is_schedulable(node), &not_true),
        (node.cpus <= 0.0, "no CPU capacity"),
        (is_migrating, "part of a migration now or in the last 10 min"),
    ];
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason.to_owned())
}

/// Contention for CPUs does not exclude a target: its demand and the net gain decide, as simulated.
fn short_of_memory(contention: Option<u8>) -> Option<String> {
    match contention {
        None => Some("unknown memory contention".into()),
        Some(memory) if memory >= MEDIUM => Some(format!("memory contention {memory}")),
        Some(_) => None,
    }
}

/// The pod of a VM stays on the Node that it was created for, so young pods are arrivals.
fn crowded(cluster: &Cluster, node: &ClusterNode, now: Timestamp) -> Option<String> {
    let arrivals = cluster.pods.iter().filter(|pod| {
        pod.vm.is_some() && pod.is_on(&node.name) && is_within(HOUR, pod.created, now)
    });
    let count = arrivals.count();
    (count >= MOST_ARRIVALS).then(|| format!("{count} VMs arrived within an hour"))
}

/// Nodes with a migration now or lately.
fn migrating(cluster: &Cluster, now: Timestamp) -> BTreeSet<&str> {
    let mut nodes: BTreeSet<&str> = BTreeSet::new();
    for migration in &cluster.migrations {
        let is_active = migration.is_active() && !migration.is_stuck(now);
        if is_active {
            nodes.extend(
                cluster.vms.iter().find(|vm| migration.is_of(vm)).map(|vm| vm.node.as_str()),
            );
            let pods = cluster.pods.iter().filter(|pod| pod.is_target_of(migration));
            nodes.extend(pods.filter_map(|pod| pod.node.as_deref()));
            // Before there is a pod, it selects its target already.
            let is_selected = |node: &&ClusterNode| {
                migration.hostname.is_some()
                    && node.labels.get(HOSTNAME) == migration.hostname.as_ref()
            };
            let selected = cluster.nodes.iter().filter(is_selected);
            nodes.extend(selected.map(|node| node.name.as_str()));
        }
        if is_active || is_within(REST, migration.ended, now) {
            nodes.extend(
                [&migration.source, &migration.target].into_iter().flatten().map(String::as_str),
            );
        }
    }
    for vm in &cluster.vms {
        let latest = vm.migration.as_ref().filter(|latest| is_within(REST, latest.ended, now));
        let both = latest.map(|latest| [latest.source.as_str(), &latest.target]);
        nodes.extend(both.filter(|both| both.contains(&vm.node.as_str())).into_iter().flatten());
    }
    nodes
}
