//! Selects what is scored: the first kind that the node has of VMs of KubeVirt, containers of pods,
//! VMs of other stacks, and other units. Pure.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cgroup_path::{Place, PodLevel, Unit};
use crate::identity::Workload;
use crate::identity::matching::PodMatch;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::waiting::Population;

/// Time after which a node that has another kind of workloads is scored by it.
const CHANGE_AFTER: Duration = Duration::from_secs(60);

/// A scored container or unit.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) dir: &'a CgroupDir,
    /// Its pod's labels; `None` for units, and without a source of pods.
    pub(super) workload: Option<Arc<Workload>>,
}

/// The cgroups of pods by uid.
pub(super) type Pods<'a> = HashMap<&'a str, &'a CgroupDir>;

/// What the cgroups of a node are, before one kind is selected.
#[derive(Debug, Default)]
pub(super) struct Workloads<'a> {
    pub(super) pods: Pods<'a>,
    vms: Vec<Member<'a>>,
    containers: Vec<Member<'a>>,
    unit_vms: Vec<Member<'a>>,
    units: Vec<Member<'a>>,
}

impl<'a> Workloads<'a> {
    /// `has_tasks` says whether a cgroup outside units has processes of its own. Targets of a
    /// migration before their handover, and pods that are not listed yet, are left out.
    pub(super) fn of(
        dirs: impl Iterator<Item = (&'a CgroupDir, &'a PodMatch)>,
        mut has_tasks: impl FnMut(&CgroupDir) -> bool,
    ) -> Self {
        let (mut all, mut units) = (Self::default(), HashSet::new());
        for (dir, found) in dirs {
            let path = &*dir.cgroup.path;
            match &dir.cgroup.place {
                Place::Pod(pod) => all.add_of_pod(dir, found, &pod.level, &pod.uid),
                Place::Host if Path::new(path).ancestors().any(|above| units.contains(above)) => {}
                Place::Host => {
                    let unit = Unit::of_path(path);
                    if unit.is_some() || !path.ends_with(".slice") && has_tasks(dir) {
                        units.insert(Path::new(path));
                        let is_vm = unit.is_some_and(|unit| unit.vm.is_some());
                        let members = if is_vm { &mut all.unit_vms } else { &mut all.units };
                        members.push(Member { dir, workload: None });
                    }
                }
                Place::Root => {}
            }
        }
        all
    }

    fn add_of_pod(&mut self, dir: &'a CgroupDir, found: &PodMatch, level: &PodLevel, uid: &'a str) {
        if *level == PodLevel::Pod {
            self.pods.insert(uid, dir);
        }
        let workload = found.workload();
        let awaits_handover =
            workload.and_then(|workload| workload.vm.as_ref()).is_some_and(|vm| vm.awaits_handover);
        if matches!(level, PodLevel::Container(_))
            && *found != PodMatch::NotListed
            && !awaits_handover
        {
            let is_vm = workload.is_some_and(|workload| workload.is_vm());
            let members = if is_vm { &mut self.vms } else { &mut self.containers };
            members.push(Member { dir, workload: workload.cloned() });
        }
    }

    /// What is to be scored. On a node of a cluster, units never are.
    pub(super) fn population(&self, in_cluster: bool) -> Population {
        if !self.vms.is_empty() {
            Population::Vms
        } else if in_cluster || !self.pods.is_empty() {
            Population::Containers
        } else if !self.unit_vms.is_empty() {
            Population::Vms
        } else {
            Population::Units
        }
    }

    /// The members of this population, and of a host without pods the other units.
    pub(super) fn members(&mut self, population: Population) -> (Vec<Member<'a>>, Vec<Member<'a>>) {
        let take = std::mem::take;
        let (mut vms, containers) = (take(&mut self.vms), take(&mut self.containers));
        let (unit_vms, mut units) = (take(&mut self.unit_vms), take(&mut self.units));
        match population {
            Population::Vms if vms.is_empty() => (unit_vms, units),
            Population::Vms => (vms, Vec::new()),
            Population::Containers => {
                vms.extend(containers);
                (vms, Vec::new())
            }
            Population::Units => {
                units.extend(unit_vms);
                (units, Vec::new())
            }
        }
    }
}

/// The kind of workloads that is scored. It changes only when the node has had another kind for a
/// minute.
#[derive(Debug, Default)]
pub(super) struct Selector {
    current: Option<Population>,
    differs_since: Option<Instant>,
}

impl Selector {
    /// The population at this time, given what the node has.
    pub(super) fn select(&mut self, found: Population, now: Instant) -> Population {
        let current = *self.current.get_or_insert(found);
        if found == current {
            self.differs_since = None;
            return current;
        }
        let since = *self.differs_since.get_or_insert(now);
        if now.saturating_duration_since(since) < CHANGE_AFTER {
            return current;
        }
        *self = Self { current: Some(found), differs_since: None };
        found
    }
}

/// Cgroups that together hold all tasks of the node, each task once: containers, and the topmost
/// cgroups without a pod below them.
pub(super) fn workloads<'a>(
    dirs: impl Iterator<Item = &'a CgroupDir> + Clone,
) -> impl Iterator<Item = &'a CgroupDir> {
    let above = above_pods(dirs.clone());
    dirs.filter(move |dir| match &dir.cgroup.place {
        Place::Pod(pod) => matches!(pod.level, PodLevel::Container(_)),
        Place::Host => {
            let path = Path::new(&*dir.cgroup.path);
            !above.contains(path) && path.parent().is_some_and(|parent| above.contains(parent))
        }
        Place::Root => false,
    })
}

/// Paths of the cgroups above pods: the root, kubepods and its QoS classes.
pub(super) fn above_pods<'a>(dirs: impl Iterator<Item = &'a CgroupDir>) -> HashSet<&'a Path> {
    let is_pod = |place: &Place| matches!(place, Place::Pod(pod) if pod.level == PodLevel::Pod);
    let pods = dirs.filter(|dir| is_pod(&dir.cgroup.place));
    // Hundreds of pods have a handful of parents.
    let parents: HashSet<&Path> =
        pods.filter_map(|pod| Path::new(&*pod.cgroup.path).parent()).collect();
    let above = parents.into_iter().flat_map(Path::ancestors);
    above.chain([Path::new("/")]).collect()
}
