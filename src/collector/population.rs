//! Which cgroups a pass is about: the scored containers, the other workloads, and the cgroups
//! above all pods. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cgroup_path::{Place, PodLevel, PodUid};
use crate::identity::Workload;
use crate::identity::matching::Found;
use crate::kernel::cgroup_tree::CgroupNode;

/// A container in the tree, and its pod's labels.
pub(super) type Container<'a> = (&'a CgroupNode, Option<Arc<Workload>>);

/// The cgroups of pods by uid.
pub(super) type Pods<'a> = HashMap<&'a PodUid, &'a CgroupNode>;

/// The pods, and the containers that are scored: those in which VMs run, without targets of a
/// migration before their handover; on a node without VMs, all containers.
pub(super) fn scored_containers<'a>(
    nodes: impl Iterator<Item = (&'a CgroupNode, &'a Found)>,
) -> (Pods<'a>, Vec<Container<'a>>) {
    let (mut pods, mut containers) = (HashMap::new(), Vec::new());
    for (node, found) in nodes {
        let Place::Pod(pod) = &node.cgroup.place else { continue };
        if pod.level == PodLevel::Pod {
            pods.insert(&pod.uid, node);
        }
        let workload = found.workload();
        let vm = workload.and_then(|workload| workload.vm.as_ref());
        let awaits = *found == Found::NotYet || vm.is_some_and(|vm| vm.awaits_handover);
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
            let path = &*node.cgroup.path;
            !above.contains(path) && ancestors(path).all(|path| above.contains(path))
        }
        Place::Root | Place::MountUnit => false,
    })
}

/// Paths of the cgroups above pods: the root, kubepods and its QoS classes.
pub(super) fn above_pods<'a>(nodes: impl Iterator<Item = &'a CgroupNode>) -> HashSet<&'a str> {
    let is_pod = |place: &Place| matches!(place, Place::Pod(pod) if pod.level == PodLevel::Pod);
    let pods = nodes.filter(|node| is_pod(&node.cgroup.place));
    // Hundreds of pods have a handful of parents.
    let parents: HashSet<&str> =
        pods.filter_map(|pod| ancestors(&pod.cgroup.path).last()).collect();
    let mut above: HashSet<&str> =
        parents.into_iter().flat_map(|parent| ancestors(parent).chain([parent])).collect();
    above.insert("/");
    above
}

/// The paths above a path, without itself.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let cuts = path.match_indices('/').map(|(at, _)| at);
    cuts.filter_map(|at| path.get(..at.max(1))).filter(move |above| *above != path)
}

#[cfg(test)]
mod tests {
    use super::ancestors;

    #[test]
    fn ancestors_are_all_paths_above() {
        assert_eq!(ancestors("/a.slice/b/c").collect::<Vec<_>>(), ["/", "/a.slice", "/a.slice/b"]);
        assert_eq!(ancestors("/a").collect::<Vec<_>>(), ["/"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
