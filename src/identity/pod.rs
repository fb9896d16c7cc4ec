//! A pod as the API server tells it, cut down to what labels need, and to what its containers asked
//! for: metadata, requests and the statuses of containers. A full pod would take twice the agent's
//! memory.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

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
    /// Containers.
    pub containers: Vec<ContainerSpec>,
    /// Init containers, sidecars among them.
    pub init_containers: Vec<ContainerSpec>,
}

/// What a container asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSpec {
    /// Its name in the pod.
    pub name: String,
    /// Its requests and limits.
    pub resources: Resources,
}

/// A container's requests; its limits are the kernel's to tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// Quantities by resource, such as `cpu: 500m`.
    pub requests: BTreeMap<String, Value>,
}

/// Thousandths of a CPU, rounded up as Kubernetes does; `None` where it is no quantity of CPUs. The
/// API server writes a string; who writes pods by hand may not, and loses no more than this by it.
fn thousandths(quantity: &Value) -> Option<u64> {
    let cpus = match quantity {
        Value::Number(number) => return rounded(number.as_f64()? * 1e3),
        Value::String(text) => text,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    let suffixes = [("n", 1e-6), ("u", 1e-3), ("m", 1.0), ("k", 1e6), ("", 1e3)];
    let scaled = |(suffix, scale)| Some((cpus.strip_suffix(suffix)?, scale));
    let (number, scale): (&str, f64) = suffixes.into_iter().find_map(scaled)?;
    rounded(number.parse::<f64>().ok()? * scale)
}

/// Nobody has a thousand million CPUs, and a cast of that much is exact.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in the range")]
fn rounded(thousandths: f64) -> Option<u64> {
    (0.0..=1e12).contains(&thousandths).then_some(thousandths.ceil() as u64)
}

impl Spec {
    /// CPUs that a container asked for, thousandths.
    #[must_use]
    pub fn cpu_request(&self, container: &str) -> Option<u64> {
        let mut all = self.containers.iter().chain(&self.init_containers);
        thousandths(all.find(|spec| spec.name == container)?.resources.requests.get("cpu")?)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_kubernetes_writes_them() {
        let spec = r#"{"containers": [{"name": "compute", "resources": {"requests": {"cpu": "250m"}}},
            {"name": "whole", "resources": {"requests": {"cpu": 2}}}, {"name": "none"}],
            "initContainers": [{"name": "console", "resources": {"requests": {"cpu": "0.0051"}}}]}"#;
        let spec: Spec = serde_json::from_str(spec).unwrap();
        let asked =
            ["compute", "whole", "none", "console", "stranger"].map(|it| spec.cpu_request(it));
        assert_eq!(asked, [Some(250), Some(2000), None, Some(6), None]);
    }

    #[test]
    fn what_is_no_quantity_asks_for_nothing() {
        let thousandths = |text: &str| thousandths(&Value::from(text));
        assert_eq!(
            ["1k", "1e3", "1500000n", "10u"].map(thousandths),
            [Some(1_000_000), Some(1_000_000), Some(2), Some(1)]
        );
        for text in ["", "m", "-1", "NaN", "inf", "1Gi", "1e99", "1 m", "ä"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
        for other in [Value::from(u64::MAX), Value::Null, Value::from(true)] {
            assert_eq!(super::thousandths(&other), None, "{other}");
        }
        assert_eq!(super::thousandths(&Value::from(0.5)), Some(500));
    }
}
