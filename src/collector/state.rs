//! The state of one cgroup that is kept between passes, until the cgroup is removed. These rules
//! decide when a file is read again:
//!
//! 1. A pressure file is read at most once a second, by either pass. Each read ends one of the
//!    kernel's averaging windows, in which a CPU that was busy for less than a jiffy is ignored.
//! 2. Memory and I/O pressure are read only after the total of the node has changed: a task that
//!    waits in a cgroup is also counted in the node's pressure.
//! 3. `cpu.stat` and `io.stat` cost many times as much as a pressure file. They are read at each
//!    tick of a container that waited for that resource within the last minute.
//! 4. CPU limits, CPU weight and the list of controllers are read every 30 s. So is `cpu.stat` of a
//!    container that does not wait, if PSI is the CPU source, and at the first two ticks.
//! 5. Memory and I/O limits, and counters of their effects, are read after the container's own
//!    pressure has changed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::files::Files;
use super::threads::ContainerThreads;
use crate::kernel::cgroup_dir::{CgroupDir, Resource};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::kernel::counters::{Controllers, parse_controllers};
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::sample::{CpuUse, MemoryUse, PressureReading, Pressures};

/// Minimum time between two reads of the same pressure file.
pub const MIN_PRESSURE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which limits, and counters of containers that do not wait, are read.
const SLOW_INTERVAL: Duration = Duration::from_secs(30);

/// Share of the time between two reads from which a container counts as waiting.
const WAITS: f64 = 0.01;
/// Time after a wait in which the container's costly files are read.
const ATTENTION: Duration = Duration::from_secs(60);

/// Boxed, since the map has up to twice as many slots as cgroups.
pub(super) type States = HashMap<CgroupId, Box<CgroupState>>;

/// The state of one cgroup.
#[derive(Debug, Default)]
pub(super) struct CgroupState {
    pressures: PerResource<Option<KeptPressure>>,
    /// Controllers that are on, and when they were read.
    controllers: Option<(Instant, Controllers)>,
    /// CPU counters and limits.
    pub(super) cpu: CpuUse,
    /// When `cpu.limits` was read.
    pub(super) limits_at: Option<Instant>,
    /// Total of `some` of `cpu.pressure` at the last tick, microseconds.
    pub(super) stalled_us: Option<u64>,
    /// Recent waiting for a CPU.
    pub(super) cpu_wait: WaitHistory,
    /// Recent waiting for a disk.
    pub(super) io_wait: WaitHistory,
    /// Reclaim, and the memory pressure at which it was read.
    pub(super) memory: Option<(Option<Pressure>, MemoryUse)>,
    /// Whether there is an `io.max`, and the I/O pressure at which that was read.
    pub(super) io_max: Option<(Option<Pressure>, Option<bool>)>,
    /// Its threads, with run delay as the CPU source.
    pub(super) threads: ContainerThreads,
}

#[derive(Debug, Clone, Copy)]
struct KeptPressure {
    at: Instant,
    /// The node's pressure at that time.
    node: Option<Pressure>,
    pressure: Option<Pressure>,
}

impl CgroupState {
    /// Pressures of these resources, by rules 1 and 2; `None` if the cgroup was removed.
    pub(super) fn pressures(
        &mut self,
        files: &mut Files,
        cgroup: &CgroupNode,
        resources: &[Resource],
        node: &PressureReading,
        now: Instant,
    ) -> Option<PressureReading> {
        if cgroup.dir.is_root_cgroup() {
            return Some(*node);
        }
        let mut reading = PressureReading { at: now, pressures: Pressures::default() };
        if node.pressures == Pressures::default() {
            // PSI is off on the whole node, so the files do not exist.
            return files.is_alive(cgroup).then_some(reading);
        }
        for &resource in resources {
            let node = *node.pressures.of(resource);
            let stood_still = |kept: &KeptPressure| {
                resource != Resource::Cpu && node.is_some() && kept.node == node
            };
            let kept = match self.pressures.of(resource) {
                Some(kept) if is_fresh(kept.at, now) => *kept,
                Some(kept) if stood_still(kept) => KeptPressure { at: now, ..*kept },
                _ => KeptPressure { at: now, node, pressure: files.pressure(cgroup, resource)? },
            };
            *self.pressures.of_mut(resource) = Some(kept);
            *reading.pressures.of_mut(resource) = kept.pressure;
            reading.at = reading.at.min(kept.at);
        }
        Some(reading)
    }

    /// Controllers that are on, by rule 4; all of them where the file can't be read.
    pub(super) fn controllers(
        &mut self,
        files: &mut Files,
        dir: &CgroupDir,
        now: Instant,
    ) -> Controllers {
        if is_due(self.controllers.map(|(at, _)| at), now) {
            let read = files.read_value(dir, c"cgroup.controllers", parse_controllers);
            self.controllers = Some((now, read.unwrap_or(Controllers::ALL)));
        }
        self.controllers.map_or(Controllers::ALL, |(_, on)| on)
    }
}

/// Whether a pressure file was read too recently to be read again (rule 1).
pub(super) fn is_fresh(read_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(read_at) < MIN_PRESSURE_INTERVAL
}

/// Whether a file with the slow interval is to be read (rule 4).
pub(super) fn is_due(read_at: Option<Instant>, now: Instant) -> bool {
    read_at.is_none_or(|at| now.saturating_duration_since(at) >= SLOW_INTERVAL)
}

/// The increase of a total of waiting time between ticks, for rule 3.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitHistory {
    last: Option<(Instant, u64)>,
    waited_at: Option<Instant>,
}

impl WaitHistory {
    /// Adds a total, microseconds. Returns whether the container waited within the last minute.
    pub(super) fn advance(&mut self, total_us: Option<u64>, now: Instant) -> bool {
        if let (Some((at, before)), Some(total)) = (self.last, total_us)
            && total > before
            && Duration::from_micros(total - before)
                >= now.saturating_duration_since(at).mul_f64(WAITS)
        {
            self.waited_at = Some(now);
        }
        self.last = total_us.map(|total| (now, total));
        self.waited_lately(now)
    }

    /// Whether it waited within the last minute.
    pub(super) fn waited_lately(&self, now: Instant) -> bool {
        self.waited_at.is_some_and(|at| now.saturating_duration_since(at) < ATTENTION)
    }
}
