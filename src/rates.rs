//! Two samples to shares of time. Pure: a counter that went back, or a window too short to mean
//! anything, gives `None`, never a negative or an infinite rate.

mod cpu;
mod disks;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::identity::Workload;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::kernel::node_text::{CpuTimes, Reclaim};
use crate::kernel::pressure::Pressure;
use crate::sample::{
    BystanderSample, CgroupSample, CpuSource, MemberSample, MemoryUse, NodeSample, PressureReading,
    Sample,
};
pub use cpu::{CpuRates, Room, ThreadRates};
use cpu::{cpu_rates, thread_rates};
pub use disks::IoRates;
use disks::disk_rates;

/// Shorter windows hold too few of the kernel's own to be a rate.
const MIN_WINDOW: Duration = Duration::from_millis(900);

/// A finite number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// `part / whole`, held within 0 and 1 (PSI's windows and ours differ by microseconds);
    /// `None` where it is no number.
    #[must_use]
    pub fn of(part: f64, whole: f64) -> Option<Self> {
        let ratio = part / whole;
        ratio.is_finite().then(|| Self(ratio.clamp(0.0, 1.0)))
    }

    /// Nothing of it.
    pub const ZERO: Self = Self(0.0);

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Ratio {
    /// To four decimals: more would be noise.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.0 * 10_000.0).round() / 10_000.0)
    }
}

/// Shares of the window in which tasks waited for one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WaitShares {
    /// At least one task waited.
    pub some: Option<Ratio>,
    /// All tasks waited at once.
    pub full: Option<Ratio>,
}

/// Shares for the three resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PressureRates {
    /// CPU time.
    pub cpu: WaitShares,
    /// Memory.
    pub memory: WaitShares,
    /// Block I/O.
    pub io: WaitShares,
}

/// What happened between two samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    /// The time between them.
    pub window: Duration,
    /// The node's pressures.
    pub node: PressureRates,
    /// Share of the CPUs' time in which they ran something.
    pub utilization: Option<Ratio>,
    /// Share of the CPUs' time that the hypervisor below gave to others.
    pub steal: Option<Ratio>,
    /// CPUs online.
    pub cpus: Option<u64>,
    /// CPUs' worth of waiting of all tasks together: for each task that waits all the time, 1.
    pub run_delay: Option<f64>,
    /// Share of memory that programs could not get without swapping, at the later sample.
    pub memory_utilization: Option<Ratio>,
    /// Whether the node itself looked for memory to free, or kubepods did within its limit.
    pub reclaims: Option<bool>,
    /// Cgroups that both samples have, with what could be told of them.
    pub cgroups: HashMap<CgroupId, PressureRates>,
    /// Where members' waiting for a CPU is from.
    pub cpu_source: CpuSource,
    /// Whether the kernel tells any pressure.
    pub tells_pressure: bool,
    /// The containers that the score is about, of the later sample; `None` where it does not tell.
    pub members: Option<Vec<MemberRates>>,
    /// All others on the node, of the later sample; `None` where it does not tell, or somebody came
    /// or went in between, and nobody knows what that one waited for.
    pub bystanders: Option<Vec<CpuRates>>,
}

/// A container that the score is about, between two samples.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberRates {
    /// Which.
    pub cgroup: Arc<Cgroup>,
    /// Whose it is.
    pub workload: Option<Arc<Workload>>,
    /// Shares of the window in which its tasks waited.
    pub pressure: PressureRates,
    /// What it did with CPUs.
    pub cpu: CpuRates,
    /// What its threads did; `None` where they are not asked for, or were not seen in both samples.
    pub threads: Option<ThreadRates>,
    /// What tells whose doing its waiting for memory is.
    pub memory: MemoryRates,
    /// What tells whose doing its waiting for disks is.
    pub io: IoRates,
}

/// What tells whose doing it is that a container waits for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryRates {
    /// Whether a limit of its own or of its pod made it reclaim.
    pub own_limit: Option<bool>,
    /// Of its pages that were looked at to free memory, the share that only the node's shortage can
    /// have made somebody look at; `None` where nothing tells.
    pub scanned_for_node: Option<Ratio>,
}

/// Compares two samples, the earlier first.
#[must_use]
pub fn rates_between(earlier: &Sample, later: &Sample) -> Rates {
    let before: HashMap<CgroupId, &PressureReading> =
        all_cgroups(earlier).map(|sample| (sample.cgroup.id, &sample.pressure)).collect();
    let cgroups = all_cgroups(later).filter_map(|sample| {
        let before = before.get(&sample.cgroup.id)?;
        Some((sample.cgroup.id, pressure_rates(before, &sample.pressure)))
    });
    let window = later.moment.at.saturating_duration_since(earlier.moment.at);
    let members = later.members.as_ref().map(|members| {
        let before = earlier.members.iter().flatten();
        let before: HashMap<CgroupId, &MemberSample> =
            before.map(|member| (member.cgroup.id, member)).collect();
        let disks = disk_rates(earlier, later);
        let rates = |member: &MemberSample| {
            let before = before.get(&member.cgroup.id).copied();
            let io = IoRates::between(
                before.map(|before| &before.io),
                &member.io,
                disks.as_ref(),
                later.node.pods_memory,
                window,
            );
            member_rates(before, member, io, window)
        };
        members.iter().map(rates).collect()
    });
    let cpu_share = |ticks: fn(&CpuTimes) -> u64| {
        let (before, after) = (earlier.node.cpu_times?, later.node.cpu_times?);
        let whole = increase(before.total(), after.total())?;
        Ratio::of(increase(ticks(&before), ticks(&after))?, whole)
    };
    Rates {
        window,
        node: pressure_rates(&earlier.node.pressure, &later.node.pressure),
        utilization: cpu_share(CpuTimes::busy),
        steal: cpu_share(|times| times.steal),
        cpus: later.node.cpu_times.map(|times| times.cpus),
        run_delay: earlier.node.run_delay_ns.zip(later.node.run_delay_ns).and_then(
            |(before, after)| per_second(increase(before, after)?, window).map(|ns| ns / 1e9),
        ),
        memory_utilization: later.node.memory.and_then(|memory| {
            let (total, available) = (memory.total?, memory.available?);
            Ratio::of(increase(available, total)?, increase(0, total)?)
        }),
        reclaims: reclaims(&earlier.node, &later.node),
        cgroups: cgroups.collect(),
        cpu_source: later.cpu_source,
        tells_pressure: later.node.pressure.pressures.any(),
        members,
        bystanders: bystanders(earlier, later),
    }
}

fn reclaims(before: &NodeSample, after: &NodeSample) -> Option<bool> {
    let (reclaim_before, reclaim_after) = (before.reclaim?, after.reclaim?);
    let moved =
        |pages: fn(Reclaim) -> Option<u64>| Some(pages(reclaim_after)? != pages(reclaim_before)?);
    let pods_limit = before.pods_limit_hits.zip(after.pods_limit_hits);
    Some(
        moved(|reclaim| reclaim.pgscan_kswapd)?
            || moved(|reclaim| reclaim.pgscan_direct)?
            || pods_limit.is_some_and(|(before, after)| before < after),
    )
}

fn all_cgroups(sample: &Sample) -> impl Iterator<Item = &CgroupSample> {
    sample.cgroups.iter().chain(&sample.beside)
}

/// Of a container that was not there before, all but what it is allowed is unknown.
fn member_rates(
    before: Option<&MemberSample>,
    after: &MemberSample,
    io: IoRates,
    window: Duration,
) -> MemberRates {
    let pressure =
        before.map(|before| pressure_rates(&before.pressure, &after.pressure)).unwrap_or_default();
    MemberRates {
        cgroup: Arc::clone(&after.cgroup),
        workload: after.workload.clone(),
        pressure,
        cpu: cpu_rates(&after.cpu, pressure.cpu),
        threads: before.and_then(|before| {
            thread_rates(before.threads.as_deref()?, after.threads.as_deref()?, window)
        }),
        memory: memory_rates(before.map(|before| &before.memory), &after.memory),
        io,
    }
}

fn memory_rates(before: Option<&MemoryUse>, after: &MemoryUse) -> MemoryRates {
    let hits = before.and_then(|before| increase(before.limit_hits?, after.limit_hits?));
    let scanned_for_node = before.and_then(|before| {
        let (before, after) = (before.scanned?, after.scanned?);
        let by_kswapd = increase(before.by_kswapd, after.by_kswapd)?;
        Ratio::of(by_kswapd, by_kswapd + increase(before.directly, after.directly)?)
    });
    MemoryRates { own_limit: hits.map(|hits| hits > 0.0), scanned_for_node }
}

/// The bystanders of the later sample, where those who are on the node are the same in both.
fn bystanders(earlier: &Sample, later: &Sample) -> Option<Vec<CpuRates>> {
    let all = |sample: &Sample| -> Option<BTreeSet<CgroupId>> {
        let members = sample.members.iter().flatten().map(|member| member.cgroup.id);
        Some(members.chain(sample.bystanders.as_ref()?.iter().map(|one| one.id)).collect())
    };
    let rates = |one: &BystanderSample| {
        Some(cpu_rates(&one.cpu, pressure_rates(&one.before?, &one.pressure).cpu))
    };
    if all(earlier)? == all(later)? {
        later.bystanders.as_ref()?.iter().map(rates).collect()
    } else {
        None
    }
}

/// How much a second; `None` in a window that is too short.
fn per_second(amount: f64, window: Duration) -> Option<f64> {
    (window >= MIN_WINDOW).then(|| amount / window.as_secs_f64())
}

fn pressure_rates(before: &PressureReading, after: &PressureReading) -> PressureRates {
    let window = after.at.saturating_duration_since(before.at);
    if window < MIN_WINDOW {
        return PressureRates::default();
    }
    let shares = |resource| {
        let before = before.pressures.of(resource).unwrap_or_default();
        let after = after.pressures.of(resource).unwrap_or_default();
        let share = |total: fn(Pressure) -> Option<u64>| {
            let stalled_us = increase(total(before)?, total(after)?)?;
            Ratio::of(stalled_us, window.as_secs_f64() * 1e6)
        };
        WaitShares {
            some: share(|pressure| pressure.some_us),
            full: share(|pressure| pressure.full_us),
        }
    };
    PressureRates {
        cpu: shares(Resource::Cpu),
        memory: shares(Resource::Memory),
        io: shares(Resource::Io),
    }
}

/// How far a counter went up; `None` after a reset.
#[allow(clippy::cast_precision_loss, reason = "an increase within one window is far below 2^52")]
fn increase(before: u64, after: u64) -> Option<f64> {
    after.checked_sub(before).map(|increase| increase as f64)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
mod tests {
    use super::*;
    use crate::sample::{Pressures, Scanned};
    use proptest::prelude::*;
    use std::time::Instant;

    fn reading(at: Instant, some_us: Option<u64>) -> PressureReading {
        let cpu = Some(Pressure { some_us, full_us: None });
        PressureReading { at, pressures: Pressures { cpu, ..Pressures::default() } }
    }

    fn cpu_some(before: Option<u64>, after: Option<u64>, window: Duration) -> Option<f64> {
        let start = Instant::now();
        let rates = pressure_rates(&reading(start, before), &reading(start + window, after));
        rates.cpu.some.map(Ratio::get)
    }

    #[test]
    fn a_share_is_waiting_time_over_the_readings_own_window() {
        let window = Duration::from_secs(5);
        assert_eq!(cpu_some(Some(1_000_000), Some(3_500_000), window), Some(0.5));
        assert_eq!(cpu_some(Some(5), Some(5), window), Some(0.0));
    }

    #[test]
    fn no_rate_across_a_reset_an_absence_or_a_short_window() {
        let window = Duration::from_secs(5);
        assert_eq!(cpu_some(Some(10), Some(9), window), None);
        assert_eq!(cpu_some(None, Some(9), window), None);
        assert_eq!(cpu_some(Some(9), None, window), None);
        assert_eq!(cpu_some(Some(0), Some(1), Duration::from_millis(500)), None);
        assert_eq!(cpu_some(Some(0), Some(1), Duration::ZERO), None);
    }

    #[test]
    fn what_kswapd_looked_at_was_for_the_node() {
        let scanned = |by_kswapd, directly| MemoryUse {
            limit_hits: Some(by_kswapd),
            scanned: Some(Scanned { by_kswapd, directly }),
        };
        let rates = |before: MemoryUse, after: MemoryUse| memory_rates(Some(&before), &after);
        let some = rates(scanned(0, 100), scanned(30, 190));
        assert_eq!(
            (some.own_limit, some.scanned_for_node.map(Ratio::get)),
            (Some(true), Some(0.25))
        );
        let nothing = rates(scanned(7, 7), scanned(7, 7));
        assert_eq!((nothing.own_limit, nothing.scanned_for_node), (Some(false), None));
        let unread = MemoryUse { limit_hits: Some(0), scanned: None };
        assert_eq!(rates(unread, scanned(30, 190)).scanned_for_node, None);
    }

    proptest! {
        #[test]
        fn every_share_is_a_number_from_0_to_1(before: u64, after: u64, millis in 0u64..100_000) {
            let share = cpu_some(Some(before), Some(after), Duration::from_millis(millis));
            prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
