//! Who is on the node besides those that the score is about. Read only while somebody waits, since
//! they matter only for what of the node's waiting is theirs.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::cgroup::CgroupReader;
use super::cpu_use::{Directories, read_cpu_use};
use crate::cgroup_path::{Level, Place, PodUid};
use crate::kernel::cgroup_tree::{CgroupId, Node};
use crate::sample::{BystanderSample, CpuUse, NodeSample, PressureReading};

/// Who waited for this share of the time between two ticks...
const WAITS: f64 = 0.01;
/// ...has its CPU time read for so long: of others it can explain next to nothing.
const ATTENTIVE_FOR: Duration = Duration::from_secs(60);

/// Reads bystanders, and keeps what they waited for.
#[derive(Debug, Default)]
pub(super) struct BystanderReader {
    known: HashMap<CgroupId, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    pressure: PressureReading,
    waited_at: Option<Instant>,
}

/// Of all cgroups those that hold everything but the members: containers, and what stands highest
/// without a pod below it.
pub(super) fn bystanders<'a>(
    nodes: impl Iterator<Item = &'a Node> + Clone,
    members: &HashSet<CgroupId>,
) -> Vec<&'a Node> {
    let pods = nodes.clone().filter(|node| match &node.cgroup.place {
        Place::Pod(pod) => pod.level == Level::Pod,
        Place::Root | Place::Host | Place::MountUnit => false,
    });
    // Hundreds of pods stand in a handful of places.
    let places: HashSet<&str> = pods.filter_map(|pod| ancestors(&pod.cgroup.path).last()).collect();
    let above: HashSet<&str> =
        places.into_iter().flat_map(|place| ancestors(place).chain([place])).collect();
    let stands_highest = |path: &'a str| {
        let mut higher = ancestors(path).filter(|path| *path != "/");
        !above.contains(path) && higher.all(|path| above.contains(path))
    };
    nodes
        .filter(|node| match &node.cgroup.place {
            Place::Pod(pod) => {
                matches!(pod.level, Level::Container(_)) && !members.contains(&node.cgroup.id)
            }
            Place::Host => stands_highest(&node.cgroup.path),
            Place::Root | Place::MountUnit => false,
        })
        .collect()
}

/// The paths above a path, without itself.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let cuts = path.match_indices('/').map(|(at, _)| at);
    cuts.filter_map(|at| path.get(..at.max(1))).filter(move |above| *above != path)
}

impl BystanderReader {
    /// Reads them. `pods` are the cgroups of their pods; the paths of those that are gone are added
    /// to `gone`.
    pub(super) fn read(
        &mut self,
        reader: &mut CgroupReader,
        bystanders: &[&Node],
        pods: &HashMap<&PodUid, &Node>,
        node: &NodeSample,
        now: Instant,
        gone: &mut Vec<Box<str>>,
    ) -> Vec<BystanderSample> {
        let mut samples = Vec::with_capacity(bystanders.len());
        let mut known = HashMap::with_capacity(bystanders.len());
        for bystander in bystanders {
            let id = bystander.cgroup.id;
            let Some(pressure) = reader.read_cpu_pressure(bystander, node, now) else {
                gone.push(bystander.cgroup.path.clone());
                continue;
            };
            let before = self.known.get(&id);
            let waited_at = match before {
                Some(before) if waits(&before.pressure, &pressure) => Some(now),
                before => before.and_then(|before| before.waited_at),
            };
            known.insert(id, Known { pressure, waited_at });
            let of_interest =
                waited_at.is_some_and(|at| now.saturating_duration_since(at) < ATTENTIVE_FOR);
            let cpu = if of_interest {
                let pod = pod_of(&bystander.cgroup.place, pods).map(|pod| &pod.dir);
                read_cpu_use(reader, Directories { own: &bystander.dir, pod })
            } else {
                CpuUse::default()
            };
            samples.push(BystanderSample { id, pressure, cpu });
        }
        self.known = known;
        samples
    }

    /// Nobody waits any more.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

/// The cgroup of a container's pod.
pub(super) fn pod_of<'a>(place: &Place, pods: &HashMap<&PodUid, &'a Node>) -> Option<&'a Node> {
    match place {
        Place::Pod(place) => pods.get(&place.uid).copied(),
        Place::Root | Place::Host | Place::MountUnit => None,
    }
}

#[allow(clippy::cast_precision_loss, reason = "a stall between two ticks is far below 2^52 us")]
fn waits(before: &PressureReading, after: &PressureReading) -> bool {
    let some = |reading: &PressureReading| reading.pressures.cpu.and_then(|cpu| cpu.some_us);
    let window_us = after.at.saturating_duration_since(before.at).as_secs_f64() * 1e6;
    let stalled =
        some(before).zip(some(after)).and_then(|(before, after)| after.checked_sub(before));
    stalled.is_some_and(|stalled| stalled as f64 >= WAITS * window_us && stalled > 0)
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
