//! A pod as the API server sends it, reduced to what labels need: names, CPU requests and the
//! statuses of containers. Everything else is skipped as it is parsed: a pod can have 1.5 MB.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::json::objects;

objects! {
    pub struct Pod {
        pub metadata: Metadata,
        pub spec: Spec,
        pub status: Status,
    }

    pub struct Metadata {
        pub uid: String,
        pub namespace: String,
        pub name: String,
        /// RFC 3339; empty if a file of pods does not contain it.
        pub creation_timestamp: String,
        /// Only those in [`key`].
        #[serde(deserialize_with = "known_keys")]
        pub labels: BTreeMap<String, String>,
        /// Only those in [`key`].
        #[serde(deserialize_with = "known_keys")]
        pub annotations: BTreeMap<String, String>,
    }

    pub struct Spec {
        pub node_name: String,
        pub containers: Vec<ContainerSpec>,
        pub init_containers: Vec<ContainerSpec>,
    }

    pub struct ContainerSpec {
        pub name: String,
        pub resources: Resources,
    }

    /// A container's requests. Its limits are read from the kernel.
    pub struct Resources {
        pub requests: Requests,
    }

    /// Quantities such as `500m`. A pod can request thousands of other resources.
    pub struct Requests {
        pub cpu: Value,
        pub memory: Value,
    }

    /// The statuses of a pod's containers. Init containers are included: KubeVirt's guest-console-log
    /// is one that keeps running.
    pub struct Status {
        pub container_statuses: Vec<ContainerStatus>,
        pub init_container_statuses: Vec<ContainerStatus>,
        pub ephemeral_container_statuses: Vec<ContainerStatus>,
    }

    pub struct ContainerStatus {
        pub name: String,
        /// The container's image, as the runtime reports it.
        pub image: String,
        /// Such as `containerd://<id>`; empty before the container is created.
        #[serde(rename = "containerID")]
        pub container_id: String,
        /// Number of restarts, which is part of the container's name with CRI-O.
        pub restart_count: u32,
    }
}

/// The value of [`key::KIND`] on a pod that runs a VM. Pods of hot-plugged disks have another.
pub const LAUNCHER: &str = "virt-launcher";

/// Labels and annotations that are read.
pub mod key {
    /// Label: the kind of pod.
    pub const KIND: &str = "kubevirt.io";
    /// Annotation: the VM's name, which the label may have shortened.
    pub const DOMAIN: &str = "kubevirt.io/domain";
    /// Label: the VM's uid.
    pub const CREATED_BY: &str = "kubevirt.io/created-by";
    /// Label: the migration that the pod is the target of.
    pub const MIGRATION: &str = "kubevirt.io/migrationJobUID";
    /// Label: the node that the VM runs on. On the target pod of a migration it is the source's
    /// node until the handover. If the migration comes from another cluster, it is the target's
    /// node from the start.
    pub const NODE_NAME: &str = "kubevirt.io/nodeName";
    /// Annotation: the migration comes from another cluster or namespace.
    pub const FROM_OTHER_CLUSTER: &str = "kubevirt.io/create-migration-target";
    /// Annotation: when the VM began to run in the target, shortly before the handover.
    pub const TARGET_READY: &str = "kubevirt.io/migration-target-ready-timestamp";
    /// Annotation of a static pod's mirror pod: the uid in the path of its cgroup.
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
    /// Annotation with any value: the VM should not be evicted. KubeVirt copies it from the VM.
    pub const PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";
    /// Annotation, after the prefix: CPU ready that the VM's owner accepts, percent. KubeVirt copies
    /// it from the VM.
    pub const CPU_WAIT_BUDGET: &str = "/cpu-wait-budget";
    /// Label, after the prefix: the VM is the one to move first.
    pub const MIGRATE_FIRST: &str = "/migrate-first";

    pub(super) const ALL: [&str; 9] = [
        KIND,
        DOMAIN,
        CREATED_BY,
        MIGRATION,
        NODE_NAME,
        FROM_OTHER_CLUSTER,
        TARGET_READY,
        CONFIG_HASH,
        PREFER_NO_EVICTION,
    ];
}

/// Characters of a value that are read, and keys that are some agent's: only one has this agent's prefix. All
/// annotations of a pod can have 256 KiB.
const LONGEST_VALUE: usize = 1024;
const MOST_OF_AGENTS: usize = 8;

fn known_keys<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let mut keys = BTreeMap::<String, String>::deserialize(deserializer)?;
    let mut of_agents = 0;
    keys.retain(|key, value| {
        let is_agents = key.ends_with(key::CPU_WAIT_BUDGET) || key.ends_with(key::MIGRATE_FIRST);
        of_agents += usize::from(is_agents);
        let is_known = key::ALL.contains(&key.as_str()) || is_agents && of_agents <= MOST_OF_AGENTS;
        if value.len() > LONGEST_VALUE {
            *value = value.chars().take(LONGEST_VALUE).collect();
        }
        is_known
    });
    Ok(keys)
}

/// Thousandths of a quantity; `None` if it is not one. The API server sends a string; a file of pods
/// may have a number.
fn thousandths(quantity: &Value) -> Option<f64> {
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_owned);
    let binary = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4)]
        .map(|(suffix, power)| (suffix, 1024_f64.powi(power) * 1e3));
    let decimal = [("n", -2), ("u", -1), ("m", 0), ("k", 2), ("M", 3), ("G", 4), ("T", 5), ("", 1)]
        .map(|(suffix, power)| (suffix, 1e3_f64.powi(power)));
    let mut scales = binary.into_iter().chain(decimal);
    let (number, scale) =
        scales.find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, scale)))?;
    Some(number.parse::<f64>().ok()? * scale)
}

/// A quantity in whole units; `None` if it is not one.
pub(crate) fn whole_units(quantity: &Value) -> Option<f64> {
    Some(thousandths(quantity)? / 1e3)
}

/// Rounded up, as Kubernetes does; `None` outside 0 to 10^15.
#[allow(clippy::cast_possible_truncation, reason = "in the range")]
fn rounded(number: f64) -> Option<u64> {
    (0.0..=1e15).contains(&number).then_some(number.ceil() as u64)
}

impl Spec {
    /// Thousandths of a CPU.
    pub fn cpu_request(&self, container: &str) -> Option<u64> {
        rounded(thousandths(&self.requests(container)?.cpu)?)
    }

    /// Thousandths of a CPU, of all containers together. What is not a quantity counts as 0.
    pub fn cpu_requests(&self) -> u64 {
        let requests = self.containers.iter().map(|one| &one.resources.requests.cpu);
        requests.filter_map(|cpu| rounded(thousandths(cpu)?)).fold(0, u64::saturating_add)
    }

    /// Bytes.
    pub fn memory_request(&self, container: &str) -> Option<u64> {
        rounded(thousandths(&self.requests(container)?.memory)? / 1e3)
    }

    fn requests(&self, container: &str) -> Option<&Requests> {
        let mut all = self.containers.iter().chain(&self.init_containers);
        Some(&all.find(|spec| spec.name == container)?.resources.requests)
    }
}

impl Status {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_parse_as_kubernetes_writes_them() {
        let spec = r#"{"containers": [{"name": "compute", "resources": {"requests": {"cpu": "250m"}}},
            {"name": "whole", "resources": {"requests": {"cpu": 2}}}, {"name": "none"}],
            "initContainers": [{"name": "console", "resources": {"requests": {"cpu": "0.0051"}}}]}"#;
        let spec: Spec = serde_json::from_str(spec).unwrap();
        let asked =
            ["compute", "whole", "none", "console", "stranger"].map(|it| spec.cpu_request(it));
        assert_eq!(asked, [Some(250), Some(2000), None, Some(6), None]);
    }

    #[test]
    fn an_invalid_quantity_is_no_request() {
        let requests = |quantity: Value| {
            let requests = json!({"cpu": quantity, "memory": quantity});
            let spec =
                json!({"containers": [{"name": "main", "resources": {"requests": requests}}]});
            let spec: Spec = serde_json::from_value(spec).unwrap();
            (spec.cpu_request("main"), spec.memory_request("main"))
        };
        for (text, milli_cpus, bytes) in [
            ("1k", 1_000_000, 1000),
            ("1e3", 1_000_000, 1000),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("35m", 35, 1),
            ("1500000n", 2, 1),
            ("10u", 1, 1),
            ("0", 0, 0),
        ] {
            assert_eq!(requests(json!(text)), (Some(milli_cpus), Some(bytes)), "{text}");
        }
        assert_eq!(requests(json!("4Ti")), (None, Some(4 << 40)), "no node has so many CPUs");
        for text in ["", "m", "-1", "NaN", "inf", "1Zi", "1e99", "1 m", "ä"] {
            assert_eq!(requests(json!(text)), (None, None), "{text}");
        }
        for other in [json!(u64::MAX), json!(null), json!(true)] {
            assert_eq!(requests(other.clone()), (None, None), "{other}");
        }
        assert_eq!(requests(json!(0.5)), (Some(500), Some(1)));
    }
}
