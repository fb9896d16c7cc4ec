//! Matches cgroups with the list of pods.

use std::collections::HashMap;
use std::sync::Arc;

use super::pod_index::PodIndex;
use super::workload::Workload;
use crate::cgroup_path::{Place, PodLevel};

/// The pod or container of a cgroup.
#[derive(Debug, PartialEq)]
pub enum PodMatch {
    Known(Arc<Workload>),
    /// A pod or container that is not in the list of pods yet.
    NotListed,
    /// Outside pods, or within a container; or there is no source of pods.
    NoPod,
}

impl PodMatch {
    pub fn workload(&self) -> Option<&Arc<Workload>> {
        let PodMatch::Known(workload) = self else { return None };
        Some(workload)
    }
}

/// How well the list of pods matches the cgroups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Matching {
    /// Known pods.
    pub pods: usize,
    /// Cgroups of pods and containers that are not in the list of pods: pause containers, and
    /// those that are too new.
    pub cgroups_without_pod: usize,
    /// Names in the list of pods that are malformed or too long.
    pub rejected_names: usize,
}

/// Finds the pod or container of each of these cgroups, where there is a source of pods.
pub fn match_pods<'a>(
    pods: Option<&PodIndex>,
    places: impl Iterator<Item = &'a Place> + Clone,
) -> (Vec<PodMatch>, Option<Matching>) {
    let Some(pods) = pods else { return (places.map(|_| PodMatch::NoPod).collect(), None) };
    let static_pods: HashMap<&str, &Arc<Workload>> = places
        .clone()
        .filter_map(|place| {
            let Place::Pod(pod) = place else { return None };
            Some((&*pod.uid, pods.static_pod(pod)?))
        })
        .collect();
    let find = |place: &Place| {
        let Place::Pod(pod) = place else { return PodMatch::NoPod };
        let is_pod = pod.level == PodLevel::Pod;
        let by_container = || static_pods.get(&*pod.uid).filter(|_| is_pod).copied();
        match pods.workload(pod).or_else(by_container) {
            Some(workload) => PodMatch::Known(Arc::clone(workload)),
            None if is_pod || matches!(pod.level, PodLevel::Container(_)) => PodMatch::NotListed,
            None => PodMatch::NoPod,
        }
    };
    let found: Vec<PodMatch> = places.map(find).collect();
    let matching = Matching {
        pods: pods.count(),
        cgroups_without_pod: found.iter().filter(|one| **one == PodMatch::NotListed).count(),
        rejected_names: pods.rejected_names(),
    };
    (found, Some(matching))
}
