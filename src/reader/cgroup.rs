//! One cgroup's files, each on its own: a malformed one costs itself, not the sample.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::time::Instant;

use super::{Groups, is_fresh};
use crate::kernel::cgroup_dir::{CgroupDir, Resource};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::kernel::counters::{
    count_processes, parse_cpu_stat, parse_cpu_stat_local, parse_memory_events, parse_memory_stat,
};
use crate::kernel::io_stat::{IoCounters, parse_io_stat};
use crate::kernel::limits::{parse_cpu_max, parse_io_max, parse_limit, parse_number};
use crate::kernel::pressure::Pressure;
use crate::kernel::text::ParseError;
use crate::kernel::{ReadBuffer, ReadError, ReadErrorKind};
use crate::sample::{CgroupSample, CgroupStats, Depth, NodeSample, PressureReading, Pressures};

/// What is remembered of a cgroup's last reading.
#[derive(Debug, Clone, Copy)]
struct Remembered {
    reading: PressureReading,
    /// The node's pressures then: while they stand still, no cgroup's can have moved.
    node: Pressures,
    /// Of this cgroup's, CPU alone was read then.
    cpu_only: bool,
}

/// Reads cgroups, one after another, into one buffer.
#[derive(Debug)]
pub(super) struct CgroupReader {
    pub(super) buffer: ReadBuffer,
    groups: Groups,
    remembered: HashMap<CgroupId, Remembered>,
    errors: Vec<ReadError>,
    dropped_io_rows: u64,
}

/// The cgroup is no more.
struct Gone;

impl CgroupReader {
    pub(super) fn new(groups: Groups) -> Self {
        Self {
            buffer: ReadBuffer::default(),
            groups,
            remembered: HashMap::new(),
            errors: Vec::new(),
            dropped_io_rows: 0,
        }
    }

    pub(super) fn forget_all_but(&mut self, alive: &HashSet<CgroupId>) {
        self.remembered.retain(|id, _| alive.contains(id));
    }

    /// What went wrong since the last call, and how many rows of `io.stat` were dropped.
    pub(super) fn take_problems(&mut self) -> (Vec<ReadError>, u64) {
        (std::mem::take(&mut self.errors), std::mem::take(&mut self.dropped_io_rows))
    }

    /// Reads one cgroup; `None` when it is gone.
    pub(super) fn read(
        &mut self,
        member: &CgroupNode,
        node: &NodeSample,
        now: Instant,
        depth: Depth,
    ) -> Option<CgroupSample> {
        let id = member.cgroup.id;
        let remembered = self.remembered.get(&id).copied();
        let reading = match remembered {
            Some(Remembered { reading, cpu_only: false, .. }) if is_fresh(reading.at, now) => {
                reading
            }
            _ if member.dir.is_root_cgroup() => node.pressure,
            last => {
                let stands = last.filter(|last| !last.cpu_only);
                let cpu = last.filter(|last| is_fresh(last.reading.at, now));
                let cpu = cpu.map(|last| last.reading.pressures.cpu);
                let node = &node.pressure.pressures;
                let pressures = self.read_pressures(&member.dir, stands, cpu, node);
                let Ok(pressures) = pressures else {
                    self.remembered.remove(&id);
                    return None;
                };
                let reading = PressureReading { at: now, pressures };
                self.remembered.insert(id, Remembered { reading, node: *node, cpu_only: false });
                reading
            }
        };
        let wants_stats = match depth {
            Depth::Score => false,
            Depth::Exported => self.groups != Groups::default(),
            Depth::Everything => true,
        };
        let stats = wants_stats.then(|| Box::new(self.read_stats(&member.dir, depth)));
        let cgroup = member.cgroup.clone();
        Some(CgroupSample { cgroup, workload: None, pressure: reading, stats })
    }

    /// Reads one cgroup's CPU pressure alone; `None` when it is gone.
    pub(super) fn read_cpu_pressure(
        &mut self,
        member: &CgroupNode,
        node: &NodeSample,
        now: Instant,
    ) -> Option<PressureReading> {
        let id = member.cgroup.id;
        match self.remembered.get(&id) {
            Some(Remembered { reading, .. }) if is_fresh(reading.at, now) => return Some(*reading),
            _ => {}
        }
        let Ok(cpu) = self.read_pressure(&member.dir, Resource::Cpu) else {
            self.remembered.remove(&id);
            return None;
        };
        let reading =
            PressureReading { at: now, pressures: Pressures { cpu, ..Pressures::default() } };
        let node = node.pressure.pressures;
        self.remembered.insert(id, Remembered { reading, node, cpu_only: true });
        Some(reading)
    }

    /// The three pressure files, without CPU's where it is told. With a `last` reading, memory and
    /// I/O are taken from it where the node's own totals have not moved since: whoever waits in a
    /// cgroup waits on the node. What is too short to move them is told when they move.
    fn read_pressures(
        &mut self,
        dir: &CgroupDir,
        last: Option<Remembered>,
        cpu: Option<Option<Pressure>>,
        node: &Pressures,
    ) -> Result<Pressures, Gone> {
        // PSI is off on the whole node: no use asking each cgroup for three files.
        if !node.any() {
            return if dir.is_alive() { Ok(Pressures::default()) } else { Err(Gone) };
        }
        let mut pressures = Pressures::default();
        for resource in Resource::ALL {
            let stood_still = |last: &Remembered| {
                resource != Resource::Cpu
                    && last.node.of(resource).is_some()
                    && last.node.of(resource) == node.of(resource)
            };
            *pressures.slot(resource) = match (last.filter(stood_still), cpu) {
                (_, Some(cpu)) if resource == Resource::Cpu => cpu,
                (Some(last), _) => last.reading.pressures.of(resource),
                (None, _) => self.read_pressure(dir, resource)?,
            };
        }
        Ok(pressures)
    }

    fn read_pressure(
        &mut self,
        dir: &CgroupDir,
        resource: Resource,
    ) -> Result<Option<Pressure>, Gone> {
        match dir.pressure(resource, &mut self.buffer) {
            Ok(pressure) => Ok(Some(pressure)),
            Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {
                // With its directory still there, `cgroup.pressure` is 0: absent, and no error.
                if dir.is_alive() { Ok(None) } else { Err(Gone) }
            }
            Err(ReadError { kind: ReadErrorKind::Unsupported(_), .. }) => Ok(None),
            Err(error) => {
                self.errors.push(error);
                Ok(None)
            }
        }
    }

    fn read_stats(&mut self, dir: &CgroupDir, depth: Depth) -> CgroupStats {
        let everything = depth == Depth::Everything;
        let mut stats = CgroupStats::default();
        if self.groups.cpu || everything {
            stats.cpu = self.read_file(dir, c"cpu.stat", parse_cpu_stat);
        }
        if self.groups.spec || everything {
            stats.cpu_max = self.read_file(dir, c"cpu.max", parse_cpu_max);
            stats.memory_max = self.read_file(dir, c"memory.max", parse_limit);
        }
        if self.groups.spec {
            stats.cpu_weight = self.read_file(dir, c"cpu.weight", parse_number);
        }
        if self.groups.memory || everything {
            stats.memory_current = self.read_file(dir, c"memory.current", parse_number);
        }
        if self.groups.memory {
            stats.memory = self.read_file(dir, c"memory.stat", parse_memory_stat);
            stats.memory_events = self.read_file(dir, c"memory.events", parse_memory_events);
            stats.swap_current = self.read_file(dir, c"memory.swap.current", parse_number);
            stats.memory_peak = self.read_file(dir, c"memory.peak", parse_number);
        }
        if self.groups.io {
            stats.io = self.read_io_stat(dir).flatten();
        }
        if self.groups.processes {
            stats.processes = self.read_file(dir, c"cgroup.procs", count_processes);
            stats.pids_current = self.read_file(dir, c"pids.current", parse_number);
            stats.pids_max = self.read_file(dir, c"pids.max", parse_limit);
        }
        if everything {
            let local = self.read_file(dir, c"cpu.stat.local", parse_cpu_stat_local);
            stats.throttled_local_us = local.flatten();
            stats.memory_events_local =
                self.read_file(dir, c"memory.events.local", parse_memory_events);
            stats.memory_high = self.read_file(dir, c"memory.high", parse_limit);
            stats.io_max = self.read_file(dir, c"io.max", parse_io_max);
        }
        stats
    }

    /// `io.stat`, by device; the outer `None` is an error, which is noted, the inner one that the
    /// kernel has no such file here.
    pub(super) fn read_io_stat(&mut self, dir: &CgroupDir) -> Option<Option<Vec<IoCounters>>> {
        let stat = self.read_whole(dir, c"io.stat", |text| Ok(parse_io_stat(text)))?;
        self.dropped_io_rows += stat.as_ref().map_or(0, |stat| stat.dropped_rows);
        Some(stat.map(|stat| stat.devices))
    }

    /// A file that is read whole; the outer `None` is an error, which is noted, the inner one that
    /// the kernel has no such file here.
    pub(super) fn read_whole<T>(
        &mut self,
        dir: &CgroupDir,
        name: &CStr,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Option<Option<T>> {
        dir.read(name, &mut self.buffer, parse).map_err(|error| self.errors.push(error)).ok()
    }

    fn read_file<T>(
        &mut self,
        dir: &CgroupDir,
        name: &CStr,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Option<T> {
        self.read_whole(dir, name, parse).flatten()
    }
}
