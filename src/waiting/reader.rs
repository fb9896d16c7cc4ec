//! Reads a container's files in a tick: each at most once, and only if a meter needs it. Each meter
//! says so by its `needs`, given the readings so far.

use std::iter::once;
use std::sync::Arc;
use std::time::Instant;

use super::files::Files;
use super::node::NodeReadings;
use super::readings::{CpuCounters, CpuLimits, Needs, Readings, Threads};
use super::series::lately;
use super::{cpu_limits, io, memory, run_delay};
use crate::kernel::ReadError;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::counters::{CpuStat, MemoryEvents};
use crate::kernel::limits::CpuMax;

/// The directories of a container or unit, and of others whose limits hold for it.
#[derive(Debug)]
pub(crate) struct Dirs<'a> {
    pub(crate) container: &'a CgroupDir,
    pub(crate) pod: Option<&'a CgroupDir>,
    /// Of what is outside pods: the cgroups above, the nearest first, and the one in which libvirt sets a machine's
    /// limits.
    pub(crate) outside: Option<Vec<&'a CgroupDir>>,
}

impl<'a> Dirs<'a> {
    fn others(&self) -> impl Iterator<Item = &'a CgroupDir> {
        self.pod.into_iter().chain(self.outside.iter().flatten().copied())
    }

    fn each(&self) -> impl Iterator<Item = &'a CgroupDir> {
        once(self.container).chain(self.others())
    }
}

impl Readings {
    /// Reads what the meters need, after its pressures and threads: of a workload that is not scored, what the CPU
    /// meter needs while it waits. Returns whether that was anything.
    pub(crate) fn read(
        &mut self,
        files: &mut Files,
        dirs: &Dirs<'_>,
        node: &NodeReadings,
        is_scored: bool,
        now: Instant,
    ) -> bool {
        let waits = match self.threads {
            Threads::Read { .. } => run_delay::waits(self),
            Threads::Hidden | Threads::NotRead => self.has_cpu_pressure(node.cpus()) == Some(true),
        };
        if waits {
            self.cpu_waited_at = Some(now);
        }
        if !is_scored && !lately(self.cpu_waited_at, now) {
            self.cpu.push(None);
            return false;
        }
        let mut needs = cpu_limits::needs(self, now);
        if is_scored {
            if io::waits(self, node) {
                // Until now they were read rarely, which is enough to notice reads, and not for rates.
                if !lately(self.io.waited_at, now) {
                    self.io.counters.push(None);
                }
                self.io.waited_at = Some(now);
            }
            needs |= memory::needs(self, node) | io::needs(self, node, now);
        }
        self.read_files(files, dirs, needs);
        !needs.is_empty()
    }

    /// Reads what is needed, and forgets memory in use that is not.
    fn read_files(&mut self, files: &mut Files, dirs: &Dirs<'_>, needs: Needs) {
        if needs.contains(Needs::CPU_LIMITS) {
            self.cpu_limits = files.dated(read_limits(dirs).map(Some));
        }
        if needs.contains(Needs::CPU_COUNTERS) {
            let has_quota = self.limits().is_some_and(|limits| limits.quota.is_some());
            let counters = read_counters(files, dirs, has_quota, &self.threads);
            self.cpu.push(files.dated(counters));
        }
        if needs.contains(Needs::LIMIT_HITS) {
            // A runtime or an emulator can set the limit of a cgroup below, too.
            let own = once(dirs.container.memory_events());
            let hits = limit_hits(own.chain(dirs.others().map(CgroupDir::memory_events_local)));
            self.memory.limit_hits.push(files.dated(hits.map(Some)));
        } else if let Some(last) = &self.pressure.memory.last {
            // The container has not waited since this was read, so no limit delayed it.
            self.memory.limit_hits.hold(last.at);
        }
        (self.memory.in_use, self.io.pod_memory) = (Some(None), None);
        if needs.contains(Needs::MEMORY_IN_USE) {
            let in_use = files.note(dirs.container.memory_current());
            let swapped = files.note(dirs.container.memory_swap_current()).flatten().unwrap_or(0);
            self.memory.in_use = in_use.map(|bytes| Some(bytes?.saturating_add(swapped)));
        }
        let scans = needs.contains(Needs::LIMIT_HITS)
            && (self.memory.own_limit() == Some(true) || self.memory.stat.value().is_some());
        if scans || needs.intersects(Needs::SWAPPED_IN | Needs::REFAULTS) {
            self.memory.read_stat(files.dated(dirs.container.memory_stat()));
        } else if let Some(last) = &self.pressure.memory.last {
            self.memory.hold_stat(last.at);
        }
        if needs.contains(Needs::REFAULTS) {
            // The whole pod counts: its other containers do not compete for memory as other pods do.
            let pod = dirs.pod.unwrap_or(dirs.container);
            self.io.pod_memory = files.note(pod.memory_current()).flatten();
        }
        if needs.contains(Needs::IO_MAX) {
            let limited: Result<Vec<_>, _> = dirs.each().map(CgroupDir::io_limited).collect();
            self.io.limited = files.note(limited).map(|all| all.contains(&Some(true)));
        }
        if needs.contains(Needs::IO_COUNTERS) {
            self.io.counters.push(files.dated(dirs.container.io_stat().map(Some)));
        }
    }
}

fn read_limits(dirs: &Dirs<'_>) -> Result<CpuLimits, ReadError> {
    let maxima = dirs.each().map(CgroupDir::cpu_max).collect::<Result<Vec<_>, _>>()?;
    let cpuset = dirs.each().find_map(|dir| dir.cpuset().transpose()).transpose()?;
    Ok(CpuLimits {
        quota: maxima.into_iter().flatten().filter_map(CpuMax::cpus).reduce(f64::min),
        cpus: cpuset.map(Arc::new),
        weight: dirs.pod.unwrap_or(dirs.container).cpu_weight()?,
        is_unit: dirs.outside.is_some(),
    })
}

/// `None` where the cgroup was removed. Files of a controller that is off count as empty.
fn read_counters(
    files: &mut Files,
    dirs: &Dirs<'_>,
    has_quota: bool,
    threads: &Threads,
) -> Result<Option<CpuCounters>, ReadError> {
    let Some(container) = dirs.container.cpu_stat()? else { return Ok(None) };
    let vcpus_ran_ns = threads.vcpus_ran_ns();
    let mut counters = CpuCounters { container, vcpus_ran_ns, ..CpuCounters::default() };
    // No more tasks than there are can wait. Where threads are read, these show it.
    if !threads.are_read() {
        counters.tasks = files.note(dirs.container.pids_current()).flatten();
    }
    if has_quota {
        let own = [dirs.container.cpu_stat_local(), dirs.container.nested_cpu_stat()];
        let levels = own.into_iter().chain(dirs.others().map(CgroupDir::cpu_stat));
        let throttled = |stat: Option<CpuStat>| stat.unwrap_or_default().throttled_us.unwrap_or(0);
        counters.throttled_us = levels.map(|stat| stat.map(throttled)).collect::<Result<_, _>>()?;
    }
    Ok(Some(counters))
}

/// Times that memory limits caused reclaim; 0 where the memory controller is off.
pub(crate) fn limit_hits(
    mut events: impl Iterator<Item = Result<Option<MemoryEvents>, ReadError>>,
) -> Result<u64, ReadError> {
    events.try_fold(0_u64, |sum, events| {
        let MemoryEvents { high, max, .. } = events?.unwrap_or_default();
        Ok(sum.saturating_add(high.unwrap_or(0)).saturating_add(max.unwrap_or(0)))
    })
}
