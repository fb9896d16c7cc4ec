//! A pod or a container of this node, with the labels of its series.

use std::sync::Arc;

use jiff::Timestamp;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vm {
    /// The name of the VirtualMachineInstance, in the namespace of its pod.
    pub name: Box<str>,
    /// The uid of the VirtualMachineInstance; empty where the pod has no label for it.
    pub uid: Box<str>,
    /// Whether the pod is the target of a live migration and the VM still runs on another node: it
    /// uses memory here, but no vCPU runs yet.
    pub awaits_handover: bool,
    /// When its pod was created; `None` where that is unknown. The target of a migration waits and copies for minutes
    /// before the VM arrives.
    pub created_at: Option<Timestamp>,
    /// Whether its pod has the label of the VM to move first.
    pub has_candidate_label: bool,
    /// Whether its owner has excluded it from eviction.
    pub prefers_no_eviction: bool,
    /// CPU ready that its owner accepts, 0 to 1.
    pub cpu_wait_budget: Option<f64>,
}

/// A pod, or a container of one, with the labels of its series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workload {
    pub namespace: Box<str>,
    pub pod: Box<str>,
    /// The container's name in the pod; empty for the pod itself.
    pub container: Box<str>,
    /// The container's name at the runtime; empty for the pod itself.
    pub name: Box<str>,
    /// The container's image; empty for the pod itself.
    pub image: Box<str>,
    /// CPU request of the container, in thousandths of a CPU; `None` for the pod itself.
    pub cpu_request: Option<u64>,
    /// Memory request of the container, bytes; `None` for the pod itself.
    pub memory_request: Option<u64>,
    pub vm: Option<Arc<Vm>>,
}

/// The container of a virt-launcher pod that runs QEMU; the others are helpers.
const VM_CONTAINER: &str = "compute";

impl Workload {
    pub fn is_vm(&self) -> bool {
        self.vm.is_some() && &*self.container == VM_CONTAINER
    }
}
