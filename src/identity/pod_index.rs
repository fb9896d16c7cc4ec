//! The pods of this node, by what cgroup paths say of them. A plain value with one writer; others
//! see it whole.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::pod::{ContainerStatus, Metadata, Pod};
use super::{Vm, Workload};
use crate::cgroup_path::{PodLevel, PodPlace};

/// What KubeVirt writes on its pods.
mod kubevirt {
    /// Label: what the pod is.
    pub(super) const KIND: &str = "kubevirt.io";
    /// The value of [`KIND`] on a pod that runs a VM; a hot-plugged disk's has another.
    pub(super) const LAUNCHER: &str = "virt-launcher";
    /// Annotation: the VM's exact name.
    pub(super) const DOMAIN: &str = "kubevirt.io/domain";
    /// Label: the VM's uid.
    pub(super) const CREATED_BY: &str = "kubevirt.io/created-by";
    /// Label: the migration that made the pod.
    pub(super) const MIGRATION: &str = "kubevirt.io/migrationJobUID";
    /// Label: the node that the VM runs on. A migration's target has its source's until the VM is
    /// handed over; one from another cluster has its own at once.
    pub(super) const NODE_NAME: &str = "kubevirt.io/nodeName";
    /// Annotation: the migration comes from another cluster or namespace.
    pub(super) const FROM_AFAR: &str = "kubevirt.io/create-migration-target";
    /// Annotation: since when the VM runs in a migration's target, a moment before its handover.
    pub(super) const TARGET_READY: &str = "kubevirt.io/migration-target-ready-timestamp";
}

/// Annotation of a static pod's mirror: the uid that its cgroup has.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Pods by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodIndex {
    pods: HashMap<Box<str>, Arc<KnownPod>>,
    /// Uids by the hash that pods claim. Whoever makes a pod may annotate it with any, so that a
    /// hash never takes the place of a uid, which is the API server's to give.
    claims: HashMap<Box<str>, Box<str>>,
    listed: bool,
}

/// A pod, by the uid that its cgroup has.
#[derive(Debug, PartialEq, Eq)]
struct KnownPod {
    whole: Arc<Workload>,
    containers: HashMap<Box<str>, Arc<Workload>>,
}

impl PodIndex {
    /// The index of a full list.
    #[must_use]
    pub fn of(pods: &[Pod]) -> Self {
        let mut index = Self::default();
        index.replace(pods);
        index
    }

    /// Takes in a pod that is new or has changed.
    pub fn apply(&mut self, pod: &Pod) {
        let uid = &*pod.metadata.uid;
        let known = KnownPod::new(pod);
        // What has not changed keeps its place in memory, so that its labels are not made anew.
        if self.pods.get(uid).is_none_or(|before| **before != known) {
            self.pods.insert(uid.into(), Arc::new(known));
        }
        self.claims.retain(|_, claimant| **claimant != *uid);
        if let Some(hash) = claimed_hash(&pod.metadata) {
            self.claims.insert(hash.into(), uid.into());
        }
    }

    /// Forgets a pod.
    pub fn delete(&mut self, pod: &Pod) {
        self.pods.remove(&*pod.metadata.uid);
        self.claims.retain(|_, claimant| **claimant != *pod.metadata.uid);
    }

    /// Takes in a full list: what is not in it is forgotten.
    pub fn replace(&mut self, pods: &[Pod]) {
        let listed: HashSet<&str> = pods.iter().map(|pod| &*pod.metadata.uid).collect();
        self.listed = true;
        self.pods.retain(|uid, _| listed.contains(&**uid));
        self.claims.clear();
        for pod in pods {
            self.apply(pod);
        }
    }

    /// Who a cgroup of a pod's is; `None` for what the API server has not told of yet, and for what
    /// never has labels (sandboxes, monitors, what is nested in a container).
    #[must_use]
    pub fn workload(&self, place: &PodPlace) -> Option<&Arc<Workload>> {
        let uid = place.uid.as_str();
        let by_claim = || self.pods.get(self.claims.get(uid)?);
        let pod = self.pods.get(uid).or_else(by_claim)?;
        match &place.level {
            PodLevel::Pod => Some(&pod.whole),
            PodLevel::Container(container) => pod.containers.get(container.id.as_str()),
            PodLevel::Sandbox(_) | PodLevel::Monitor | PodLevel::Nested(_) | PodLevel::Unknown => {
                None
            }
        }
    }

    /// Whether a full list was ever taken in: until then an empty index means nothing.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// How many pods are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// A static pod's cgroup is named after the hash of its manifest, not after its mirror in the API.
fn claimed_hash(metadata: &Metadata) -> Option<&str> {
    metadata.annotations.get(CONFIG_HASH).map(String::as_str)
}

impl KnownPod {
    fn new(pod: &Pod) -> Self {
        let vm = vm_of(pod).map(Arc::new);
        let whole = Workload {
            namespace: pod.metadata.namespace.as_str().into(),
            pod: pod.metadata.name.as_str().into(),
            container: "".into(),
            name: "".into(),
            image: "".into(),
            cpu_request: None,
            vm,
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
        Self { whole: Arc::new(whole), containers }
    }
}

/// What cAdvisor puts into the label `name`: containerd's containers are named by their id, those
/// of CRI-O and docker by all that the kubelet knows of them.
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
        (&status.name, status.restart_count, claimed_hash(metadata).unwrap_or(&metadata.uid));
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

/// Whether the VM runs in its migration's target by now. One that arrives without running is handed
/// over, but never said to be ready.
fn has_arrived(pod: &Pod) -> bool {
    let Metadata { labels, annotations, .. } = &pod.metadata;
    let is_here = labels.get(kubevirt::NODE_NAME) == Some(&pod.spec.node_name);
    annotations.contains_key(kubevirt::TARGET_READY)
        || is_here && !annotations.contains_key(kubevirt::FROM_AFAR)
}

#[cfg(test)]
mod tests;
