//! Reads a container's files in a tick: each at most once, and only if a meter needs it. Each meter
//! says so by its `needs`, given the readings so far.

use std::sync::Arc;
use std::time::Instant;

use super::files::Files;
use super::node::NodeReadings;
use super::readings::{CpuCounters, CpuLimits, MemoryInUse, Needs, Readings, Threads};
use super::{cpu_limits, io, memory, run_delay};
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::counters::{CpuStat, MemoryEvents};
use crate::kernel::limits::CpuMax;

/// The directories of a container or unit, and of others whose limits hold for it.
#[derive(Debug)]
pub(crate) struct Dirs<'a> {
    pub(crate) container: &'a CgroupDir,
    pub(crate) pod: Option<&'a CgroupDir>,
    /// Whether it is outside pods.
    pub(crate) is_unit: bool,
    /// Of a unit: the cgroups above, the nearest first, and the one in which libvirt sets a machine's limits.
    pub(crate) outside: Vec<&'a CgroupDir>,
}

impl<'a> Dirs<'a> {
    fn others(&self) -> impl Iterator<Item = &'a CgroupDir> {
        self.pod.into_iter().chain(self.outside.iter().copied())
    }

    fn each(&self) -> impl Iterator<Item = &'a CgroupDir> {
        std::iter::once(self.container).chain(self.others())
    }
}

impl Readings {
    /// Reads what the meters need of a scored container, after its pressures and threads. Returns whether that
    /// was anything.
    pub(crate) fn read_scored(
        &mut self,
        files: &mut Files,
        dirs: &Dirs<'_>,
        node: &NodeReadings,
        now: Instant,
    ) -> bool {
        let waits = match self.threads {
            Threads::Read { .. } => run_delay::waits(self),
            Threads::Hidden | Threads::NotRead => self.has_cpu_pressure(node.cpus()) == Some(true),
        };
        if waits {
            self.cpu_waited_at = Some(now);
        }
        if io::waits(self, node) {
            // Until now they were read rarely, which is enough to notice reads, and not for rates.
            if !self.waited_for_io_lately(now) {
                self.io.counters.clear();
            }
            self.io.waited_at = Some(now);
        }
        let needs =
            cpu_limits::needs(self, now) | memory::needs(self, node) | io::needs(self, node, now);
        self.read_files(files, dirs, needs);
        self.forget(needs);
        !needs.is_empty()
    }

    /// Reads what the CPU meter needs of a workload that is not scored, after its pressure: nothing while it
    /// does not wait.
    pub(crate) fn read_other(
        &mut self,
        files: &mut Files,
        dirs: &Dirs<'_>,
        node: &NodeReadings,
        now: Instant,
    ) {
        if self.has_cpu_pressure(node.cpus()) == Some(true) {
            self.cpu_waited_at = Some(now);
        }
        if self.waited_lately(now) {
            self.read_files(files, dirs, cpu_limits::needs(self, now));
        } else {
            self.cpu.clear();
        }
    }

    /// Ends a reading: counters that were not needed are forgotten, since they are not compared
    /// across the time in which they are not read.
    fn forget(&mut self, needs: Needs) {
        if !needs.contains(Needs::REFAULTS) {
            self.io.pod_memory = None;
        }
        if !needs.contains(Needs::MEMORY_IN_USE) {
            self.memory.in_use = MemoryInUse::NotRead;
        }
        // The container has not waited since this was read, so no limit delayed it.
        if let Some(last) = self.pressure.memory.last()
            && !needs.contains(Needs::LIMIT_HITS)
        {
            self.memory.limit_hits.hold(last.at);
        }
    }

    fn read_files(&mut self, files: &mut Files, dirs: &Dirs<'_>, needs: Needs) {
        if needs.contains(Needs::CPU_LIMITS) {
            self.cpu_limits = files.timed(|files| read_limits(files, dirs));
        }
        if needs.contains(Needs::CPU_COUNTERS) {
            let limits = self.limits().cloned().unwrap_or_default();
            self.cpu.push(files.timed(|files| read_counters(files, dirs, &limits, &self.threads)));
        }
        if needs.contains(Needs::LIMIT_HITS) {
            self.memory.limit_hits.push(files.timed(|files| {
                // A runtime or an emulator can set the limit of a cgroup below, too.
                let own = files.read(|buffer| dirs.container.memory_events(buffer))?;
                let others = read_limit_hits(files, dirs.others())?;
                Some(own.map_or(0, limit_hits).saturating_add(others))
            }));
        }
        if needs.contains(Needs::MEMORY_IN_USE) {
            let read = files.read(|buffer| dirs.container.memory_current(buffer));
            let swapped = files.read(|buffer| dirs.container.memory_swap_current(buffer)).flatten();
            self.memory.in_use = match read {
                Some(Some(bytes)) => {
                    MemoryInUse::Bytes(bytes.saturating_add(swapped.unwrap_or_default()))
                }
                Some(None) => MemoryInUse::NotRead,
                None => MemoryInUse::Unreadable,
            };
        }
        let scans = needs.contains(Needs::LIMIT_HITS)
            && (self.memory.own_limit() == Some(true) || self.memory.stat.value().is_some());
        if scans || needs.intersects(Needs::SWAPPED_IN | Needs::REFAULTS) {
            let stat =
                files.timed(|files| files.read(|buffer| dirs.container.memory_stat(buffer))?);
            self.memory.read_stat(stat);
        } else if let Some(last) = self.pressure.memory.last() {
            self.memory.hold_stat(last.at);
        }
        if needs.contains(Needs::REFAULTS) {
            // The whole pod counts: its other containers do not compete for memory as other pods do.
            let pod = dirs.pod.unwrap_or(dirs.container);
            self.io.pod_memory = files.read(|buffer| pod.memory_current(buffer)).flatten();
        }
        if needs.contains(Needs::IO_MAX) {
            self.io.limited = dirs.each().try_fold(false, |limited, dir| {
                let by_this = files.read(|buffer| dir.io_limited(buffer))?;
                Some(limited || by_this == Some(true))
            });
        }
        if needs.contains(Needs::IO_COUNTERS) {
            let read = |files: &mut Files| files.read(|buffer| dirs.container.io_stat(buffer));
            self.io.counters.push(files.timed(read));
        }
    }
}

/// `None` where a file could not be read.
fn read_limits(files: &mut Files, dirs: &Dirs<'_>) -> Option<CpuLimits> {
    let max = |files: &mut Files, dir: &CgroupDir| files.read(|buffer| dir.cpu_max(buffer));
    let maxima: Option<Vec<_>> = dirs.others().map(|dir| max(files, dir)).collect();
    let cpus = |max: &CpuMax| max.cpus().unwrap_or(f64::INFINITY);
    let pod_max = maxima?.into_iter().flatten().min_by(|a, b| cpus(a).total_cmp(&cpus(b)));
    let weighed = dirs.pod.unwrap_or(dirs.container);
    let weight = files.read(|buffer| weighed.cpu_weight(buffer))?;
    let mut cpus = None;
    for dir in dirs.each() {
        if cpus.is_none() {
            cpus = files.read(|buffer| dir.cpuset(buffer))?;
        }
    }
    let container_max = max(files, dirs.container)?;
    let (cpus, is_unit) = (cpus.map(Arc::new), dirs.is_unit);
    Some(CpuLimits { container_max, pod_max, cpus, weight, is_unit })
}

/// `None` where a file could not be read. Files of a controller that is off count as empty.
fn read_counters(
    files: &mut Files,
    dirs: &Dirs<'_>,
    limits: &CpuLimits,
    threads: &Threads,
) -> Option<CpuCounters> {
    let stat = |files: &mut Files, dir: &CgroupDir| files.read(|buffer| dir.cpu_stat(buffer));
    let (container, vcpus_ran_ns) = (stat(files, dirs.container)??, threads.vcpus_ran_ns());
    let mut counters = CpuCounters { container, vcpus_ran_ns, ..CpuCounters::default() };
    // No more tasks than there are can wait. Where threads are read, these show it.
    if !matches!(threads, Threads::Read { .. }) {
        counters.tasks = files.read(|buffer| dirs.container.pids_current(buffer)).flatten();
    }
    if limits.quota().is_some() {
        let local = files.read(|buffer| dirs.container.cpu_stat_local(buffer))?;
        counters.local = Some(local.unwrap_or_default());
        let mut others = vec![files.read(|buffer| dirs.container.nested_cpu_stat(buffer))?];
        for dir in dirs.others() {
            others.push(stat(files, dir)?);
        }
        let throttled =
            |stat: Option<CpuStat>| stat.and_then(|stat| stat.throttled_us).unwrap_or(0);
        counters.others_throttled_us = others.into_iter().map(throttled).collect();
    }
    Some(counters)
}

/// Times that memory limits of these cgroups caused reclaim; 0 where the memory controller is off.
pub(crate) fn read_limit_hits<'a>(
    files: &mut Files,
    mut dirs: impl Iterator<Item = &'a CgroupDir>,
) -> Option<u64> {
    dirs.try_fold(0_u64, |sum, dir| {
        let events = files.read(|buffer| dir.memory_events_local(buffer))?;
        Some(sum.saturating_add(events.map_or(0, limit_hits)))
    })
}

fn limit_hits(events: MemoryEvents) -> u64 {
    events.high.unwrap_or_default().saturating_add(events.max.unwrap_or_default())
}
