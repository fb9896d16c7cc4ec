//! Objects as the API server sends them, reduced to what a plan needs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodAffinityTerm, Taint, Toleration};
use psi_agent_plan::cluster::{
    Amounts, Cluster, ClusterNode, HOSTNAME, Labels, LatestMigration, Migration, Pod, Vm,
};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::cluster::{ApiClient, ListParams};
use crate::contract::Prefix;
use crate::json::objects;
use crate::pod::{LAUNCHER, key, whole_units};

const VMS: &str = "/apis/kubevirt.io/v1/virtualmachineinstances";
const MIGRATIONS: &str = "/apis/kubevirt.io/v1/virtualmachineinstancemigrations";

/// Annotation of a migration that KubeVirt created for an eviction: the Node.
const EVACUATION: &str = "kubevirt.io/evacuationMigration";

/// Length of an object's requirements as JSON, and the number of their parts, since the shortest take some 200 bytes
/// of memory. Those of KubeVirt's pods have some 2 KiB, and 100 parts.
const LONGEST_REQUIREMENTS: usize = 16 << 10;
const MOST_PARTS: usize = 300;

/// The key of the label of migrations that a plan created.
pub(super) fn own_label(prefix: &Prefix) -> String {
    format!("{prefix}/planner")
}

type Quantities = BTreeMap<String, Value>;

objects! {
    struct Metadata {
        name: String,
        namespace: String,
        uid: String,
        labels: Labels,
        annotations: Labels,
        creation_timestamp: String,
        deletion_timestamp: Option<IgnoredAny>,
        owner_references: Vec<Owner>,
    }
    struct Owner { kind: String, uid: String, }
    struct Condition { #[serde(rename = "type")] kind: String, status: String, reason: String, last_transition_time: Option<String>, }

    struct NamespaceObject { metadata: Metadata, }
    struct NodeObject { metadata: Metadata, spec: NodeSpec, status: NodeStatus, }
    struct NodeSpec { taints: Vec<Taint>, unschedulable: bool, }
    struct NodeStatus { capacity: Quantities, allocatable: Quantities, conditions: Vec<Condition>, }

    struct PodObject { metadata: Metadata, spec: PodSpec, status: PodStatus, }
    struct PodStatus { phase: String, conditions: Vec<Condition>, }
    struct PodSpec {
        node_name: Option<String>,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        resources: Resources,
        overhead: Quantities,
        node_selector: Labels,
        tolerations: Vec<Toleration>,
        affinity: Affinity,
        topology_spread_constraints: Vec<Spread>,
    }
    struct Container { restart_policy: String, resources: Resources, }
    struct Resources { requests: Quantities, limits: Quantities, }
    struct Spread { when_unsatisfiable: String, }
    struct Affinity { node_affinity: NodeAffinity, pod_affinity: PodAffinity, pod_anti_affinity: PodAffinity, }
    struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Option<NodeSelector>,
    }
    struct NodeSelector { node_selector_terms: Vec<NodeSelectorTerm>, }
    struct PodAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Vec<PodAffinityTerm>,
    }

    struct VmObject { metadata: Metadata, spec: VmSpec, status: VmStatus, }
    struct VmSpec {
        eviction_strategy: Option<String>,
        node_selector: Labels,
        affinity: Affinity,
        domain: Domain,
        volumes: Vec<Volume>,
    }
    struct Volume { empty_disk: Option<IgnoredAny>, }
    struct Domain { cpu: Option<Cpu>, memory: Memory, devices: Devices, resources: Resources, }
    struct Cpu {
        cores: u32,
        sockets: u32,
        threads: u32,
        model: String,
        dedicated_cpu_placement: bool,
    }
    struct Memory { hugepages: Option<IgnoredAny>, }
    struct Devices { host_devices: Vec<IgnoredAny>, gpus: Vec<IgnoredAny>, interfaces: Vec<Interface>, }
    struct Interface { sriov: Option<IgnoredAny>, }
    struct VmStatus {
        node_name: String,
        conditions: Vec<Condition>,
        migration_state: Option<MigrationState>,
        #[serde(rename = "currentCPUTopology")] topology: Option<Cpu>,
    }
    struct MigrationState {
        start_timestamp: Option<String>,
        end_timestamp: Option<String>,
        completed: bool,
        failed: bool,
        source_node: Option<String>,
        target_node: Option<String>,
    }

    struct MigrationObject { metadata: Metadata, spec: MigrationSpec, status: MigrationStatus, }
    struct MigrationSpec { vmi_name: String, added_node_selector: Labels, }
    struct MigrationStatus {
        phase: String,
        conditions: Vec<Condition>,
        migration_state: MigrationState,
        phase_transition_timestamps: Vec<Transition>,
    }
    struct Transition { phase: String, phase_transition_timestamp: String, }
}

/// Reads the cluster that a plan is made for.
pub(super) async fn read(api: &ApiClient, prefix: &Prefix) -> anyhow::Result<Cluster> {
    // The API server's cache can be a few seconds old. A migration that has just begun must count.
    let (newest, cached) = (ListParams::default(), ListParams::default().match_any());
    let mut cluster = Cluster {
        prefix: prefix.clone(),
        // First: a migration that ends during the reads still counts as active.
        migrations: api.list_all(MIGRATIONS, &newest, |one| migration(one, prefix)).await?,
        vms: api.list_all(VMS, &cached, vm).await?,
        nodes: api.list_all("/api/v1/nodes", &cached, |one| node(one, prefix)).await?,
        pods: api.list_all("/api/v1/pods", &cached, pod).await?,
        ..Cluster::default()
    };
    cluster.forget_vms_without_pods();
    Ok(cluster)
}

/// The namespaces whose VMs a planner may move.
pub(super) async fn opted_in(api: &ApiClient, prefix: &Prefix) -> anyhow::Result<Vec<String>> {
    let labelled = ListParams::default().labels(&format!("{prefix}/plan=true"));
    let name = |namespace: NamespaceObject| namespace.metadata.name;
    api.list_all("/api/v1/namespaces", &labelled, name).await
}

/// Without this prefix's annotations a Node is as one without an agent.
fn node(object: NodeObject, prefix: &Prefix) -> ClusterNode {
    let NodeObject { metadata: Metadata { name, labels, mut annotations, .. }, spec, status } =
        object;
    annotations.retain(|key, _| prefix.owns(key));
    ClusterNode {
        name,
        labels,
        annotations,
        taints: spec.taints,
        is_cordoned: spec.unschedulable,
        is_ready: holds(&status.conditions, "Ready"),
        cpus: status.capacity.get("cpu").and_then(whole_units).unwrap_or_default(),
        // Of an unknown amount, nothing is free.
        allocatable: amounts(&status.allocatable, 0.0),
    }
}

fn pod(object: PodObject) -> Pod {
    let PodObject { metadata, spec, status } = object;
    // Administrators can reserve this label. Any pod can name a VM as its owner.
    let is_launcher = metadata.labels.get(key::KIND).is_some_and(|kind| kind == LAUNCHER);
    let mut owners = metadata.owner_references.into_iter().filter(|_| is_launcher);
    let vm = owners.find(|owner| owner.kind == "VirtualMachineInstance").map(|owner| owner.uid);
    let requests = requests(&spec);
    let unscheduled =
        status.conditions.iter().find(|one| one.kind == "PodScheduled" && one.status == "False");
    let spreads = spec.topology_spread_constraints;
    let Affinity { node_affinity, pod_affinity, pod_anti_affinity } = spec.affinity;
    let pod = Pod {
        namespace: metadata.namespace,
        uid: metadata.uid,
        node: spec.node_name,
        vm: vm.map(short),
        migration: metadata.labels.get(key::MIGRATION).cloned(),
        created: metadata.creation_timestamp.parse().ok(),
        phase: status.phase,
        unscheduled_since: unscheduled
            .and_then(|one| one.last_transition_time.as_ref()?.parse().ok()),
        requests,
        node_selector: spec.node_selector,
        node_affinity: node_affinity.required.map(|selector| selector.node_selector_terms),
        tolerations: spec.tolerations,
        anti_affinity: pod_anti_affinity.required,
        requires_other_pods: !pod_affinity.required.is_empty()
            || spreads.iter().any(|one| one.when_unsatisfiable != "ScheduleAnyway"),
        prefers_no_eviction: metadata.annotations.contains_key(key::PREFER_NO_EVICTION),
        labels: metadata.labels,
    };
    bounded(pod)
}

/// The pod without requirements that are so long that many such pods, which any tenant can make, would use up the
/// memory. It stays where it is. If it may exclude others from its Node by them, no VM moves there. One that is on no
/// Node excludes none.
fn bounded(mut pod: Pod) -> Pod {
    let is_on_a_node = pod.node.is_some() && !pod.has_ended();
    if !is_on_a_node || is_too_long(&(&pod.node_selector, &pod.node_affinity, &pod.tolerations)) {
        (pod.node_selector, pod.node_affinity, pod.tolerations) = <_>::default();
        pod.requires_other_pods = true;
    }
    if !is_on_a_node || is_too_long(&(&pod.labels, &pod.requests, &pod.anti_affinity)) {
        (pod.labels, pod.anti_affinity) = <_>::default();
        pod.requests = Amounts::from([("pods".into(), f64::INFINITY)]);
        pod.requires_other_pods = true;
    }
    pod
}

/// What a name may have, of a text that the API server does not bound. Control characters could control the terminal
/// that shows a plan.
fn short(text: String) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(253).collect()
}

fn is_too_long(requirements: &impl Serialize) -> bool {
    serde_json::to_vec(requirements).map_or(true, |json| {
        let parts = json.iter().filter(|byte| b",{".contains(byte)).count();
        json.len() > LONGEST_REQUIREMENTS || parts > MOST_PARTS
    })
}

/// Containers and side-cars together, or one init container beside the side-cars if that is more.
fn requests(spec: &PodSpec) -> Amounts {
    let of = |container: &Container| amounts(&container.resources.requests, f64::INFINITY);
    let (side_cars, others): (Vec<&Container>, Vec<&Container>) =
        spec.init_containers.iter().partition(|one| one.restart_policy == "Always");
    let beside = sum(side_cars.into_iter().map(of));
    let mut all = sum(spec.containers.iter().map(of).chain([beside.clone()]));
    for init in others {
        for (resource, amount) in sum([beside.clone(), of(init)]) {
            let most = all.entry(resource).or_default();
            *most = most.max(amount);
        }
    }
    // What a pod requests as a whole stands for what its containers request.
    all.extend(amounts(&spec.resources.requests, f64::INFINITY));
    sum([all, amounts(&spec.overhead, f64::INFINITY)])
}

fn sum(parts: impl IntoIterator<Item = Amounts>) -> Amounts {
    let mut all = Amounts::new();
    for (resource, amount) in parts.into_iter().flatten() {
        *all.entry(resource).or_default() += amount;
    }
    all
}

fn amounts(quantities: &Quantities, unknown: f64) -> Amounts {
    let amount = |quantity: &Value| whole_units(quantity).unwrap_or(unknown);
    quantities.iter().map(|(name, quantity)| (name.clone(), amount(quantity))).collect()
}

/// Whether a condition is true.
fn holds(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|one| one.kind == kind && one.status == "True")
}

fn vm(object: VmObject) -> Vm {
    let VmObject { metadata, mut spec, status } = object;
    let required = spec.affinity.node_affinity.required.take();
    let node_affinity = required.map(|one| one.node_selector_terms);
    let is_excessive = is_too_long(&(&node_affinity, &spec.node_selector));
    let migratable = status.conditions.iter().find(|one| one.kind == "LiveMigratable");
    let live_migratable = match migratable {
        Some(one) if one.status == "True" => Ok(()),
        Some(one) => Err(short(one.reason.clone())),
        None => Err("condition LiveMigratable is missing".into()),
    };
    let Domain { cpu, memory, devices, resources } = spec.domain;
    let is_dedicated = cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement);
    let ties = [
        (is_dedicated, "dedicated CPUs"),
        (memory.hugepages.is_some(), "huge pages"),
        (devices.interfaces.iter().any(|one| one.sriov.is_some()), "SR-IOV interfaces"),
        (!devices.host_devices.is_empty(), "host devices"),
        (!devices.gpus.is_empty(), "GPUs"),
        // What a guest wrote over a containerDisk, or to cloud-init's volumes, is copied as its memory is.
        (spec.volumes.iter().any(|one| one.empty_disk.is_some()), "local volumes"),
        (holds(&status.conditions, "VolumesChange"), "volumes that change"),
        (!spec.affinity.pod_affinity.required.is_empty(), "required pod affinity"),
        (is_excessive, "a node selector or affinity that is too long"),
    ];
    let requested = resources.limits.get("cpu").or(resources.requests.get("cpu"));
    let requested = requested.and_then(whole_units).map_or(1.0, f64::ceil);
    let topology = status.topology.as_ref().or(cpu.as_ref());
    let vcpus = topology.and_then(Cpu::count).unwrap_or(requested);
    Vm {
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        node: short(status.node_name),
        vcpus,
        exclusive_cpus: if is_dedicated { vcpus } else { 0.0 },
        live_migratable,
        eviction_strategy: spec.eviction_strategy.map(short),
        node_selector: if is_excessive { Labels::new() } else { spec.node_selector },
        node_affinity: node_affinity.filter(|_| !is_excessive),
        cpu_model: cpu.map(|cpu| short(cpu.model)).unwrap_or_default(),
        tied_by: ties.into_iter().find(|(applies, _)| *applies).map(|(_, tie)| tie),
        migration: status.migration_state.map(|state| LatestMigration {
            ended: state.ended(),
            source: state.source_node.map(short).unwrap_or_default(),
            target: state.target_node.map(short).unwrap_or_default(),
        }),
    }
}

impl Cpu {
    /// Number of vCPUs; `None` if the VM sets none.
    fn count(&self) -> Option<f64> {
        let Self { cores, sockets, threads, .. } = *self;
        let is_set = cores.max(sockets).max(threads) > 0;
        is_set.then(|| [cores, sockets, threads].map(|one| f64::from(one.max(1))).iter().product())
    }
}

impl MigrationState {
    /// `None` while the migration is active.
    fn ended(&self) -> Option<Timestamp> {
        let is_over = self.completed || self.failed;
        let date = |text: &Option<String>| text.as_ref()?.parse().ok();
        date(&self.end_timestamp).or_else(|| date(&self.start_timestamp).filter(|_| is_over))
    }
}

fn migration(object: MigrationObject, prefix: &Prefix) -> Migration {
    let MigrationObject { metadata, spec, status } = object;
    let evacuated = metadata.annotations.get(EVACUATION);
    let last = status.phase_transition_timestamps.iter().rfind(|one| one.phase == status.phase);
    let last = last.and_then(|one| one.phase_transition_timestamp.parse().ok());
    Migration {
        is_own: metadata.labels.get(&own_label(prefix)).is_some_and(|value| value == "true"),
        is_evacuation: evacuated.is_some(),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        vm: short(spec.vmi_name),
        hostname: spec.added_node_selector.get(HOSTNAME).cloned().map(short),
        is_over_quota: holds(&status.conditions, "migrationRejectedByResourceQuota"),
        is_being_deleted: metadata.deletion_timestamp.is_some(),
        created: metadata.creation_timestamp.parse().ok(),
        // By the clock of virt-controller, and not by those of the Nodes.
        ended: last.or(status.migration_state.ended()),
        source: status.migration_state.source_node.or(evacuated.cloned()).map(short),
        target: status.migration_state.target_node.map(short),
        phase: short(status.phase),
    }
}

#[cfg(test)]
mod tests;
