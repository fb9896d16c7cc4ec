//! Who a cgroup is. In: the place that its path says, and the pods that the API server tells. Out:
//! a [`Workload`] with everything its series are labelled with; `None` until that is known.

pub mod pod;
pub mod pod_index;
pub mod pod_watch;
pub mod pods_file;

use std::sync::Arc;

/// What is known of a VM's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// The VM's own name, which is not its pod's; its namespace is.
    pub name: Box<str>,
    /// The uid of its VirtualMachineInstance; empty where its pod does not say.
    pub uid: Box<str>,
    /// Whether a live migration made this pod and the VM still runs on another node: it holds
    /// memory here, but no vCPU runs yet.
    pub awaits_handover: bool,
}

/// A pod, or a container of one, with the labels of its series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The pod's namespace.
    pub namespace: Box<str>,
    /// The pod's name.
    pub pod: Box<str>,
    /// The container's name in the pod; empty for the pod itself.
    pub container: Box<str>,
    /// The container's name at the runtime; empty for the pod itself.
    pub name: Box<str>,
    /// The container's image; empty for the pod itself.
    pub image: Box<str>,
    /// CPUs that the container asked for, thousandths; `None` for the pod itself.
    pub cpu_request: Option<u64>,
    /// The VM that the pod runs, if it is a virt-launcher.
    pub vm: Option<Arc<Vm>>,
}

/// The name of the container in which a VM itself runs; the others only attend it.
const VM_CONTAINER: &str = "compute";

impl Workload {
    /// Whether this is the container that a VM runs in.
    #[must_use]
    pub fn is_vm(&self) -> bool {
        self.vm.is_some() && &*self.container == VM_CONTAINER
    }
}
