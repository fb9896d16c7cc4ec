//! What is read of the node, and the rates between the last two readings. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::disk_rates::DiskRates;
use super::series::{Ratio, Window};
use crate::kernel::io_stat::Device;
use crate::kernel::node_text::{CpuTimes, Disk, NodeMemory, Reclaim, RunDelay};
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;

/// Time after a reclaim in which most refaults of the reclaimed pages occur.
const REFAULTS_FOLLOW: Duration = Duration::from_secs(60);

/// The last two readings of the node's files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeReadings {
    pub pressure: PerResource<Window<Pressure>>,
    /// Whether the kernel reports pressure: it was read once. A file that can't be read later does not
    /// mean that PSI is off.
    pub reports: PerResource<bool>,
    pub cpu_times: Window<CpuTimes>,
    /// Run delay of all tasks of the node; read only while a scored container
    /// waits.
    pub run_delay: Window<RunDelay>,
    pub reclaim: Window<Reclaim>,
    pub memory: Option<NodeMemory>,
    pub disks: Window<BTreeMap<Device, Disk>>,
    /// Operations of each disk between the readings; `None` if they are unknown.
    pub disk_rates: Option<BTreeMap<Device, DiskRates>>,
    /// Times that a memory limit of kubepods or a QoS class caused reclaim, which counts as reclaim
    /// by the node.
    pub limit_hits: Window<u64>,
    /// Memory of all pods, bytes.
    pub pods_memory: Option<u64>,
    pub reclaimed_at: Option<Instant>,
    /// Devices that are swap space, while pages are read from it; empty if they are unknown.
    pub swap_devices: Vec<Device>,
}

impl NodeReadings {
    #[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of CPUs")]
    pub fn cpus(&self) -> f64 {
        self.cpu_times.value().map_or(1.0, |times| times.cpus.max(1) as f64)
    }

    /// Run delay of all tasks of the node, in CPUs: 1 for each task that waits all the time. `None` where
    /// other CPUs are online than before.
    pub(super) fn run_delay(&self) -> Option<f64> {
        let (before, last) = self.run_delay.both()?;
        let delay = self.run_delay.rate(|delay| Some(delay.total_ns))?;
        (before.online == last.online).then_some(delay / 1e9)
    }

    /// Share of the CPUs' time.
    pub fn cpu_share(&self, ticks: fn(&CpuTimes) -> u64) -> Option<Ratio> {
        let whole = self.cpu_times.increase(|times| Some(times.total))?;
        Ratio::of(self.cpu_times.increase(|times| Some(ticks(times)))?, whole)
    }

    /// Reads of all disks in flight, on average; 0 if they are unknown.
    pub(super) fn reads_in_flight(&self) -> f64 {
        self.disk_rates.iter().flat_map(BTreeMap::values).map(|disk| disk.reading).sum()
    }

    /// Whether pages were read back from swap.
    pub fn swaps_in(&self) -> bool {
        self.reclaim.increase(|reclaim| reclaim.pswpin).is_some_and(|pages| pages > 0.0)
    }

    /// Mean time of a read from swap, seconds; from any disk where the swap devices are unknown.
    pub(super) fn swap_read_s(&self) -> Option<f64> {
        let rates = self.disk_rates.as_ref()?;
        let is_swap = |device| self.swap_devices.is_empty() || self.swap_devices.contains(device);
        let swap = || rates.iter().filter(|(device, _)| is_swap(device)).map(|(_, rates)| rates);
        let reads: f64 = swap().map(|rates| rates.reads.completed).sum();
        let reading: f64 = swap().map(|rates| rates.reading).sum();
        Some(if reads > 0.0 { reading / reads } else { 0.0 })
    }

    /// Whether reclaim ran because of the node, or of the limit of all its pods.
    pub fn reclaims(&self) -> Option<bool> {
        let (before, last) = self.reclaim.both()?;
        let moved = |pages: fn(&Reclaim) -> Option<u64>| Some(pages(before)? != pages(last)?);
        let by_limit = self.limit_hits.increase(|hits| Some(*hits)).is_some_and(|hits| hits > 0.0);
        Some(
            moved(|reclaim| reclaim.pgscan_kswapd)?
                || moved(|reclaim| reclaim.pgscan_direct)?
                || by_limit,
        )
    }

    pub(super) fn reclaimed_lately(&self, now: Instant) -> bool {
        self.reclaimed_at.is_some_and(|at| now.saturating_duration_since(at) < REFAULTS_FOLLOW)
    }
}
