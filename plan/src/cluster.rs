//! The objects of a cluster, reduced to what decides about moves.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::Prefix;
use jiff::Timestamp;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodAffinityTerm, Taint, Toleration};

/// Labels, annotations or node selectors.
pub type Labels = BTreeMap<String, String>;

/// Amounts by resource, in whole units: CPUs, bytes, devices.
pub type Amounts = BTreeMap<String, f64>;

/// Label of Nodes that can run VMs: `true` or `false`. KubeVirt sets it.
pub const SCHEDULABLE: &str = "kubevirt.io/schedulable";

/// Label of Nodes that `addedNodeSelector` names.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// All that a plan is made of.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Prefix of the agents' keys.
    pub prefix: Prefix,
    /// Nodes, with and without VMs.
    pub nodes: Vec<ClusterNode>,
    /// VirtualMachineInstances.
    pub vms: Vec<Vm>,
    /// Pods of all kinds.
    pub pods: Vec<Pod>,
    /// VirtualMachineInstanceMigrations.
    pub migrations: Vec<Migration>,
    /// Namespaces whose VMs may move; `None` for all.
    pub namespaces: Option<BTreeSet<String>>,
    /// VMs that stay for now, by namespace and name: a plan tried to move them. When they may move again.
    pub left_alone: BTreeMap<String, Timestamp>,
}

impl Cluster {
    pub(crate) fn may_move_vms_of(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|labelled| labelled.contains(namespace))
    }

    /// Forgets VMs without a running pod on their Node: a tenant can create one with any status.
    pub fn forget_vms_without_pods(&mut self) {
        let running = self.pods.iter().filter(|pod| !pod.has_ended());
        let places =
            running.filter_map(|pod| Some((&pod.namespace, pod.vm.as_ref()?, pod.node.as_ref()?)));
        let places: BTreeSet<_> = places.collect();
        self.vms.retain(|vm| places.contains(&(&vm.namespace, &vm.uid, &vm.node)));
    }

    /// Whether a plan created a migration. One with a plan's label in a namespace without one is not its own.
    pub(crate) fn owns(&self, migration: &Migration) -> bool {
        migration.is_own && self.may_move_vms_of(&migration.namespace)
    }
}

/// A Node.
#[derive(Debug, Clone, Default)]
pub struct ClusterNode {
    /// Name of the Node.
    pub name: String,
    /// All labels.
    pub labels: Labels,
    /// Annotations, at least those of the agent.
    pub annotations: Labels,
    /// All taints.
    pub taints: Vec<Taint>,
    /// Whether new pods are kept off (`spec.unschedulable`).
    pub is_cordoned: bool,
    /// Whether the condition Ready is True.
    pub is_ready: bool,
    /// CPUs of the node (`status.capacity`).
    pub cpus: f64,
    /// What pods may request, `pods` included.
    pub allocatable: Amounts,
}

/// A VirtualMachineInstance.
#[derive(Debug, Clone)]
pub struct Vm {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, which owns its pods.
    pub uid: String,
    /// The Node that it runs on.
    pub node: String,
    /// Number of virtual CPUs.
    pub vcpus: f64,
    /// CPUs that only it may use.
    pub exclusive_cpus: f64,
    /// Why it is not live-migratable, by the condition LiveMigratable.
    pub live_migratable: Result<(), String>,
    /// `spec.evictionStrategy`.
    pub eviction_strategy: Option<String>,
    /// `spec.nodeSelector`.
    pub node_selector: Labels,
    /// Required node affinity, as in [`Pod`]. It can change while the VM runs, and that of its pod cannot.
    pub node_affinity: Option<Vec<NodeSelectorTerm>>,
    /// `spec.domain.cpu.model`; empty if it sets none.
    pub cpu_model: String,
    /// What ties it to the hardware of its Node, such as "huge pages".
    pub tied_by: Option<&'static str>,
    /// `status.migrationState`: the latest migration.
    pub migration: Option<LatestMigration>,
}

impl Vm {
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The latest migration of a VM.
#[derive(Debug, Clone, Default)]
pub struct LatestMigration {
    /// Its end; `None` while it is active, and for good if its migration was deleted.
    pub ended: Option<Timestamp>,
    /// The Node that the VM ran on.
    pub source: String,
    /// The Node that it was to run on.
    pub target: String,
}

/// A pod.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The Node that it is bound to.
    pub node: Option<String>,
    /// All labels.
    pub labels: Labels,
    /// UID of the VirtualMachineInstance that owns it.
    pub vm: Option<String>,
    /// UID of the migration that it is the target of.
    pub migration: Option<String>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// `status.phase`.
    pub phase: String,
    /// Since when kube-scheduler finds no Node for it.
    pub unscheduled_since: Option<Timestamp>,
    /// What it requests, overhead included.
    pub requests: Amounts,
    /// `spec.nodeSelector`.
    pub node_selector: Labels,
    /// Required node affinity; the terms are alternatives. `None` if it has none.
    pub node_affinity: Option<Vec<NodeSelectorTerm>>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodAffinityTerm>,
    /// Whether it requires pod affinity or a topology spread, which a plan does not compute.
    pub requires_other_pods: bool,
    /// Whether its VM's owner prefers no eviction, by the descheduler's annotation.
    pub prefers_no_eviction: bool,
}

impl Pod {
    /// Whether it has left its Node for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        ["Succeeded", "Failed"].contains(&self.phase.as_str())
    }

    /// A tenant can give the label to any pod, but only in the tenant's namespace.
    pub(crate) fn is_target_of(&self, migration: &Migration) -> bool {
        self.migration.as_ref() == Some(&migration.uid) && self.namespace == migration.namespace
    }

    pub(crate) fn is_on(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node) && !self.has_ended()
    }

    /// A tenant can name any VM as the owner of a pod, but only in the tenant's namespace.
    pub(crate) fn runs(&self, vm: &Vm) -> bool {
        let is_owner = self.vm.as_ref() == Some(&vm.uid) && self.namespace == vm.namespace;
        is_owner && self.is_on(&vm.node) && self.phase == "Running"
    }
}

/// A VirtualMachineInstanceMigration.
#[derive(Debug, Clone, Default)]
pub struct Migration {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, which the target's pod has as a label.
    pub uid: String,
    /// Name of the VM.
    pub vm: String,
    /// `status.phase`; empty at first.
    pub phase: String,
    /// Whether a plan of psi-agent created it, by its label.
    pub is_own: bool,
    /// Whether a quota forbids its pod.
    pub is_over_quota: bool,
    /// Whether it was deleted, and KubeVirt still ends it.
    pub is_being_deleted: bool,
    /// The value of [`HOSTNAME`] that it selects its target by.
    pub hostname: Option<String>,
    /// Whether KubeVirt created it for the eviction of a pod.
    pub is_evacuation: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When it succeeded or failed.
    pub ended: Option<Timestamp>,
    /// The Node that the VM ran on, once known.
    pub source: Option<String>,
    /// The Node that it was to run on, once known.
    pub target: Option<String>,
}

impl Migration {
    pub(crate) fn is_active(&self) -> bool {
        !["Succeeded", "Failed"].contains(&self.phase.as_str())
    }

    /// Whether it does not run yet.
    pub(crate) fn is_queued(&self) -> bool {
        let queued = ["", "Pending", "Scheduling", "WaitingForSync", "Synchronizing"];
        queued.contains(&self.phase.as_str())
    }

    /// Whether it has waited for so long that it waits for something else than other migrations, such as a quota, or
    /// hangs. KubeVirt has no time limit for that.
    pub(crate) fn is_stuck(&self, now: Timestamp) -> bool {
        let most = if self.is_queued() { HOUR } else { DAY };
        self.is_active() && self.created.is_some() && !is_within(most, self.created, now)
    }

    /// Namespace and name, also of a VM that has ended.
    pub(crate) fn name_of_vm(&self) -> String {
        format!("{}/{}", self.namespace, self.vm)
    }

    pub(crate) fn is_of(&self, vm: &Vm) -> bool {
        self.namespace == vm.namespace && self.vm == vm.name
    }
}

/// Seconds.
pub(crate) const HOUR: i64 = 3_600;
pub(crate) const DAY: i64 = 24 * HOUR;

/// Whether a moment has come, or comes within the next hour, since clocks differ. A tenant can write a date of any
/// year.
pub(crate) fn is_past(moment: Timestamp, now: Timestamp) -> bool {
    moment.as_second() <= now.as_second() + HOUR
}

/// Whether a moment has come, and at most so many seconds ago.
pub(crate) fn is_within(seconds: i64, moment: Option<Timestamp>, now: Timestamp) -> bool {
    moment.is_some_and(|moment| {
        is_past(moment, now) && now.as_second() - moment.as_second() <= seconds
    })
}
