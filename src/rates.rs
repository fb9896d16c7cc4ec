//! Computes rates and shares of time from two samples. Pure. A counter that decreased, or a window
//! that is too short, gives `None`, never a negative or infinite rate.

mod cpu;
mod disks;
mod smoothing;
mod window;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::identity::Workload;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::kernel::node_text::{CpuTimes, Reclaim};
use crate::kernel::resource::PerResource;
use crate::sample::{
    CgroupSample, ContainerSample, CpuSource, MemoryUse, NodeSample, OtherSample, PressureReading,
    ScrapeSample, TickSample,
};
pub use cpu::{CpuRates, ThreadRates};
use cpu::{cpu_rates, thread_rates};
pub use disks::IoRates;
use disks::disk_rates;
pub use smoothing::MovingAverage;
pub use window::{PressureRates, Ratio, WaitShares};
use window::{increase, per_second, pressure_rates};

/// Rates of the node between two samples of either pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRates {
    /// The time between the samples.
    pub window: Duration,
    pub pressure: PressureRates,
    /// Share of the CPUs' time in use.
    pub utilization: Option<Ratio>,
    /// Share of the CPUs' time that the node's hypervisor gave to other guests.
    pub steal: Option<Ratio>,
}

/// Rates between two export passes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScrapeRates {
    pub node: NodeRates,
    /// Rates of the cgroups that are in both samples.
    pub cgroups: HashMap<CgroupId, PressureRates>,
}

/// Rates between two ticks.
#[derive(Debug, Clone, PartialEq)]
pub struct TickRates {
    pub node: NodeRates,
    pub cpus: Option<u64>,
    /// Run delay of all tasks of the node, in CPUs: 1 for each task that waits all the time.
    pub run_delay: Option<f64>,
    /// Share of memory that is not available without swapping, at the later sample.
    pub memory_utilization: Option<Ratio>,
    /// Whether reclaim ran because of the node, or of the limit of all its pods.
    pub reclaims: Option<bool>,
    /// Whether the kernel reports any pressure.
    pub has_pressure: bool,
    pub cpu_source: CpuSource,
    /// The scored containers of the later sample; `None` if they are unknown there.
    pub containers: Option<Vec<ContainerRates>>,
    /// The other workloads of the later sample; `None` if one of them is new, or if they were not
    /// read in both samples.
    pub others: Option<Vec<CpuRates>>,
}

/// Rates of a scored container between two ticks.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerRates {
    pub cgroup: Arc<Cgroup>,
    pub workload: Option<Arc<Workload>>,
    pub pressure: PressureRates,
    pub cpu: CpuRates,
    /// Its threads; `None` where they were not read in both samples.
    pub threads: Option<ThreadRates>,
    pub memory: MemoryRates,
    pub io: IoRates,
}

/// Why a container waits for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryRates {
    /// Its memory, bytes.
    pub current: Option<f64>,
    /// Whether a limit of its own or of its pod caused reclaim.
    pub own_limit: Option<bool>,
    /// Share of its pages scanned by reclaim that kswapd scanned: because of the node.
    pub scanned_for_node: Option<Ratio>,
}

/// Compares two export passes, the earlier first.
pub fn scrape_rates(earlier: &ScrapeSample, later: &ScrapeSample) -> ScrapeRates {
    fn all(sample: &ScrapeSample) -> impl Iterator<Item = &CgroupSample> {
        sample.cgroups.iter().chain(&sample.beside)
    }
    let before: HashMap<CgroupId, &PressureReading> =
        all(earlier).map(|sample| (sample.cgroup.id, &sample.pressure)).collect();
    let rates = |sample: &CgroupSample| {
        let before = before.get(&sample.cgroup.id)?;
        Some((sample.cgroup.id, pressure_rates(before, &sample.pressure)))
    };
    let window = later.moment.at.saturating_duration_since(earlier.moment.at);
    ScrapeRates {
        node: node_rates(&earlier.node, &later.node, window),
        cgroups: all(later).filter_map(rates).collect(),
    }
}

/// Compares two ticks, the earlier first.
pub fn tick_rates(earlier: &TickSample, later: &TickSample) -> TickRates {
    let window = later.moment.at.saturating_duration_since(earlier.moment.at);
    let containers = later.containers.as_ref().map(|containers| {
        let before = earlier.containers.iter().flatten();
        let before: HashMap<CgroupId, &ContainerSample> =
            before.map(|container| (container.cgroup.id, container)).collect();
        let disks = disk_rates(earlier, later);
        let rates = |container: &ContainerSample| {
            let before = before.get(&container.cgroup.id).copied();
            let io = IoRates::between(
                before.map(|before| &before.io),
                &container.io,
                disks.as_ref(),
                later.pods.memory,
                window,
            );
            container_rates(before, container, io, window)
        };
        containers.iter().map(rates).collect()
    });
    let run_delay = earlier.run_delay_ns.zip(later.run_delay_ns).and_then(|(before, after)| {
        per_second(increase(before, after)?, window).map(|ns| ns / 1e9)
    });
    TickRates {
        node: node_rates(&earlier.node, &later.node, window),
        cpus: later.node.cpu_times.map(|times| times.cpus),
        run_delay,
        memory_utilization: later.node.memory.and_then(|memory| {
            let (total, available) = (memory.total?, memory.available?);
            Ratio::of(increase(available, total)?, increase(0, total)?)
        }),
        reclaims: reclaims(earlier, later),
        has_pressure: later.node.pressure.pressures != PerResource::default(),
        cpu_source: later.cpu_source,
        containers,
        others: other_rates(earlier, later),
    }
}

fn node_rates(before: &NodeSample, after: &NodeSample, window: Duration) -> NodeRates {
    let cpu_share = |ticks: fn(&CpuTimes) -> u64| {
        let (before, after) = (before.cpu_times?, after.cpu_times?);
        let whole = increase(before.total(), after.total())?;
        Ratio::of(increase(ticks(&before), ticks(&after))?, whole)
    };
    NodeRates {
        window,
        pressure: pressure_rates(&before.pressure, &after.pressure),
        utilization: cpu_share(CpuTimes::busy),
        steal: cpu_share(|times| times.steal),
    }
}

fn reclaims(before: &TickSample, after: &TickSample) -> Option<bool> {
    let (reclaim_before, reclaim_after) = (before.node.reclaim?, after.node.reclaim?);
    let moved =
        |pages: fn(Reclaim) -> Option<u64>| Some(pages(reclaim_after)? != pages(reclaim_before)?);
    let limit_hits = before.pods.limit_hits.zip(after.pods.limit_hits);
    Some(
        moved(|reclaim| reclaim.pgscan_kswapd)?
            || moved(|reclaim| reclaim.pgscan_direct)?
            || limit_hits.is_some_and(|(before, after)| before < after),
    )
}

/// All rates of a new container are unknown, except its limits.
fn container_rates(
    before: Option<&ContainerSample>,
    after: &ContainerSample,
    io: IoRates,
    window: Duration,
) -> ContainerRates {
    let pressure =
        before.map(|before| pressure_rates(&before.pressure, &after.pressure)).unwrap_or_default();
    ContainerRates {
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
    MemoryRates {
        current: after.current.and_then(|bytes| increase(0, bytes)),
        own_limit: hits.map(|hits| hits > 0.0),
        scanned_for_node,
    }
}

fn other_rates(earlier: &TickSample, later: &TickSample) -> Option<Vec<CpuRates>> {
    let before: HashMap<CgroupId, &OtherSample> =
        earlier.others.as_ref()?.iter().map(|one| (one.id, one)).collect();
    let rates = |one: &OtherSample| {
        let before = before.get(&one.id)?;
        Some(cpu_rates(&one.cpu, pressure_rates(&before.pressure, &one.pressure).cpu))
    };
    later.others.as_ref()?.iter().map(rates).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::ScannedPages;

    #[test]
    fn pages_scanned_by_kswapd_were_scanned_for_the_node() {
        let scanned = |by_kswapd, directly| MemoryUse {
            current: None,
            limit_hits: Some(by_kswapd),
            scanned: Some(ScannedPages { by_kswapd, directly }),
        };
        let rates = |before: MemoryUse, after: MemoryUse| memory_rates(Some(&before), &after);
        let some = rates(scanned(0, 100), scanned(30, 190));
        assert_eq!(
            (some.own_limit, some.scanned_for_node.map(Ratio::get)),
            (Some(true), Some(0.25))
        );
        let nothing = rates(scanned(7, 7), scanned(7, 7));
        assert_eq!((nothing.own_limit, nothing.scanned_for_node), (Some(false), None));
        let unread = MemoryUse { limit_hits: Some(0), ..MemoryUse::default() };
        assert_eq!(rates(unread, scanned(30, 190)).scanned_for_node, None);
    }
}
