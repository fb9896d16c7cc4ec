//! Metrics of the list of pods, and of how it matches the cgroups.

use prometheus::{IntGauge, Registry};

use super::registry::{registered, signed};
use crate::identity::matching::Matching;

#[derive(Debug)]
pub(super) struct MatchingMetrics {
    pods: IntGauge,
    pods_without_cgroup: IntGauge,
    cgroups_without_pod: IntGauge,
    rejected_names: IntGauge,
}

impl MatchingMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help)?);
        Ok(Self {
            pods: gauge("psi_agent_pods", "Pods of this node in the latest list.")?,
            pods_without_cgroup: gauge(
                "psi_agent_pods_without_cgroup",
                "Pods of this node without a cgroup: not started yet, or ended.",
            )?,
            cgroups_without_pod: gauge(
                "psi_agent_cgroups_without_pod",
                "Cgroups without a listed pod, which have no series: pause containers and new pods.",
            )?,
            rejected_names: gauge(
                "psi_agent_rejected_pod_names",
                "Names of VMs and images in the list of pods that are malformed or too long to export.",
            )?,
        })
    }

    pub(super) fn observe(&self, matching: Matching) {
        self.pods.set(signed(matching.pods));
        self.pods_without_cgroup.set(signed(matching.pods_without_cgroup));
        self.cgroups_without_pod.set(signed(matching.cgroups_without_pod));
        self.rejected_names.set(signed(matching.rejected_names));
    }
}
