//! Whether kube-scheduler would bind the pod of a migrated VM to a Node.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Amounts, Cluster, ClusterNode, HOSTNAME, Labels, Pod, Vm};
use crate::constraints::{repelling, selects_node, selects_pod};

/// Label of Nodes with the CPU model of the host, which a VM with the model `host-model` has.
const HOST_MODEL: &str = "host-model-cpu.node.kubevirt.io/";
/// Label of Nodes that can run such VMs of another Node.
const MIGRATABLE_MODEL: &str = "cpu-model-migration.node.kubevirt.io/";
/// Label of Nodes with a CPU feature that such VMs have.
const HOST_FEATURE: &str = "host-model-required-features.node.kubevirt.io/";
/// Label of Nodes that have a CPU feature.
const FEATURE: &str = "cpu-feature.node.kubevirt.io/";
/// Label of Nodes with the vendor of their CPUs, which a VM keeps.
const VENDOR: &str = "cpu-vendor.node.kubevirt.io/";
/// Label of the pods of one VM. KubeVirt keeps a migration's two pods apart by it.
const CREATED_BY: &str = "kubevirt.io/created-by";

/// What pods leave free on each Node.
pub(crate) struct Free<'a>(BTreeMap<&'a str, Amounts>);

impl<'a> Free<'a> {
    pub(crate) fn of(cluster: &'a Cluster) -> Self {
        let allocatable = |node: &'a ClusterNode| (node.name.as_str(), node.allocatable.clone());
        let mut free: BTreeMap<&str, Amounts> = cluster.nodes.iter().map(allocatable).collect();
        for pod in cluster.pods.iter().filter(|pod| !pod.has_ended()) {
            let Some(node) = pod.node.as_deref().and_then(|node| free.get_mut(node)) else {
                continue;
            };
            *node.entry("pods".into()).or_default() -= 1.0;
            for (resource, amount) in &pod.requests {
                *node.entry(resource.clone()).or_default() -= amount;
            }
        }
        Self(free)
    }

    /// The first resource that does not suffice.
    fn lacks<'b>(&self, node: &str, requests: &'b Amounts) -> Option<&'b str> {
        let amount = |resource: &str| {
            self.0.get(node).and_then(|free| free.get(resource)).copied().unwrap_or_default()
        };
        if amount("pods") < 1.0 {
            return Some("pods");
        }
        let mut wanted = requests.iter().filter(|(_, wanted)| **wanted > 0.0);
        wanted.find(|(resource, wanted)| amount(resource) < **wanted).map(|(name, _)| name.as_str())
    }
}

/// Where one VM may run.
pub(crate) struct Constraints<'a> {
    vm: &'a Vm,
    pod: &'a Pod,
    selector: Labels,
    /// Labels of Nodes, with the values that other pods exclude.
    excluded: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Constraints<'a> {
    pub(crate) fn of(cluster: &'a Cluster, vm: &'a Vm, pod: &'a Pod, source: &ClusterNode) -> Self {
        let nodes: BTreeMap<&str, &ClusterNode> =
            cluster.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let mut excluded = BTreeSet::new();
        for other in cluster.pods.iter().filter(|other| !other.has_ended()) {
            // Both pods of a VM: KubeVirt gives the term to the target of each migration.
            if other.labels.get(CREATED_BY) == Some(&vm.uid) {
                continue;
            }
            let Some(node) = other.node.as_deref().and_then(|name| nodes.get(name)) else {
                continue;
            };
            let terms = |one: &'a Pod, of: &'a Pod| {
                one.anti_affinity.iter().filter(move |term| selects_pod(term, one, of))
            };
            for term in terms(pod, other).chain(terms(other, pod)) {
                let key = term.topology_key.as_str();
                excluded.extend(node.labels.get(key).map(|value| (key, value.as_str())));
            }
        }
        Self { vm, pod, selector: selector(vm, pod, source), excluded }
    }

    /// Whether its node selector and node affinity allow a Node.
    pub(crate) fn select(&self, node: &ClusterNode) -> bool {
        let is_selected =
            self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let affinities = [&self.pod.node_affinity, &self.vm.node_affinity].into_iter().flatten();
        is_selected
            && affinities
                .into_iter()
                .all(|terms| terms.iter().any(|term| selects_node(term, &node.name, &node.labels)))
    }

    /// Why a Node does not fit, in a few words.
    pub(crate) fn obstacle(&self, node: &ClusterNode, free: &Free<'_>) -> Option<String> {
        let is_excluded =
            |(key, value): &(&str, &str)| node.labels.get(*key).is_some_and(|own| own == value);
        let taint = repelling(&node.taints, &self.pod.tolerations);
        let lacking = free.lacks(&node.name, &self.pod.requests);
        let obstacles = [
            (!node.labels.contains_key(HOSTNAME)).then(|| format!("no label {HOSTNAME}")),
            (!self.select(node)).then(|| "node selector or affinity".into()),
            taint.map(|taint| format!("taint {}", taint.key)),
            self.excluded.iter().any(is_excluded).then(|| "pod anti-affinity".into()),
            lacking.map(|resource| format!("requests of {resource}")),
        ];
        obstacles.into_iter().flatten().next()
    }
}

/// The node selector of the next pod of a VM. That of the present pod has what admission added, and also the
/// `addedNodeSelector` of an earlier migration by a plan.
fn selector(vm: &Vm, pod: &Pod, source: &ClusterNode) -> Labels {
    let of_pod = pod.node_selector.iter().filter(|(key, _)| key.as_str() != HOSTNAME);
    let mut selector: Labels =
        of_pod.chain(&vm.node_selector).map(|(key, value)| (key.clone(), value.clone())).collect();
    if !selector.keys().any(|key| key.starts_with(VENDOR)) {
        let vendor = source.labels.iter().find(|(key, _)| key.starts_with(VENDOR));
        selector.extend(vendor.map(|(key, _)| (key.clone(), "true".into())));
    }
    if vm.cpu_model == "host-passthrough" {
        let model = source.labels.iter().filter(|(key, _)| key.starts_with(HOST_MODEL));
        selector.extend(model.map(|(key, value)| (key.clone(), value.clone())));
    }
    let is_pinned =
        selector.keys().any(|key| key.starts_with(MIGRATABLE_MODEL) || key.starts_with(FEATURE));
    if vm.cpu_model == "host-model" && !is_pinned {
        for (key, value) in &source.labels {
            let model =
                key.strip_prefix(HOST_MODEL).map(|model| format!("{MIGRATABLE_MODEL}{model}"));
            let feature = key.strip_prefix(HOST_FEATURE).map(|name| format!("{FEATURE}{name}"));
            selector.extend(model.or(feature).map(|key| (key, value.clone())));
        }
    }
    selector
}

#[cfg(test)]
mod tests;
