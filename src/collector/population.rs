//! Selects what is scored: the first kind that the node has of VMs of KubeVirt, VMs of other stacks outside a cluster,
//! containers of pods, and other units. Pure.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cgroup_path::{Place, PodLevel, Unit};
use crate::identity::Workload;
use crate::identity::matching::PodMatch;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupId};
use crate::kernel::cgroup_tree::CgroupTree;
use crate::waiting::Population;
use crate::waiting::reader::Dirs;

/// Time after which a node that has another kind of workloads is scored by it.
const CHANGE_AFTER: Duration = Duration::from_secs(60);

/// A container or unit that can be scored.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) kind: Kind,
    pub(super) dir: &'a CgroupDir,
    /// Its pod's labels; `None` for units, and without a source of pods.
    pub(super) workload: Option<Arc<Workload>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Vm,
    Container,
    /// Not listed, or the target of a migration before its handover, while the list is not up to date. It may be
    /// a VM by now.
    Unlisted,
    UnitVm,
    Unit,
}

/// What the cgroups of a node are, before one population is selected.
#[derive(Debug)]
pub(super) struct Workloads<'a> {
    tree: &'a CgroupTree,
    /// The cgroups of pods by uid.
    pods: HashMap<&'a str, (&'a CgroupDir, &'a PodMatch)>,
    all: Vec<Member<'a>>,
}

impl<'a> Workloads<'a> {
    /// `found` has the pod of each cgroup. `is_stale` says whether the list of pods is not up to date.
    ///
    /// `has_tasks` says whether a cgroup outside units has processes of its own. Where no other cgroup
    /// has any, as on a hybrid host without systemd, the root is the one unit: its pressure, which is
    /// the node's, is then that of its own tasks.
    pub(super) fn of(
        tree: &'a CgroupTree,
        found: &'a [PodMatch],
        is_stale: bool,
        mut has_tasks: impl FnMut(&CgroupDir) -> bool,
    ) -> Self {
        let (mut pods, mut all, mut units) = (HashMap::new(), Vec::new(), HashSet::new());
        for (dir, found) in tree.dirs().zip(found) {
            let path = &*dir.cgroup.path;
            let kind = match &dir.cgroup.place {
                Place::Root => None,
                Place::Pod(pod) => {
                    if pod.level == PodLevel::Pod {
                        pods.insert(&*pod.uid, (dir, found));
                    }
                    let whole = || pods.get(&*pod.uid).and_then(|(_, found)| found.workload());
                    // A listed pod without a VM gets none, whichever of its containers starts again.
                    let may_be_vm = || whole().is_none_or(|pod| pod.vm.is_some());
                    kind_in_pod(&pod.level, found, is_stale && may_be_vm())
                }
                Place::Host if Path::new(path).ancestors().any(|above| units.contains(above)) => {
                    None
                }
                Place::Host => {
                    let unit = Unit::of_path(path);
                    let is_unit = unit.is_some() || !path.ends_with(".slice") && has_tasks(dir);
                    let is_vm = unit.is_some_and(|unit| unit.vm.is_some());
                    is_unit.then_some(if is_vm { Kind::UnitVm } else { Kind::Unit })
                }
            };
            if matches!(kind, Some(Kind::UnitVm | Kind::Unit)) {
                units.insert(Path::new(path));
            }
            if let Some(kind) = kind {
                all.push(Member { kind, dir, workload: found.workload().cloned() });
            }
        }
        if all.is_empty() && pods.is_empty() {
            let root = tree.dir("/").filter(|root| has_tasks(root));
            all.extend(root.map(|dir| Member { kind: Kind::Unit, dir, workload: None }));
        }
        Self { tree, pods, all }
    }

    fn has(&self, kind: Kind) -> bool {
        self.all.iter().any(|member| member.kind == kind)
    }

    /// What is to be scored. On a node of a cluster, units never are. Pods beside VMs of a host are those of a
    /// cluster in a container.
    pub(super) fn population(&self, in_cluster: bool) -> Population {
        if self.has(Kind::Vm) || !in_cluster && self.has(Kind::UnitVm) {
            Population::Vms
        } else if in_cluster || !self.pods.is_empty() {
            Population::Containers
        } else {
            Population::Units
        }
    }

    /// Takes the members of this population.
    pub(super) fn take(&mut self, population: Population) -> Vec<Member<'a>> {
        let kinds: &[Kind] = match population {
            Population::Vms if self.has(Kind::Vm) => &[Kind::Vm, Kind::Unlisted],
            Population::Vms => &[Kind::UnitVm],
            Population::Containers => &[Kind::Vm, Kind::Container, Kind::Unlisted],
            Population::Units => &[Kind::UnitVm, Kind::Unit],
        };
        self.all.extract_if(.., |member| kinds.contains(&member.kind)).collect()
    }

    /// All workloads except the members that were taken.
    pub(super) fn others(&self, taken: &[Member<'_>]) -> Vec<&'a CgroupDir> {
        if self.pods.is_empty() || taken.iter().any(|member| member.kind == Kind::UnitVm) {
            // A unit may hold pods.
            let paths = self.all.iter().map(|member| Path::new(&*member.dir.cgroup.path));
            let all: HashSet<&Path> = paths.collect();
            let is_below = |dir: &CgroupDir| {
                Path::new(&*dir.cgroup.path).ancestors().skip(1).any(|above| all.contains(above))
            };
            return self.all.iter().map(|member| member.dir).filter(|dir| !is_below(dir)).collect();
        }
        let taken: HashSet<CgroupId> = taken.iter().map(|member| member.dir.cgroup.id).collect();
        workloads(self.tree.dirs()).filter(|dir| !taken.contains(&dir.cgroup.id)).collect()
    }

    /// The directories whose limits hold for a container or unit.
    pub(super) fn dirs(&self, container: &'a CgroupDir) -> Dirs<'a> {
        if let Place::Pod(pod) = &container.cgroup.place {
            let pod = self.pods.get(&*pod.uid).map(|(dir, _)| *dir);
            return Dirs { container, pod, outside: None };
        }
        let path = Path::new(&*container.cgroup.path);
        let nested = path.join("libvirt");
        // What limits a slice limits a part of the host, as kubepods' limits do: it is not the unit's own.
        let is_slice = |path: &Path| path.extension().is_some_and(|name| name == "slice");
        let above = path.ancestors().skip(1).filter(|path| !is_slice(path));
        let outside = above.chain([&*nested]).filter_map(|path| self.tree.dir(path.to_str()?));
        let outside = outside.filter(|dir| dir.cgroup.place == Place::Host);
        Dirs { container, pod: None, outside: Some(outside.collect()) }
    }
}

/// `None` for what is no container, and while the list is up to date for pause containers, the target of a
/// migration before its handover, and what is not listed yet.
fn kind_in_pod(level: &PodLevel, found: &PodMatch, is_stale: bool) -> Option<Kind> {
    let PodLevel::Container(_) = level else { return None };
    let workload = found.workload();
    let vm = workload.and_then(|workload| workload.vm.as_ref());
    if *found == PodMatch::NotListed || vm.is_some_and(|vm| vm.awaits_handover) {
        return is_stale.then_some(Kind::Unlisted);
    }
    let is_vm = workload.is_some_and(|workload| workload.is_vm());
    Some(if is_vm { Kind::Vm } else { Kind::Container })
}

/// The kind of workloads that is scored, and when the node had it last. It changes when the node has had another kind
/// for a minute since then.
#[derive(Debug, Default)]
pub(super) struct Selector(Option<(Population, Instant)>);

impl Selector {
    /// The population at this time, given what the node has.
    pub(super) fn select(&mut self, found: Population, now: Instant) -> Population {
        let (current, had_at) = self.0.get_or_insert((found, now));
        if found == *current || now.saturating_duration_since(*had_at) > CHANGE_AFTER {
            (*current, *had_at) = (found, now);
        }
        *current
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
