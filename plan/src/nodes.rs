//! Which Nodes a VM may leave, and which it may enter.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::{Basis, Freshness, NodeDemand, NodePressure, STALE_AFTER};
use jiff::Timestamp;

use crate::cluster::{Cluster, ClusterNode, HOSTNAME, HOUR, Pod, SCHEDULABLE, is_within};

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
    /// Whether VMs may leave it.
    pub(crate) is_source: bool,
    /// Why no VM may enter it.
    pub(crate) left_out: Option<String>,
}

/// What a Node's agent published.
type Value = (NodePressure, NodeDemand);

/// The Nodes that can run VMs.
pub(crate) fn assess(cluster: &Cluster, now: Timestamp) -> Vec<Assessed<'_>> {
    let nodes: Vec<&ClusterNode> =
        cluster.nodes.iter().filter(|node| node.labels.contains_key(SCHEDULABLE)).collect();
    let values: Vec<_> = nodes.iter().map(|node| value(cluster, node, now)).collect();
    let most = Basis::most_common(values.iter().flatten().map(|(pressure, _)| pressure.basis));
    let migrating = migrating(cluster, now);
    let assessed = nodes.into_iter().zip(values).map(|(node, value)| {
        let value = value.and_then(|value| match value.0.basis {
            basis if Some(basis) == most => Ok(value),
            basis => Err(format!("basis {basis}")),
        });
        let is_migrating = migrating.contains(node.name.as_str());
        let closed = value.as_ref().err().cloned().or_else(|| closed(node, is_migrating));
        let (value, is_source) = (value.ok(), closed.is_none());
        let memory = value.as_ref().and_then(|(pressure, _)| pressure.memory);
        let left_out = closed.or_else(|| not_target(memory, arrivals(cluster, node, now)));
        Assessed { node, value, is_source, left_out }
    });
    assessed.collect()
}

/// CPUs' worth of waiting of the VMs of each Node that may have some and whose agent publishes it.
pub(crate) fn waiting(cluster: &Cluster, now: Timestamp) -> BTreeMap<&str, f64> {
    let known = cluster.nodes.iter().filter(|node| is_schedulable(node)).filter_map(|node| {
        let (_, demand) = value(cluster, node, now).ok()?;
        Some((node.name.as_str(), demand.waiting))
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
    pressure.cpu.ok_or("unknown CPU contention")?;
    let demand = NodeDemand::from_annotations(prefix, &node.annotations);
    let mut demand = demand.map_err(|error| error.to_string())?.ok_or("no published demand")?;
    let of_node = cluster.vms.iter().filter(|vm| vm.node == node.name);
    demand.waiting = demand.waiting.min(of_node.map(|vm| vm.vcpus).sum());
    Ok((pressure, demand))
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

/// Why a source is no target. Contention for CPUs does not exclude it: its demand and the net gain decide, as
/// simulated.
fn not_target(memory: Option<u8>, arrivals: usize) -> Option<String> {
    let reason = match memory {
        None => "unknown memory contention".into(),
        Some(memory) if memory >= MEDIUM => format!("memory contention {memory}"),
        Some(_) if arrivals >= MOST_ARRIVALS => format!("{arrivals} VMs arrived within an hour"),
        Some(_) => return None,
    };
    Some(format!("no target: {reason}"))
}

/// The pod of a VM stays on the Node that it was created for, so young pods are arrivals.
fn arrivals(cluster: &Cluster, node: &ClusterNode, now: Timestamp) -> usize {
    let is_young = |pod: &&Pod| pod.vm.is_some() && is_within(HOUR, pod.created, now);
    cluster.pods.iter().filter(is_young).filter(|pod| pod.is_on(&node.name)).count()
}

/// Nodes with a migration now or lately.
fn migrating(cluster: &Cluster, now: Timestamp) -> BTreeSet<&str> {
    let mut nodes: BTreeSet<&str> = BTreeSet::new();
    for migration in &cluster.migrations {
        let is_active = migration.is_active() && !migration.is_stuck(now);
        if is_active {
            let vms = cluster.vms.iter().filter(|vm| migration.is_of(vm));
            nodes.extend(vms.map(|vm| vm.node.as_str()));
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
            let both = [&migration.source, &migration.target].into_iter().flatten();
            nodes.extend(both.map(String::as_str));
        }
    }
    for vm in &cluster.vms {
        let latest = vm.migration.as_ref().filter(|latest| is_within(REST, latest.ended, now));
        let both = latest.map(|latest| [latest.source.as_str(), &latest.target]);
        nodes.extend(both.filter(|both| both.contains(&vm.node.as_str())).into_iter().flatten());
    }
    nodes
}
