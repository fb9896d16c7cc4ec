//! Which cgroups are read, and which of their files.

use crate::cgroup_path::{Place, PodLevel};
use crate::identity::Workload;
use crate::kernel::cgroup_tree::Extent;

/// Which cgroups are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Every cgroup, or the levels below only.
    pub everything: bool,
    /// The root cgroup.
    pub root: bool,
    /// Pods.
    pub pods: bool,
    /// Containers.
    pub containers: bool,
    /// Of pods and containers, those of VMs only.
    pub vms_only: bool,
}

impl Selection {
    /// No cgroup at all.
    pub const NONE: Self =
        Self { everything: false, root: false, pods: false, containers: false, vms_only: false };

    /// Whether a cgroup at this place, whosever it is, is read.
    pub(super) fn includes(&self, place: &Place, workload: Option<&Workload>) -> bool {
        self.includes_place(place)
            && (!self.vms_only || workload.is_none_or(|workload| workload.vm.is_some()))
    }

    fn includes_place(&self, place: &Place) -> bool {
        match place {
            Place::MountUnit => false,
            Place::Root => self.everything || self.root,
            Place::Host => self.everything,
            Place::Pod(pod) => match pod.level {
                PodLevel::Pod => self.everything || self.pods,
                PodLevel::Container(_) => self.everything || self.containers,
                PodLevel::Sandbox(_)
                | PodLevel::Monitor
                | PodLevel::Nested(_)
                | PodLevel::Unknown => self.everything,
            },
        }
    }

    pub(super) fn extent(&self) -> Extent {
        if self.everything { Extent::Everything } else { Extent::Pods }
    }
}

/// Which groups of files are read besides pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups {
    /// `cpu.stat`.
    pub cpu: bool,
    /// `memory.current`, `memory.stat` and their kind.
    pub memory: bool,
    /// `io.stat`.
    pub io: bool,
    /// `cgroup.procs`, `pids.*`.
    pub processes: bool,
    /// `cpu.max`, `cpu.weight`, `memory.max`.
    pub spec: bool,
}
