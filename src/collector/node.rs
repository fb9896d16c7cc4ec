//! Reads the node's own files, and the cgroups above all pods.

use std::path::Path;
use std::time::{Duration, Instant};

use super::population::above_pods;
use crate::cgroup_path::Place;
use crate::kernel::cgroup_dir::{CgroupDir, Resource};
use crate::kernel::cgroup_tree::CgroupTree;
use crate::kernel::node_text::CpuTimes;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadError, ReadErrorKind, if_present};
use crate::waiting::disk_rates::{disk_rates, swap_devices};
use crate::waiting::files::Files;
use crate::waiting::node::NodeReadings;
use crate::waiting::reader::limit_hits;
use crate::waiting::series::PressureReadings;

/// Minimum time between two reads of the same pressure file, by either pass. Each read ends one of
/// the kernel's averaging windows, in which a CPU that was busy for less than a jiffy is ignored.
pub const MIN_PRESSURE_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a pressure file was read too recently to be read again.
pub(super) fn is_fresh(read_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(read_at) < MIN_PRESSURE_INTERVAL
}

#[derive(Debug)]
pub(super) struct NodeReader {
    pub(super) proc: ProcRoot,
    pub(super) pressure: PressureReadings,
    /// What ticks have read.
    pub(super) readings: NodeReadings,
}

impl NodeReader {
    /// The node's pressures, which both passes share: from `/proc/pressure`, or from the root cgroup where that is
    /// refused (SELinux).
    fn read_pressures(&mut self, tree: &CgroupTree, files: &mut Files) -> PressureReadings {
        for resource in Resource::ALL {
            let kept = self.pressure.of_mut(resource);
            let now = (files.clock)().at;
            if kept.is_none_or(|kept| !is_fresh(kept.at, now)) {
                let read = match (self.proc.pressure(resource), tree.dir("/")) {
                    (Err(ReadError { kind: ReadErrorKind::Refused(_), .. }), Some(root)) => {
                        root.pressure(resource)
                    }
                    (read, _) => read,
                };
                // Where PSI is off, there is no error.
                *kept = files.dated(if_present(read));
                *self.readings.reports.of_mut(resource) |= kept.is_some();
            }
        }
        self.pressure
    }

    /// Adds what a scrape reads of the node to what the one before has read; disks only where `has_io`.
    pub(super) fn sample(
        &mut self,
        tree: &CgroupTree,
        files: &mut Files,
        has_io: bool,
        readings: &mut NodeReadings,
    ) {
        let pressure = self.read_pressures(tree, files);
        for resource in Resource::ALL {
            readings.pressure.of_mut(resource).push(*pressure.of(resource));
        }
        readings.disks.last = if has_io { files.dated(self.proc.disks()) } else { None };
        readings.irq = files.note(self.proc.irq_pressure()).flatten();
        readings.cpu_times.push(files.dated(self.proc.cpu_times()));
        readings.memory = files.note(self.proc.memory()).flatten();
    }

    /// What a tick reads of the node, except its run delay. If no task waited for memory since the
    /// tick before, no limit of the node delayed any task, so these cgroups are not read again.
    pub(super) fn read(&mut self, tree: &CgroupTree, files: &mut Files) {
        let pressure = self.read_pressures(tree, files);
        let (proc, readings) = (&self.proc, &mut self.readings);
        for resource in Resource::ALL {
            readings.pressure.of_mut(resource).push(*pressure.of(resource));
        }
        readings.cpu_times.push(files.dated(proc.cpu_times()));
        readings.online =
            readings.cpu_times.value().map(|times| times.each.len()).or(readings.online);
        let other_cpus =
            |(before, last): (&CpuTimes, &CpuTimes)| !before.each.keys().eq(last.each.keys());
        let is_due = readings.cores.is_none() || readings.cpu_times.both().is_some_and(other_cpus);
        if is_due && let Some(cores) = files.note(proc.cores()) {
            readings.cores = Some(cores.unwrap_or_default());
        }
        readings.reclaim.push(files.dated(proc.reclaim()));
        readings.memory = files.note(proc.memory()).flatten();
        readings.disks.push(files.dated(proc.disks()));
        readings.disk_rates = disk_rates(&readings.disks);
        if readings.swaps_in() == Some(true) {
            let swaps = files.note(proc.swaps()).flatten().unwrap_or_default();
            let devices = readings.disks.value().map(|disks| swap_devices(&swaps, disks));
            readings.swap_devices = devices.unwrap_or_default();
        }
        let now = (files.clock)().at;
        if readings.pressure.memory.moved() {
            let paths = above_pods(tree.dirs());
            // Without pods, limits of slices are those of the host.
            let has_pods = paths.len() > 1;
            let is_above = |dir: &&CgroupDir| {
                let path = &*dir.cgroup.path;
                let is_above = paths.contains(Path::new(path));
                dir.cgroup.place == Place::Host
                    && (is_above || !has_pods && path.ends_with(".slice"))
            };
            let above: Vec<&CgroupDir> = tree.dirs().filter(is_above).collect();
            let hits = limit_hits(above.iter().map(|dir| dir.memory_events_local()));
            readings.limit_hits.push(files.dated(hits.map(Some)));
            // The topmost cgroup includes the memory of all cgroups below it.
            let bytes = above.iter().filter_map(|dir| files.note(dir.memory_current()).flatten());
            readings.pods_memory = bytes.max().filter(|_| has_pods);
        } else {
            readings.limit_hits.hold(now);
        }
        if readings.reclaims() == Some(true) {
            readings.reclaimed_at = Some(now);
        }
    }
}
