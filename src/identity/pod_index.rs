//! The pods of this node, found by the uid and container id of a cgroup path.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::pod::{ContainerStatus, Metadata, Pod};
use super::workload::{Vm, Workload};
use crate::cgroup_path::{PodLevel, PodPlace};

mod kubevirt {
    /// Label: the kind of pod.
    pub(super) const KIND: &str = "kubevirt.io";
    /// The value of [`KIND`] on a pod that runs a VM. Pods of hot-plugged disks have another.
    pub(super) const LAUNCHER: &str = "virt-launcher";
    /// Annotation: the VM's name, which the label may have shortened.
    pub(super) const DOMAIN: &str = "kubevirt.io/domain";
    /// Label: the VM's uid.
    pub(super) const CREATED_BY: &str = "kubevirt.io/created-by";
    /// Label: the migration that the pod is the target of.
    pub(super) const MIGRATION: &str = "kubevirt.io/migrationJobUID";
    /// Label: the node that the VM runs on. The target of a migration has the source's node until
    /// the handover; one from another cluster has its own from the start.
    pub(super) const NODE_NAME: &str = "kubevirt.io/nodeName";
    /// Annotation: the migration comes from another cluster or namespace.
    pub(super) const FROM_OTHER_CLUSTER: &str = "kubevirt.io/create-migration-target";
    /// Annotation: when the VM began to run in the target, shortly before the handover.
    pub(super) const TARGET_READY: &str = "kubevirt.io/migration-target-ready-timestamp";
}

/// Annotation of a static pod's mirror pod: the uid in the path of its cgroup.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodIndex {
    pods: HashMap<Box<str>, Arc<IndexedPod>>,
    /// Uids of pods by their annotation [`CONFIG_HASH`]. Any user can annotate a pod, so a uid is
    /// always looked up before a hash.
    config_hashes: HashMap<Box<str>, Box<str>>,
    listed: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct IndexedPod {
    pod: Arc<Workload>,
    containers: HashMap<Box<str>, Arc<Workload>>,
}

impl PodIndex {
    pub fn of(pods: &[Pod]) -> Self {
        let mut index = Self::default();
        index.replace(pods);
        index
    }

    pub fn apply(&mut self, pod: &Pod) {
        let uid = &*pod.metadata.uid;
        let indexed = IndexedPod::new(pod);
        // An unchanged pod keeps its allocation, so that its labels are not rendered again.
        if self.pods.get(uid).is_none_or(|before| **before != indexed) {
            self.pods.insert(uid.into(), Arc::new(indexed));
        }
        self.config_hashes.retain(|_, owner| **owner != *uid);
        if let Some(hash) = config_hash(&pod.metadata) {
            self.config_hashes.insert(hash.into(), uid.into());
        }
    }

    pub fn delete(&mut self, pod: &Pod) {
        self.pods.remove(&*pod.metadata.uid);
        self.config_hashes.retain(|_, owner| **owner != *pod.metadata.uid);
    }

    pub fn replace(&mut self, pods: &[Pod]) {
        let listed: HashSet<&str> = pods.iter().map(|pod| &*pod.metadata.uid).collect();
        self.listed = true;
        self.pods.retain(|uid, _| listed.contains(&**uid));
        self.config_hashes.clear();
        for pod in pods {
            self.apply(pod);
        }
    }

    /// The pod or container of a cgroup; `None` for unknown pods and for cgroups that never have
    /// labels (sandboxes, monitors, cgroups within a container).
    pub fn workload(&self, place: &PodPlace) -> Option<&Arc<Workload>> {
        let uid = place.uid.as_str();
        let by_hash = || self.pods.get(self.config_hashes.get(uid)?);
        let pod = self.pods.get(uid).or_else(by_hash)?;
        match &place.level {
            PodLevel::Pod => Some(&pod.pod),
            PodLevel::Container(container) => pod.containers.get(container.id.as_str()),
            PodLevel::Sandbox(_) | PodLevel::Monitor | PodLevel::Nested(_) | PodLevel::Unknown => {
                None
            }
        }
    }

    /// Whether a full list was received. Until then an empty index means that pods are unknown.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// A static pod's cgroup is named after the hash of its manifest, not after the uid of its mirror pod.
fn config_hash(metadata: &Metadata) -> Option<&str> {
    metadata.annotations.get(CONFIG_HASH).map(String::as_str)
}

impl IndexedPod {
    fn new(pod: &Pod) -> Self {
        let vm = vm_of(pod).map(Arc::new);
        let whole = Workload {
            namespace: pod.metadata.namespace.as_str().into(),
            pod: pod.metadata.name.as_str().into(),
            vm,
            ..Workload::default()
        };
        let containers = pod.status.containers().filter_map(|status| {
            let (runtime, id) = status.container_id.split_once("://")?;
            let workload = Workload {
                container: status.name.as_str().into(),
                name: runtime_name(runtime, id, status, &pod.metadata),
                image: status.image.as_str().into(),
                cpu_request: pod.spec.cpu_request(&status.name),
                ..whole.clone()
            };
            Some((id.into(), Arc::new(workload)))
        });
        let containers = containers.collect();
        Self { pod: Arc::new(whole), containers }
    }
}

/// The label `name` as cAdvisor sets it: the id with containerd, and with CRI-O and docker a name
/// composed by the kubelet.
fn runtime_name(
    runtime: &str,
    id: &str,
    status: &ContainerStatus,
    metadata: &Metadata,
) -> Box<str> {
    if runtime == "containerd" {
        return id.into();
    }
    let Metadata { name, namespace, .. } = metadata;
    let (container, attempt, uid) =
        (&status.name, status.restart_count, config_hash(metadata).unwrap_or(&metadata.uid));
    format!("k8s_{container}_{name}_{namespace}_{uid}_{attempt}").into()
}

fn vm_of(pod: &Pod) -> Option<Vm> {
    let Metadata { labels, annotations, .. } = &pod.metadata;
    if labels.get(kubevirt::KIND).map(String::as_str) != Some(kubevirt::LAUNCHER) {
        return None;
    }
    let name = annotations.get(kubevirt::DOMAIN)?;
    Some(Vm {
        name: name.as_str().into(),
        uid: labels.get(kubevirt::CREATED_BY).map(String::as_str).unwrap_or_default().into(),
        awaits_handover: labels.contains_key(kubevirt::MIGRATION) && !has_arrived(pod),
    })
}

/// Whether the VM has arrived in the target of its migration. A VM that arrives without running is
/// handed over, but its target never gets the annotation.
fn has_arrived(pod: &Pod) -> bool {
    let Metadata { labels, annotations, .. } = &pod.metadata;
    let is_here = labels.get(kubevirt::NODE_NAME) == Some(&pod.spec.node_name);
    annotations.contains_key(kubevirt::TARGET_READY)
        || is_here && !annotations.contains_key(kubevirt::FROM_OTHER_CLUSTER)
}

#[cfg(test)]
mod tests;
