//! What is read of a container: the last two readings of each file. `reader.rs` fills it. Pure.

use std::sync::Arc;
use std::time::Instant;

use bitflags::bitflags;

use super::series::{Ratio, Reading, Window, lately};
use super::wait::NEGLIGIBLE;
use crate::kernel::counters::{CpuStat, MemoryStat};
use crate::kernel::io_stat::IoCounters;
use crate::kernel::limits::CpuSet;
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::kernel::task_text::TaskTimes;

bitflags! {
    /// Files that a meter needs from a tick, besides pressure and threads.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Needs: u8 {
        /// `cpu.max`, `cpu.weight` and `cpuset.cpus.effective`, of the pod too.
        const CPU_LIMITS = 1;
        /// `cpu.stat`; with a quota also `cpu.stat.local`, and the pod's `cpu.stat`; where no threads are read,
        /// `pids.current`.
        const CPU_COUNTERS = 1 << 1;
        /// `memory.current` and `memory.swap.current`.
        const MEMORY_IN_USE = 1 << 2;
        /// `memory.events`, the pod's own too, and after a hit the pages scanned by reclaim, in `memory.stat`.
        const LIMIT_HITS = 1 << 3;
        /// Refaults of files, in `memory.stat`, and the pod's `memory.current`.
        const REFAULTS = 1 << 4;
        /// `io.max`, of the pod too.
        const IO_MAX = 1 << 5;
        /// `io.stat`.
        const IO_COUNTERS = 1 << 6;
        /// Pages read back from swap, in `memory.stat`.
        const SWAPPED_IN = 1 << 7;
    }
}

impl Needs {
    /// These files if they are needed, else none.
    pub(super) fn when(self, is_needed: bool) -> Self {
        if is_needed { self } else { Self::empty() }
    }
}

/// The last two readings of a container's files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    pub pressure: PerResource<Window<Pressure>>,
    pub cpu_limits: Option<Reading<CpuLimits>>,
    pub cpu: Window<CpuCounters>,
    pub threads: Threads,
    /// When it last waited for a CPU.
    pub cpu_waited_at: Option<Instant>,
    pub memory: MemoryReadings,
    pub io: IoReadings,
}

/// CPU limits of a container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuLimits {
    /// CPUs that the least `cpu.max` allows, of its own and its pod's or, outside pods, of the other cgroups whose
    /// limits hold for it; `None` without a quota.
    pub quota: Option<f64>,
    /// Its cpuset; `None` where the cpuset controller is off.
    pub cpus: Option<Arc<CpuSet>>,
    /// `cpu.weight` of its pod, or its own outside pods; `None` where the cpu controller is off.
    pub weight: Option<u64>,
    /// Whether it is outside pods, where no kubelet shares CPUs among them: a cpuset is a limit of its own.
    pub is_unit: bool,
}

impl CpuLimits {
    /// Of this number of CPUs of the node, those on which the container may run.
    pub(super) fn allowed_cpus(&self, node: f64) -> f64 {
        let own = self.cpus.as_ref().map(|set| f64::from(set.count())).filter(|own| *own > 0.0);
        own.unwrap_or(node).min(node).max(1.0)
    }
}

/// CPU counters of a container, read together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Its `cpu.stat`.
    pub container: CpuStat,
    /// Its time throttled by any level (`cpu.stat.local`, since Linux 6.6), and throttled time of each other
    /// cgroup whose quota holds for it: of its pod or, outside pods, of those above, and of one below in which crun
    /// sets the same quota. Empty without quotas.
    pub throttled_us: Vec<u64>,
    /// Tasks in it (`pids.current`); `None` where the pids controller is off.
    pub tasks: Option<u64>,
    /// CPU time of the vCPUs so far; `None` where none are read. Other threads come and go.
    pub vcpus_ran_ns: Option<u64>,
}

/// The threads of a container.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Threads {
    /// They do not matter: pressure measures its CPU wait.
    #[default]
    NotRead,
    /// They matter, and could not be read in full.
    Hidden,
    Read {
        /// Its vCPUs or, of a container without any, all threads.
        threads: Vec<ThreadReading>,
        are_vcpus: bool,
        /// The I/O threads beside vCPUs.
        iothreads: Vec<ThreadReading>,
    },
}

impl Threads {
    pub(super) fn are_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// CPU time of the vCPUs so far.
    pub(super) fn vcpus_ran_ns(&self) -> Option<u64> {
        let Self::Read { threads, are_vcpus: true, .. } = self else { return None };
        threads.iter().map(|thread| Some(thread.times.value()?.run_ns)).sum()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ThreadReading {
    /// Time run and run delay since its start.
    pub times: Window<TaskTimes>,
    /// Whether it has been runnable without running since the reading before. This is not in
    /// `times`, since the kernel adds a delay only when it ends.
    pub starved: bool,
}

/// Memory and its reclaim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryReadings {
    /// `memory.current` and `memory.swap.current`, together, bytes: what a VM has swapped out, it needs as well. The
    /// inner `None` means that no task of the node waits for memory, or that the memory controller is off; the
    /// outer one, that it can't be read.
    pub in_use: Option<Option<u64>>,
    /// Times that `memory.max` or `memory.high` of the container or its pod caused reclaim.
    pub limit_hits: Window<u64>,
    /// Read only while the node reads pages back from swap or can have displaced pages of files, and while the
    /// container waits, once one of these limits was hit or it was read before.
    pub stat: Window<Arc<MemoryStat>>,
    /// When it was read last, and not held.
    pub stat_read_at: Option<Instant>,
}

/// Disk I/O.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IoReadings {
    /// Whether the container or its pod has an `io.max`.
    pub limited: Option<bool>,
    /// By device, since the container was created; the inner `None` if the io controller is off.
    pub counters: Window<Option<Vec<IoCounters>>>,
    /// Memory of its pod, bytes.
    pub pod_memory: Option<u64>,
    pub waited_at: Option<Instant>,
}

impl MemoryReadings {
    /// Adds a reading of `memory.stat`.
    pub(super) fn read_stat(&mut self, stat: Option<Reading<MemoryStat>>) {
        self.stat_read_at = stat.as_ref().map(|stat| stat.at).or(self.stat_read_at);
        self.stat.push(stat.map(|Reading { at, value }| Reading { at, value: value.into() }));
    }

    /// Adds the last reading of `memory.stat` again: neither the container nor the node has read pages from swap since.
    /// Pages of files were read again, perhaps, and within a minute few pages were scanned.
    pub(super) fn hold_stat(&mut self, at: Instant) {
        let held = self.stat.value().map(|stat| {
            let scanned = |pages: Option<u64>| pages.filter(|_| lately(self.stat_read_at, at));
            let value = MemoryStat {
                workingset_refault_file: None,
                pgscan_kswapd: scanned(stat.pgscan_kswapd),
                pgscan_direct: scanned(stat.pgscan_direct),
                ..**stat
            };
            Reading { at, value: value.into() }
        });
        self.stat.push(held);
    }

    /// Pages that came back from a swap device, per second.
    pub fn pages_from_disk(&self) -> Option<f64> {
        if let Some(from_disk) = self.stat.rate(|stat| stat.pswpin) {
            return Some(from_disk);
        }
        let from_zswap = self.stat.rate(|stat| stat.zswpin).unwrap_or(0.0);
        Some((self.stat.rate(|stat| stat.workingset_refault_anon)? - from_zswap).max(0.0))
    }

    /// Whether a limit of its own or of its pod caused reclaim.
    pub(super) fn own_limit(&self) -> Option<bool> {
        self.limit_hits.increase(|hits| Some(*hits)).map(|hits| hits > 0.0)
    }

    /// Share of the container's reclaimed pages that were reclaimed because of the node and not of a
    /// limit: after a limit was hit, those that kswapd scanned, which runs only because of the node.
    /// `None` if it is unknown, as in the first window in which its own limit was hit.
    pub(super) fn reclaimed_by_node(&self) -> Option<f64> {
        if !self.own_limit()? {
            return Some(1.0);
        }
        let by_kswapd = self.stat.increase(|stat| stat.pgscan_kswapd)?;
        let directly = self.stat.increase(|stat| stat.pgscan_direct)?;
        Ratio::of(by_kswapd, (by_kswapd + directly).max(1.0)).map(Ratio::get)
    }
}

impl Readings {
    pub fn limits(&self) -> Option<&CpuLimits> {
        self.cpu_limits.as_ref().map(|limits| &limits.value)
    }

    /// Whether its tasks wait for CPUs, on a node with so many. Its pressure is an average over those on which it is
    /// active: at most all on which it may run.
    pub(super) fn has_cpu_pressure(&self, cpus: f64) -> Option<bool> {
        let cpus = self.limits().map_or(cpus, |limits| limits.allowed_cpus(cpus));
        Some(self.pressure.cpu.some()? * cpus >= NEGLIGIBLE)
    }
}
