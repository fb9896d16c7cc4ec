//! The load of a pod or a daemon.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// What a process does: each thread wants to run for `duty` of the time, `burst_ms` at a time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Load {
    #[serde(default)]
    pub threads: u32,
    #[serde(default = "whole")]
    pub duty: f64,
    #[serde(default = "ten")]
    pub burst_ms: f64,
    /// Whether the bursts of all threads and copies start at the same moments. By default they are
    /// staggered over the period of a burst.
    #[serde(default)]
    pub wake_together: bool,
    /// Busy and calm phases that take turns.
    pub phases: Option<Phases>,
    /// Memory that it has in use, MiB.
    #[serde(default)]
    pub resident_mib: usize,
    /// Threads of the emulator: of the same process, but no vCPUs.
    pub emulator: Option<Emulator>,
    /// Each thread touches memory instead.
    pub memory: Option<Memory>,
    /// Each thread does I/O instead.
    pub io: Option<Io>,
}

/// Busy phases, in which the load's `duty` holds, and calm ones with a duty of their own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phases {
    pub busy_s: f64,
    pub calm_s: f64,
    pub calm_duty: f64,
}

/// What QEMU's own threads do, such as I/O threads.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulator {
    #[serde(default = "one")]
    pub threads: u32,
    #[serde(default = "whole")]
    pub duty: f64,
    #[serde(default = "ten")]
    pub burst_ms: f64,
}

/// A working set of each thread, touched again and again in random order.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub mib: u32,
    /// Page cache of the fast disk, read; otherwise anonymous and written.
    #[serde(default)]
    pub file: bool,
    /// How much of it the thread touches in a second where nothing slows it down.
    pub mib_per_second: f64,
    /// Rounds of computing after each page, some 10,000 instructions each.
    #[serde(default)]
    pub spins: u32,
}

/// Blocks at random places of a disk, one after the other and as fast as they go.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Io {
    pub disk: Disk,
    pub how: How,
    #[serde(default = "page")]
    pub block_kib: u32,
    /// Operations at once, with native AIO.
    #[serde(default = "one")]
    pub depth: u32,
    /// At most so many operations of each thread in a second.
    pub per_second: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Past the page cache; the thread sleeps until it is done.
    Read,
    Write,
    /// To the page cache; the kernel writes it back.
    BufferedWrite,
    /// Past the page cache with `io_submit`; the thread sleeps in `io_getevents`.
    NativeAio,
}

/// The disks of a node in real time; `machine.rs` has their speeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disk {
    Fast,
    Slow,
}

fn one() -> u32 {
    1
}
fn whole() -> f64 {
    1.0
}
fn page() -> u32 {
    4
}
fn ten() -> f64 {
    10.0
}

impl Load {
    /// A thread that always runs.
    pub const BUSY: Self = Self {
        threads: 1,
        duty: 1.0,
        burst_ms: 10.0,
        wake_together: false,
        phases: None,
        resident_mib: 0,
        emulator: None,
        memory: None,
        io: None,
    };

    /// Whether it wants CPU time, and neither memory nor a disk.
    pub fn is_cpu(&self) -> bool {
        self.memory.is_none() && self.io.is_none()
    }

    /// The share of time for which a thread wants to run, on average.
    pub fn average_duty(&self) -> f64 {
        self.phases.map_or(self.duty, |phases| {
            let busy = self.duty * phases.busy_s + phases.calm_duty * phases.calm_s;
            busy / (phases.busy_s + phases.calm_s)
        })
    }

    /// The share of time for which a thread wants to run at the least.
    pub fn least_duty(&self) -> f64 {
        self.phases.map_or(self.duty, |phases| phases.calm_duty.min(self.duty))
    }

    pub(super) fn check(&self, real_time: bool) -> anyhow::Result<()> {
        let bursts = [(self.duty, self.burst_ms)];
        let emulator = self.emulator.map(|emulator| (emulator.duty, emulator.burst_ms));
        let calm = self.phases.map(|phases| (phases.calm_duty, self.burst_ms));
        for (duty, burst_ms) in bursts.into_iter().chain(emulator).chain(calm) {
            ensure!(
                duty > 0.0 && duty <= 1.0 && burst_ms > 0.0,
                "a duty is above 0 and at most 1, and burst_ms above 0"
            );
        }
        let all_positive = self.phases.is_none_or(|phases| phases.busy_s.min(phases.calm_s) > 0.0);
        ensure!(all_positive, "busy_s and calm_s are above 0");
        ensure!(self.memory.is_none() || self.io.is_none(), "a load has memory or io, not both");
        ensure!(real_time || self.is_cpu(), "memory and io need real_time = true");
        Ok(())
    }
}
