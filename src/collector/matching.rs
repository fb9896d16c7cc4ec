//! Matches cgroups with the list of pods.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cgroup_path::{Place, PodLevel, PodUid};
use crate::identity::Workload;
use crate::identity::pod_index::PodIndex;
use crate::sample::Matching;

/// The pod or container of a cgroup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Known(Arc<Workload>),
    /// A pod or container that is not in the list of pods yet.
    NotYet,
    /// Outside pods, or within a container.
    Unnamed,
}

impl Found {
    pub(super) fn workload(&self) -> Option<&Arc<Workload>> {
        match self {
            Found::Known(workload) => Some(workload),
            Found::NotYet | Found::Unnamed => None,
        }
    }
}

/// Matches cgroups with pods, and counts those without a match.
#[derive(Debug, Default)]
pub(super) struct Matcher<'a> {
    seen: HashSet<&'a PodUid>,
    cgroups_without_pod: usize,
}

impl<'a> Matcher<'a> {
    pub(super) fn find(&mut self, pods: &PodIndex, place: &'a Place) -> Found {
        let Place::Pod(pod) = place else { return Found::Unnamed };
        if let Some(workload) = pods.workload(pod) {
            self.seen.insert(&pod.uid);
            return Found::Known(Arc::clone(workload));
        }
        if matches!(pod.level, PodLevel::Pod | PodLevel::Container(_)) {
            self.cgroups_without_pod += 1;
            return Found::NotYet;
        }
        Found::Unnamed
    }

    pub(super) fn matching(&self, pods: &PodIndex) -> Matching {
        Matching {
            pods: pods.len(),
            pods_without_cgroup: pods.len().saturating_sub(self.seen.len()),
            cgroups_without_pod: self.cgroups_without_pod,
        }
    }
}
