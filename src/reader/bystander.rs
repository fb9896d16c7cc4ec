//! Who is on the node besides those that the score is about: they matter only for what of the
//! node's waiting is theirs.

use std::collections::{HashMap, HashSet};

use super::attention::{Look, Watched};
use super::tick::Tick;
use crate::cgroup_path::{Place, PodLevel};
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::sample::{BystanderSample, CpuUse, PressureReading};

/// Reads bystanders, and keeps what they waited for.
#[derive(Debug, Default)]
pub(super) struct BystanderReader {
    known: HashMap<CgroupId, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    watched: Watched,
    pressure: PressureReading,
    before: Option<PressureReading>,
}

/// Of all cgroups those that hold everything but the members: containers, and what stands highest
/// without a pod below it.
pub(super) fn bystanders<'a>(
    nodes: impl Iterator<Item = &'a CgroupNode> + Clone,
    members: &HashSet<CgroupId>,
) -> Vec<&'a CgroupNode> {
    let above = above_pods(nodes.clone());
    let stands_highest = |path: &'a str| {
        let mut higher = ancestors(path).filter(|path| *path != "/");
        !above.contains(path) && higher.all(|path| above.contains(path))
    };
    nodes
        .filter(|node| match &node.cgroup.place {
            Place::Pod(pod) => {
                matches!(pod.level, PodLevel::Container(_)) && !members.contains(&node.cgroup.id)
            }
            Place::Host => stands_highest(&node.cgroup.path),
            Place::Root | Place::MountUnit => false,
        })
        .collect()
}

/// Who uses the node, each once: members and bystanders.
pub(super) fn users<'a>(nodes: impl Iterator<Item = &'a CgroupNode> + Clone) -> HashSet<CgroupId> {
    bystanders(nodes, &HashSet::new()).into_iter().map(|node| node.cgroup.id).collect()
}

/// The paths in which pods stand: the root, kubepods and its QoS classes.
pub(super) fn above_pods<'a>(nodes: impl Iterator<Item = &'a CgroupNode>) -> HashSet<&'a str> {
    let pods = nodes.filter(|node| match &node.cgroup.place {
        Place::Pod(pod) => pod.level == PodLevel::Pod,
        Place::Root | Place::Host | Place::MountUnit => false,
    });
    // Hundreds of pods stand in a handful of places.
    let places: HashSet<&str> = pods.filter_map(|pod| ancestors(&pod.cgroup.path).last()).collect();
    places.into_iter().flat_map(|place| ancestors(place).chain([place])).collect()
}

/// The paths above a path, without itself.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let cuts = path.match_indices('/').map(|(at, _)| at);
    cuts.filter_map(|at| path.get(..at.max(1))).filter(move |above| *above != path)
}

impl BystanderReader {
    /// Reads those that may wait now, and tells of the others what was read last.
    pub(super) fn read(
        &mut self,
        tick: &mut Tick<'_>,
        bystanders: &[&CgroupNode],
    ) -> Vec<BystanderSample> {
        let mut samples = Vec::with_capacity(bystanders.len());
        let mut known = HashMap::with_capacity(bystanders.len());
        for bystander in bystanders {
            let id = bystander.cgroup.id;
            let Some(now) = self.look_at(tick, bystander) else {
                tick.gone.push(bystander.cgroup.path.clone());
                continue;
            };
            known.insert(id, now);
            let Known { watched, pressure, before } = now;
            let cpu = if watched.waited_lately(tick.now) {
                tick.read_cpu_use(bystander, watched.waited_us())
            } else {
                CpuUse::default()
            };
            samples.push(BystanderSample { id, pressure, before, cpu });
        }
        self.known = known;
        samples
    }

    /// Its pressure of now, or the one that is known; `None` when it is gone.
    fn look_at(&self, tick: &mut Tick<'_>, bystander: &CgroupNode) -> Option<Known> {
        let known = self.known.get(&bystander.cgroup.id);
        let lately = known.is_some_and(|known| known.watched.waited_lately(tick.now));
        match known {
            Some(known) if known.before.is_some() && !lately && tick.look == Look::WhoWaits => {
                return Some(*known);
            }
            _ => {}
        }
        let pressure = tick.reader.read_cpu_pressure(bystander, tick.node, tick.now)?;
        let watched =
            Watched::after_stall(known.map(|known| &known.watched), &pressure, Resource::Cpu);
        let before = known.map(|known| known.pressure);
        // Of one that was passed over and waits now nobody knows when it began to.
        let before = before.filter(|before| !watched.waits() || tick.follows(before));
        Some(Known { watched, pressure, before })
    }

    /// Nobody tells how much is waited on the node.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::ancestors;

    #[test]
    fn ancestors_are_all_paths_above() {
        assert_eq!(ancestors("/a.slice/b/c").collect::<Vec<_>>(), ["/", "/a.slice", "/a.slice/b"]);
        assert_eq!(ancestors("/a").collect::<Vec<_>>(), ["/"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
