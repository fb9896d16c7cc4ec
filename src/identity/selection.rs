//! Selects the cgroups that are exported.

use super::matching::PodMatch;
use crate::cgroup_path::{Place, PodLevel};

/// Which cgroups are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// All cgroups; if not, only those that the fields below select.
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
    /// Whether a cgroup at this place, with this pod or container, is exported.
    pub fn includes(&self, place: &Place, found: &PodMatch) -> bool {
        let has_level = match place {
            Place::Root => self.root,
            Place::Host => false,
            Place::Pod(pod) if pod.level == PodLevel::Pod => self.pods,
            Place::Pod(pod) => self.containers && matches!(pod.level, PodLevel::Container(_)),
        };
        (self.everything || has_level)
            && match found {
                PodMatch::Known(workload) => !self.vms_only || workload.vm.is_some(),
                PodMatch::NotListed => false,
                PodMatch::NoPod => true,
            }
    }
}
