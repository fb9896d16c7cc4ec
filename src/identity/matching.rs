//! Matches cgroups with the list of pods.

use std::collections::HashSet;
use std::sync::Arc;

use super::pod_index::PodIndex;
use super::workload::Workload;
use crate::cgroup_path::{Place, PodLevel, PodUid};

/// The pod or container of a cgroup.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Known(Arc<Workload>),
    /// A pod or container that is not in the list of pods yet.
    NotYet,
    /// Outside pods, or within a container; or there is no source of pods.
    Unnamed,
}

impl Found {
    pub fn workload(&self) -> Option<&Arc<Workload>> {
        match self {
            Found::Known(workload) => Some(workload),
            Found::NotYet | Found::Unnamed => None,
        }
    }
}

/// Pods and cgroups that have not found each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Matching {
    /// Known pods.
    pub pods: usize,
    /// Pods without any cgroup here: not started yet, or ended.
    pub pods_without_cgroup: usize,
    /// Cgroups of pods and containers that are not in the list of pods: pause containers, and
    /// those that are too new.
    pub cgroups_without_pod: usize,
    /// Names in the list of pods that are malformed or too long, and not exported.
    pub rejected_names: usize,
}

/// Finds the pod or container of each of these cgroups, where there is a source of pods.
pub fn match_pods<'a>(
    pods: Option<&PodIndex>,
    places: impl Iterator<Item = &'a Place>,
) -> (Vec<Found>, Option<Matching>) {
    let Some(pods) = pods else { return (places.map(|_| Found::Unnamed).collect(), None) };
    let (mut seen, mut cgroups_without_pod) = (HashSet::<&PodUid>::new(), 0);
    let found = places.map(|place| {
        let Place::Pod(pod) = place else { return Found::Unnamed };
        if let Some(workload) = pods.workload(pod) {
            seen.insert(&pod.uid);
            return Found::Known(Arc::clone(workload));
        }
        if matches!(pod.level, PodLevel::Pod | PodLevel::Container(_)) {
            cgroups_without_pod += 1;
            return Found::NotYet;
        }
        Found::Unnamed
    });
    let found = found.collect();
    let pods_without_cgroup = pods.len().saturating_sub(seen.len());
    let matching = Matching {
        pods: pods.len(),
        pods_without_cgroup,
        cgroups_without_pod,
        rejected_names: pods.rejected_names(),
    };
    (found, Some(matching))
}
