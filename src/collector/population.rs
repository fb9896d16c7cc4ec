//! Selects the cgroups of a pass: the scored containers, the other workloads, and the cgroups above
//! all pods. Pure.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::cgroup_path::{Place, PodLevel, PodUid};
use crate::identity::Workload;
use crate::identity::matching::PodMatch;
use crate::kernel::cgroup_tree::CgroupNode;

/// A container in the tree, and its pod's labels.
pub(super) type Container<'a> = (&'a CgroupNode, Option<Arc<Workload>>);

/// The cgroups of pods by uid.
pub(super) type Pods<'a> = HashMap<&'a PodUid, &'a CgroupNode>;

/// The pods, and the containers that are scored: those in which VMs run, without targets of a
/// migration before their handover; on a node without VMs, all containers.
pub(super) fn scored_containers<'a>(
    nodes: impl Iterator<Item = (&'a CgroupNode, &'a PodMatch)>,
) -> (Pods<'a>, Vec<Container<'a>>) {
    let (mut pods, mut containers) = (HashMap::new(), Vec::new());
    for (node, found) in nodes {
        let Place::Pod(pod) = &node.cgroup.place else { continue };
        if pod.level == PodLevel::Pod {
            pods.insert(&pod.uid, node);
        }
        let workload = found.workload();
        let vm = workload.and_then(|workload| workload.vm.as_ref());
        let awaits = *found == PodMatch::NotListed || vm.is_some_and(|vm| vm.awaits_handover);
        if matches!(pod.level, PodLevel::Container(_)) && !awaits {
            containers.push((node, workload.cloned()));
        }
    }
    let is_vm = |(_, workload): &Container<'_>| workload.as_deref().is_some_and(Workload::is_vm);
    if containers.iter().any(is_vm) {
        containers.retain(is_vm);
    }
    (pods, containers)
}

/// Cgroups that together hold all tasks of the node, each task once: containers, and the topmost
/// cgroups without a pod below them.
pub(super) fn workloads<'a>(
    nodes: impl Iterator<Item = &'a CgroupNode> + Clone,
) -> impl Iterator<Item = &'a CgroupNode> {
    let above = above_pods(nodes.clone());
    nodes.filter(move |node| match &node.cgroup.place {
        Place::Pod(pod) => matches!(pod.level, PodLevel::Container(_)),
        Place::Host => {
            let path = Path::new(&*node.cgroup.path);
            !above.contains(path) && path.parent().is_some_and(|parent| above.contains(parent))
        }
        Place::Root | Place::MountUnit => false,
    })
}

/// Paths of the cgroups above pods: the root, kubepods and its QoS classes.
pub(super) fn above_pods<'a>(nodes: impl Iterator<Item = &'a CgroupNode>) -> HashSet<&'a Path> {
    let is_pod = |place: &Place| matches!(place, Place::Pod(pod) if pod.level == PodLevel::Pod);
    let pods = nodes.filter(|node| is_pod(&node.cgroup.place));
    // Hundreds of pods have a handful of parents.
    let parents: HashSet<&Path> =
        pods.filter_map(|pod| Path::new(&*pod.cgroup.path).parent()).collect();
    let above = parents.into_iter().flat_map(Path::ancestors);
    above.chain([Path::new("/")]).collect()
}
