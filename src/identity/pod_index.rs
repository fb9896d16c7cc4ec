//! The pods of this node, found by the uid and container id of a cgroup path.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::workload::{Vm, Workload};
use crate::cgroup_path::{PodLevel, PodPlace};
use crate::client::pod::{ContainerStatus, LAUNCHER, Metadata, Pod, key};
use crate::contract::{Prefix, is_subdomain};

/// Time without an answer of the API server after which the list is no longer up to date.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// The longest image that is exported: a name of 255 bytes with a tag and a digest.
const LONGEST_IMAGE: usize = 512;
/// The longest hash of a static pod, as long as a label's value.
const LONGEST_HASH: usize = 63;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodIndex {
    pods: HashMap<Box<str>, Arc<IndexedPod>>,
    listed: bool,
    /// Since when the API server cannot be asked, so that new pods may be missing.
    pub failing_since: Option<Instant>,
    /// Prefix of the agent's own keys.
    prefix: Prefix,
}

#[derive(Debug, PartialEq)]
struct IndexedPod {
    pod: Arc<Workload>,
    containers: HashMap<Box<str>, Arc<Workload>>,
    /// Names that tenants chose and that are not exported, since they are malformed or too long.
    rejected_names: usize,
}

impl PodIndex {
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, ..Self::default() }
    }

    pub fn of(prefix: Prefix, pods: &[Pod]) -> Self {
        let mut index = Self::new(prefix);
        index.replace(pods);
        index
    }

    pub fn apply(&mut self, pod: &Pod) {
        let uid = &*pod.metadata.uid;
        let indexed = IndexedPod::new(pod, &self.prefix);
        // An unchanged pod keeps its allocation, so that its labels are not rendered again.
        if self.pods.get(uid).is_none_or(|before| **before != indexed) {
            self.pods.insert(uid.into(), Arc::new(indexed));
        }
    }

    pub fn delete(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    pub fn replace(&mut self, pods: &[Pod]) {
        let listed: HashSet<&str> = pods.iter().map(|pod| &*pod.metadata.uid).collect();
        self.listed = true;
        self.pods.retain(|uid, _| listed.contains(&**uid));
        for pod in pods {
            self.apply(pod);
        }
    }

    /// The pod or container of a cgroup; `None` for unknown pods and for cgroups that never have
    /// labels (sandboxes, monitors, cgroups within a container). The cgroup of a static pod is
    /// identified by those of its containers: see [`PodIndex::static_pod`].
    pub fn workload(&self, place: &PodPlace) -> Option<&Arc<Workload>> {
        let by_uid = self.pods.get(&place.uid);
        if place.level == PodLevel::Pod {
            return by_uid.map(|pod| &pod.pod);
        }
        let PodLevel::Container(id) = &place.level else { return None };
        by_uid.or_else(|| self.by_container(place))?.containers.get(id)
    }

    /// The static pod that the cgroup of a container belongs to; `None` for other pods.
    pub fn static_pod(&self, place: &PodPlace) -> Option<&Arc<Workload>> {
        let is_static = !self.pods.contains_key(&place.uid);
        is_static.then(|| self.by_container(place)).flatten().map(|pod| &pod.pod)
    }

    /// The pod whose status has this container. The cgroup of a static pod has another uid than its
    /// pod in the API.
    fn by_container(&self, place: &PodPlace) -> Option<&Arc<IndexedPod>> {
        let PodLevel::Container(id) = &place.level else { return None };
        self.pods.values().find(|pod| pod.containers.contains_key(id))
    }

    /// Whether a full list was received. Until then an empty index means that pods are unknown.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether VMs that have arrived may be missing: the API server cannot be asked for a minute. A watch that ends
    /// and begins again misses none.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.failing_since.is_some_and(|since| now.saturating_duration_since(since) >= STALE_AFTER)
    }

    pub fn count(&self) -> usize {
        self.pods.len()
    }

    /// Whether a container of these pods was started.
    pub fn has_containers(&self) -> bool {
        self.pods.values().any(|pod| !pod.containers.is_empty())
    }

    /// Names in these pods that are malformed or too long, and not exported.
    pub fn rejected_names(&self) -> usize {
        self.pods.values().map(|pod| pod.rejected_names).sum()
    }
}

impl IndexedPod {
    fn new(pod: &Pod, prefix: &Prefix) -> Self {
        let vm = vm_name(&pod.metadata);
        // Any user who may create pods can write another text into the annotation.
        let is_name = vm.is_none_or(is_subdomain);
        let vm = vm.filter(|_| is_name).map(|name| Arc::new(vm_of(pod, name, prefix)));
        let mut rejected_names = usize::from(!is_name);
        let whole = Workload {
            namespace: pod.metadata.namespace.as_str().into(),
            pod: pod.metadata.name.as_str().into(),
            vm,
            ..Workload::default()
        };
        let containers = pod.status.containers().filter_map(|status| {
            let (runtime, id) = status.container_id.split_once("://")?;
            let is_image = status.image.len() <= LONGEST_IMAGE;
            rejected_names += usize::from(!is_image);
            let workload = Workload {
                container: status.name.as_str().into(),
                name: runtime_name(runtime, id, status, &pod.metadata),
                image: if is_image { status.image.as_str().into() } else { Box::default() },
                cpu_request: pod.spec.cpu_request(&status.name),
                memory_request: pod.spec.memory_request(&status.name),
                ..whole.clone()
            };
            Some((id.into(), Arc::new(workload)))
        });
        let containers = containers.collect();
        Self { pod: Arc::new(whole), containers, rejected_names }
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
    let Metadata { name, namespace, annotations, .. } = metadata;
    // The uid of a static pod is the hash of its manifest, not that of its mirror pod.
    let hash = annotations.get(key::CONFIG_HASH).filter(|hash| hash.len() <= LONGEST_HASH);
    let uid = hash.unwrap_or(&metadata.uid);
    let (container, attempt) = (&status.name, status.restart_count);
    format!("k8s_{container}_{name}_{namespace}_{uid}_{attempt}").into()
}

/// The name of the VM that a pod runs, as its annotation has it.
fn vm_name(Metadata { labels, annotations, .. }: &Metadata) -> Option<&str> {
    let is_launcher = labels.get(key::KIND).is_some_and(|kind| kind == LAUNCHER);
    annotations.get(key::DOMAIN).filter(|_| is_launcher).map(String::as_str)
}

fn vm_of(pod: &Pod, name: &str, prefix: &Prefix) -> Vm {
    let Metadata { labels, annotations, .. } = &pod.metadata;
    let budget = annotations.get(&format!("{prefix}{}", key::CPU_WAIT_BUDGET));
    // The target of a VM that does not run during the migration never gets the annotation TARGET_READY, so the node
    // in its label counts, too.
    let is_here = labels.get(key::NODE_NAME) == Some(&pod.spec.node_name);
    let has_arrived = annotations.contains_key(key::TARGET_READY)
        || is_here && !annotations.contains_key(key::FROM_OTHER_CLUSTER);
    Vm {
        name: name.into(),
        uid: labels.get(key::CREATED_BY).map(String::as_str).unwrap_or_default().into(),
        awaits_handover: labels.contains_key(key::MIGRATION) && !has_arrived,
        created_at: pod.metadata.creation_timestamp.parse().ok(),
        prefers_no_eviction: annotations.contains_key(key::PREFER_NO_EVICTION),
        has_candidate_label: labels.contains_key(&format!("{prefix}{}", key::MIGRATE_FIRST)),
        cpu_wait_budget: budget.and_then(|text| ratio(text)),
    }
}

/// A percentage from 0 to 100, such as `5` or `2.5`, as a ratio.
fn ratio(percentage: &str) -> Option<f64> {
    let percentage = percentage.trim().parse::<f64>().ok()?;
    (0.0..=100.0).contains(&percentage).then_some(percentage / 100.0)
}

#[cfg(test)]
mod tests;
