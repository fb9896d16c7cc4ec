//! Reads the node's own files, and the cgroups above all pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::population::above_pods;
use super::state::is_fresh;
use crate::cgroup_path::Place;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupNode, CgroupTree};
use crate::kernel::io_stat::Device;
use crate::kernel::pressure::Pressure;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadError, ReadErrorKind};
use crate::sample::NodeSample;
use crate::waiting::disk_rates::disk_rates;
use crate::waiting::files::Files;
use crate::waiting::node::NodeReadings;
use crate::waiting::reader::read_limit_hits;
use crate::waiting::series::{PressureReadings, Reading};

#[derive(Debug)]
pub(super) struct NodeReader {
    pub(super) proc: ProcRoot,
    pub(super) pressure: PressureReadings,
    devices: Arc<BTreeMap<Device, String>>,
    /// What ticks have read.
    pub(super) readings: NodeReadings,
}

impl NodeReader {
    pub(super) fn new(proc: ProcRoot) -> Self {
        Self {
            proc,
            pressure: PressureReadings::default(),
            devices: Arc::default(),
            readings: NodeReadings::default(),
        }
    }

    /// The node's pressures, which both passes share.
    fn read_pressures(&mut self, root: &Arc<CgroupRoot>, files: &mut Files) -> PressureReadings {
        for resource in Resource::ALL {
            let kept = self.pressure.of_mut(resource);
            let now = files.clock.now().at;
            if kept.is_none_or(|kept| !is_fresh(kept.at, now)) {
                *kept = read_pressure(&self.proc, root, resource, files);
            }
        }
        self.pressure
    }

    /// What a scrape reads of the node.
    pub(super) fn sample(&mut self, root: &Arc<CgroupRoot>, files: &mut Files) -> NodeSample {
        let pressure = self.read_pressures(root, files);
        NodeSample {
            pressure,
            irq: files.read_by(|buffer| self.proc.irq_pressure(buffer)).flatten(),
            cpu_times: files
                .timed(|files| files.read_by(|buffer| self.proc.cpu_times(buffer)).flatten()),
            reclaim: files.read_by(|buffer| self.proc.reclaim(buffer)).flatten(),
            memory: files.read_by(|buffer| self.proc.memory(buffer)).flatten(),
            devices: Arc::clone(&self.devices),
        }
    }

    pub(super) fn read_device_names(&mut self, files: &mut Files) {
        let names = files.read_by(|buffer| self.proc.device_names(buffer));
        self.devices = Arc::new(names.unwrap_or_default());
    }

    /// What a tick reads of the node, except its run delay. If no task waited for memory since the
    /// tick before, no limit above the pods delayed any task, so these cgroups are not read again.
    pub(super) fn read(&mut self, tree: &CgroupTree, files: &mut Files) {
        let pressure = self.read_pressures(tree.root(), files);
        let (proc, readings) = (&self.proc, &mut self.readings);
        for resource in Resource::ALL {
            readings.pressure.of_mut(resource).push(*pressure.of(resource));
        }
        readings
            .cpu_times
            .push(files.timed(|files| files.read_by(|buffer| proc.cpu_times(buffer)).flatten()));
        readings
            .reclaim
            .push(files.timed(|files| files.read_by(|buffer| proc.reclaim(buffer)).flatten()));
        readings.memory = files.read_by(|buffer| proc.memory(buffer)).flatten();
        readings.disks.push(files.timed(|files| files.read_by(|buffer| proc.disks(buffer))));
        readings.disk_rates = disk_rates(&readings.disks);
        if readings.swaps_in() {
            let swaps = files.read_by(|buffer| proc.swaps(buffer)).flatten().unwrap_or_default();
            let names = files.read_by(|buffer| proc.device_names(buffer)).unwrap_or_default();
            let is_swap = |(device, name)| swaps.contains(&name).then_some(device);
            readings.swap_devices = names.into_iter().filter_map(is_swap).collect();
        }
        let now = files.clock.now().at;
        if readings.pressure.memory.moved() {
            let above: Vec<&CgroupDir> = above_all_pods(tree).map(|node| &node.dir).collect();
            let hits = files.timed(|files| read_limit_hits(files, above.iter().copied()));
            readings.limit_hits.push(hits);
            // The topmost cgroup includes the memory of all cgroups below it.
            let bytes = above
                .iter()
                .filter_map(|dir| files.read(|buffer| dir.memory_current(buffer)).flatten());
            readings.pods_memory = bytes.max();
        } else {
            readings.limit_hits.hold(now);
        }
        if readings.reclaims() == Some(true) {
            readings.reclaimed_at = Some(now);
        }
    }

    /// Reads the run delay of all tasks, or forgets it where it is not needed.
    pub(super) fn read_run_delay(&mut self, is_needed: bool, files: &mut Files) {
        if is_needed {
            let read =
                |files: &mut Files| files.read_by(|buffer| self.proc.run_delay(buffer)).flatten();
            self.readings.run_delay_ns.push(files.timed(read));
        } else {
            self.readings.run_delay_ns.clear();
        }
    }
}

fn above_all_pods(tree: &CgroupTree) -> impl Iterator<Item = &CgroupNode> {
    let above = above_pods(tree.nodes());
    tree.nodes().filter(move |node| {
        node.cgroup.place == Place::Host && above.contains(Path::new(&*node.cgroup.path))
    })
}

/// The node's pressure from `/proc/pressure`, or from the root cgroup where that is refused
/// (SELinux).
fn read_pressure(
    proc: &ProcRoot,
    root: &Arc<CgroupRoot>,
    resource: Resource,
    files: &mut Files,
) -> Option<Reading<Pressure>> {
    let buffer = &mut files.buffer;
    let read = match proc.pressure(resource, buffer) {
        Err(ReadError { kind: ReadErrorKind::Refused(_), .. }) => {
            CgroupDir::open(root, "/", false).and_then(|dir| dir.pressure(resource, buffer))
        }
        read => read,
    };
    let value = match read {
        // PSI is off on this node, which is not an error.
        Err(error) if error.is_vanished() => None,
        Err(ReadError { kind: ReadErrorKind::Unsupported(_), .. }) => None,
        read => files.note(read),
    };
    files.timed(|_| value)
}
