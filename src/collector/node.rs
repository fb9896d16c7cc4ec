//! The node's own files, and the cgroups above all pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::Files;
use super::population::above_pods;
use super::stalls::{MemoryNeeds, read_limit_hits, read_memory_of};
use super::state::is_fresh;
use crate::cgroup_path::Place;
use crate::clock::Moment;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupNode, CgroupTree};
use crate::kernel::io_stat::Device;
use crate::kernel::node_text::Reclaim;
use crate::kernel::pressure::Pressure;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadError, ReadErrorKind};
use crate::sample::{AllPods, NodeSample, PressureReading, Pressures};

/// Time after a reclaim in which most refaults of the reclaimed pages occur.
const REFAULTS_FOLLOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct NodeReader {
    pub(super) proc: ProcRoot,
    pressure: Option<PressureReading>,
    devices: Arc<BTreeMap<Device, String>>,
    pods: AllPods,
    memory: MemoryHistory,
}

/// Memory pressure and reclaim at the tick before.
#[derive(Debug, Default)]
struct MemoryHistory {
    pressure: Option<Option<Pressure>>,
    scanned: Option<(Option<Reclaim>, Option<u64>)>,
    reclaimed_at: Option<Instant>,
}

impl NodeReader {
    pub(super) fn new(proc: ProcRoot) -> Self {
        let (pods, memory) = (AllPods::default(), MemoryHistory::default());
        Self { proc, pressure: None, devices: Arc::default(), pods, memory }
    }

    /// Reads the files of the node that both passes need.
    pub(super) fn read(
        &mut self,
        root: &Arc<CgroupRoot>,
        files: &mut Files,
        moment: Moment,
    ) -> NodeSample {
        let kept = self.pressure.filter(|reading| is_fresh(reading.at, moment.at));
        let pressure = kept.unwrap_or_else(|| PressureReading {
            at: moment.at,
            pressures: read_node_pressures(&self.proc, root, files),
        });
        self.pressure = Some(pressure);
        NodeSample {
            pressure,
            irq: files.read_by(|buffer| self.proc.irq_pressure(buffer)).flatten(),
            cpu_times: files.read_by(|buffer| self.proc.cpu_times(buffer)).flatten(),
            reclaim: files.read_by(|buffer| self.proc.reclaim(buffer)).flatten(),
            memory: files.read_by(|buffer| self.proc.memory(buffer)).flatten(),
            devices: Arc::clone(&self.devices),
        }
    }

    pub(super) fn read_device_names(&mut self, files: &mut Files) {
        let names = files.read_by(|buffer| self.proc.device_names(buffer));
        self.devices = Arc::new(names.unwrap_or_default());
    }

    /// Reads the memory of all pods together, and decides which memory files this tick reads. If no
    /// task waited for memory since the tick before, no limit above the pods delayed any task, so
    /// these cgroups are not read again.
    pub(super) fn memory(
        &mut self,
        tree: &CgroupTree,
        files: &mut Files,
        node: &NodeSample,
        now: Instant,
    ) -> (AllPods, MemoryNeeds) {
        let pressure = node.pressure.pressures.memory;
        let waits = self.memory.pressure.replace(pressure) != Some(pressure);
        if waits {
            self.pods = read_all_pods(tree, files);
        }
        let scanned = (node.reclaim, self.pods.limit_hits);
        if self.memory.scanned.replace(scanned).is_some_and(|before| before != scanned) {
            self.memory.reclaimed_at = Some(now);
        }
        let age = self.memory.reclaimed_at.map(|at| now.saturating_duration_since(at));
        let refaults = age.is_some_and(|age| age < REFAULTS_FOLLOW);
        (self.pods, MemoryNeeds { waits, refaults })
    }
}

fn read_all_pods(tree: &CgroupTree, files: &mut Files) -> AllPods {
    let above = above_pods(tree.nodes());
    let is_above = |node: &&CgroupNode| {
        node.cgroup.place == Place::Host && above.contains(Path::new(&*node.cgroup.path))
    };
    let mut pods = AllPods { limit_hits: Some(0), memory: None };
    for CgroupNode { dir, .. } in tree.nodes().filter(is_above) {
        let hits = read_limit_hits(files, dir);
        pods.limit_hits = pods.limit_hits.zip(hits).map(|(sum, hits)| sum.saturating_add(hits));
        // The topmost cgroup includes the memory of all cgroups below it.
        pods.memory = pods.memory.max(read_memory_of(files, dir));
    }
    pods
}

/// The node's pressures from `/proc/pressure`, or from the root cgroup where that is refused
/// (SELinux).
fn read_node_pressures(proc: &ProcRoot, root: &Arc<CgroupRoot>, files: &mut Files) -> Pressures {
    let mut pressures = Pressures::default();
    for resource in Resource::ALL {
        let buffer = &mut files.buffer;
        let read = match proc.pressure(resource, buffer) {
            Err(ReadError { kind: ReadErrorKind::Refused(_), .. }) => {
                CgroupDir::open(root, "/", false).and_then(|dir| dir.pressure(resource, buffer))
            }
            read => read,
        };
        *pressures.of_mut(resource) = match read {
            // PSI is off on this node, which is not an error.
            Err(error) if error.is_vanished() => None,
            Err(ReadError { kind: ReadErrorKind::Unsupported(_), .. }) => None,
            read => files.note(read),
        };
    }
    pressures
}
