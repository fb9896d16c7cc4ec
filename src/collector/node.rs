//! The node's own files, and the cgroups above all pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::files::Files;
use super::population::above_pods;
use super::stalls::{read_limit_hits, read_memory_of};
use super::state::is_fresh;
use crate::cgroup_path::Place;
use crate::clock::Moment;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupNode, CgroupTree};
use crate::kernel::io_stat::Device;
use crate::kernel::node_text::DiskCounters;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadError, ReadErrorKind};
use crate::sample::{AllPods, NodeSample, PressureReading, Pressures};

/// Reads the node.
#[derive(Debug)]
pub(super) struct NodeReader {
    pub(super) proc: ProcRoot,
    pressure: Option<PressureReading>,
    pods: AllPods,
    devices: Arc<BTreeMap<Device, String>>,
}

impl NodeReader {
    pub(super) fn new(proc: ProcRoot) -> Self {
        Self { proc, pressure: None, pods: AllPods::default(), devices: Arc::default() }
    }

    /// What both passes read.
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
        let irq = self.proc.irq_pressure(&mut files.buffer);
        let cpu_times = self.proc.cpu_times(&mut files.buffer);
        let reclaim = self.proc.reclaim(&mut files.buffer);
        let memory = self.proc.memory(&mut files.buffer);
        NodeSample {
            pressure,
            irq: files.note(irq).flatten(),
            cpu_times: files.note(cpu_times).flatten(),
            reclaim: files.note(reclaim).flatten(),
            memory: files.note(memory).flatten(),
            devices: Arc::clone(&self.devices),
        }
    }

    /// Run delay of all tasks, nanoseconds.
    pub(super) fn run_delay(&self, files: &mut Files) -> Option<u64> {
        let run_delay = self.proc.run_delay(&mut files.buffer);
        files.note(run_delay).flatten()
    }

    /// I/O of block devices.
    pub(super) fn disks(&self, files: &mut Files) -> Option<BTreeMap<Device, DiskCounters>> {
        let disks = self.proc.disks(&mut files.buffer);
        files.note(disks)
    }

    pub(super) fn read_device_names(&mut self, files: &mut Files) {
        let names = self.proc.device_names(&mut files.buffer);
        self.devices = Arc::new(files.note(names).unwrap_or_default());
    }

    /// All pods together; read again only when tasks waited for memory since, or a limit of these
    /// cgroups can have delayed none.
    pub(super) fn all_pods(
        &mut self,
        tree: &CgroupTree,
        files: &mut Files,
        memory_waits: bool,
    ) -> AllPods {
        if memory_waits {
            self.pods = read_all_pods(tree, files);
        }
        self.pods
    }
}

fn read_all_pods(tree: &CgroupTree, files: &mut Files) -> AllPods {
    let above = above_pods(tree.nodes());
    let is_above =
        |node: &&CgroupNode| node.cgroup.place == Place::Host && above.contains(&*node.cgroup.path);
    let mut pods = AllPods { limit_hits: Some(0), memory: None };
    for CgroupNode { dir, .. } in tree.nodes().filter(is_above) {
        let hits = read_limit_hits(files, dir);
        pods.limit_hits = pods.limit_hits.zip(hits).map(|(sum, hits)| sum.saturating_add(hits));
        // The highest has the memory of all below it.
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
            // PSI is off on this node: absent, and no error at every read.
            Err(ReadError {
                kind: ReadErrorKind::Vanished(_) | ReadErrorKind::Unsupported(_),
                ..
            }) => None,
            read => files.note(read),
        };
    }
    pressures
}
