//! A pod as the API server tells it, cut down to what labels need: metadata and the statuses of
//! containers. A full pod would take twice the agent's memory.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Names, labels, annotations.
    pub metadata: Metadata,
    /// Where it runs.
    pub spec: Spec,
    /// What runs in it.
    pub status: Status,
}

/// A pod's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The part of a pod's spec that is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The node that it is bound to.
    pub node_name: String,
}

/// A pod's containers. All three lists count: KubeVirt's console log is an init container that
/// stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Containers.
    pub container_statuses: Vec<ContainerStatus>,
    /// Init containers, sidecars among them.
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Containers added for debugging.
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

/// A container that the kubelet told of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name in the pod.
    pub name: String,
    /// Its image, as the runtime tells it.
    pub image: String,
    /// `containerd://<id>`; empty before it was made.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// How often it was made anew: the attempt in CRI-O's name of it.
    pub restart_count: u32,
}

impl Status {
    /// All containers, of whatever kind.
    pub fn containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        let lists = [
            &self.container_statuses,
            &self.init_container_statuses,
            &self.ephemeral_container_statuses,
        ];
        lists.into_iter().flatten()
    }
}
