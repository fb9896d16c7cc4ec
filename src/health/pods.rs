//! Metrics of the list of pods: its errors, and how it matches the cgroups.

use prometheus::{IntCounter, IntGauge, Registry};

use super::registry::{register, signed};
use crate::identity::matching::Matching;

#[derive(Debug)]
pub(super) struct PodMetrics {
    pods: IntGauge,
    cgroups_without_pod: IntGauge,
    rejected_names: IntGauge,
    pub(super) errors: IntCounter,
}

impl PodMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        Ok(Self {
            pods: IntGauge::new("psi_agent_pods", "Pods of this node in the latest list.")?,
            cgroups_without_pod: IntGauge::new(
                "psi_agent_cgroups_without_pod",
                "Cgroups without a listed pod, which have no series: pause containers and new pods.",
            )?,
            rejected_names: IntGauge::new(
                "psi_agent_rejected_pod_names",
                "Names in the list of pods that are malformed or too long to export, or that another pod has.",
            )?,
            errors: IntCounter::new(
                "psi_agent_pod_watch_errors_total",
                "Failures to list or watch pods, or to read them from a file.",
            )?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        for gauge in [&self.pods, &self.cgroups_without_pod, &self.rejected_names] {
            register(registry, gauge)?;
        }
        register(registry, &self.errors)
    }

    pub(super) fn observe(&self, matching: Matching) {
        self.pods.set(signed(matching.pods));
        self.cgroups_without_pod.set(signed(matching.cgroups_without_pod));
        self.rejected_names.set(signed(matching.rejected_names));
    }
}
