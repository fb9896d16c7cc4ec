//! Whose the cgroups of a tree are, by what the API server told of pods.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cgroup_path::{Place, PodLevel, PodUid};
use crate::identity::Workload;
use crate::identity::pod_index::PodIndex;
use crate::sample::Matching;

/// Whose a cgroup is, where pods are told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Known(Arc<Workload>),
    /// A pod's or a container's, but nobody told of it yet.
    NotYet,
    /// Nobody's that has a name: the host's, or within a container.
    Nobody,
}

impl Found {
    pub(super) fn workload(&self) -> Option<&Arc<Workload>> {
        match self {
            Found::Known(workload) => Some(workload),
            Found::NotYet | Found::Nobody => None,
        }
    }
}

/// Matches cgroups with pods, and counts what does not match.
#[derive(Debug, Default)]
pub(super) struct Matcher<'a> {
    seen: HashSet<&'a PodUid>,
    cgroups_without_pod: usize,
}

impl<'a> Matcher<'a> {
    pub(super) fn find(&mut self, pods: &PodIndex, place: &'a Place) -> Found {
        let Place::Pod(pod) = place else { return Found::Nobody };
        if let Some(workload) = pods.workload(pod) {
            self.seen.insert(&pod.uid);
            return Found::Known(Arc::clone(workload));
        }
        if matches!(pod.level, PodLevel::Pod | PodLevel::Container(_)) {
            self.cgroups_without_pod += 1;
            return Found::NotYet;
        }
        Found::Nobody
    }

    pub(super) fn matching(&self, pods: &PodIndex) -> Matching {
        Matching {
            pods: pods.len(),
            pods_without_cgroup: pods.len().saturating_sub(self.seen.len()),
            cgroups_without_pod: self.cgroups_without_pod,
        }
    }
}
