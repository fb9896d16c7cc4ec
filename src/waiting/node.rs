//! What is read of the node, and the rates between the last two readings. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use super::disk_rates::DiskRates;
use super::series::{Ratio, Window, increase};
use crate::kernel::io_stat::Device;
use crate::kernel::limits::CpuSet;
use crate::kernel::node_text::{Cores, CpuTimes, DiskStat, NodeMemory, Reclaim, RunDelay, Ticks};
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;

/// The last two readings of the node's files, by ticks or by scrapes.
#[derive(Debug, Clone, Default)]
pub struct NodeReadings {
    pub pressure: PerResource<Window<Pressure>>,
    /// Whether the kernel reports pressure: a tick has read it once. A file that can't be read later does not
    /// mean that PSI is off.
    pub reports: PerResource<bool>,
    /// Interrupt pressure, where the kernel accounts for it; read by scrapes only.
    pub irq: Option<Pressure>,
    pub cpu_times: Window<CpuTimes>,
    /// CPUs that were online when their times were last read.
    pub online: Option<usize>,
    /// Empty if they are unknown; `None` if they could not be read yet.
    pub cores: Option<Cores>,
    /// Run delay of all tasks of the node; read only while a scored container
    /// waits.
    pub run_delay: Window<RunDelay>,
    pub reclaim: Window<Reclaim>,
    pub memory: Option<NodeMemory>,
    pub disks: Window<BTreeMap<Device, DiskStat>>,
    /// Operations of each disk between the readings; `None` if they are unknown.
    pub disk_rates: Option<BTreeMap<Device, DiskRates>>,
    /// Times that a memory limit of kubepods, a QoS class or, on a host without pods, a slice caused reclaim, which
    /// counts as reclaim by the node.
    pub limit_hits: Window<u64>,
    /// Memory of all pods, bytes.
    pub pods_memory: Option<u64>,
    pub reclaimed_at: Option<Instant>,
    /// Devices that are swap space, while pages are read from it; empty if they are unknown.
    pub swap_devices: Vec<Device>,
}

impl NodeReadings {
    pub fn cpus(&self) -> f64 {
        let online = self.cpu_times.value().map(|times| times.each.len());
        online.or(self.online).unwrap_or(1).max(1) as f64
    }

    /// Run delay of all tasks of the node, in CPUs: 1 for each task that waits all the time. `None` where
    /// other CPUs are online than before.
    pub(super) fn run_delay(&self) -> Option<f64> {
        let (before, last) = self.run_delay.both()?;
        let delay = self.run_delay.rate(|delay| Some(delay.total_ns))?;
        (before.online == last.online).then_some(delay / 1e9)
    }

    /// Share of the CPUs' time.
    pub fn cpu_share(&self, ticks: fn(&Ticks) -> u64) -> Option<Ratio> {
        let (before, last) = self.cpu_times.both()?;
        share(&before.all, &last.all, ticks)
    }

    /// Share of the time of one CPU.
    fn share_of(&self, cpu: u32, ticks: fn(&Ticks) -> u64) -> Option<f64> {
        let (before, last) = self.cpu_times.both()?;
        share(before.each.get(&cpu)?, last.each.get(&cpu)?, ticks).map(Ratio::get)
    }

    /// CPUs of this set that were not idle, on average. `None` unless all of them are online.
    pub(super) fn busy_cpus(&self, set: &CpuSet) -> Option<f64> {
        let (_, last) = self.cpu_times.both()?;
        let of_set = last.each.keys().filter(|cpu| set.contains(**cpu));
        if of_set.clone().count() < set.count() as usize {
            return None;
        }
        of_set.map(|cpu| self.share_of(*cpu, |ticks| ticks.busy + ticks.steal)).sum()
    }

    /// CPUs that are busy beside another one of their core (SMT), on average: of each core, those beyond the
    /// first. The kernel counts each CPU for itself, so they count as busy independently of each other.
    pub fn smt_overlap(&self) -> Option<f64> {
        // Without them, it is not known that no CPU is busy.
        self.cpu_times.both()?;
        let cores = self.cores.as_ref().filter(|cores| !cores.is_empty())?;
        let busy = |cpu: &u32| self.share_of(*cpu, |ticks| ticks.busy);
        let overlap = |core: &Vec<u32>| -> f64 {
            let busy: Vec<f64> = core.iter().filter_map(busy).collect();
            let is_idle: f64 = busy.iter().map(|busy| 1.0 - busy).product();
            busy.iter().sum::<f64>() - (1.0 - is_idle)
        };
        Some(cores.iter().map(overlap).sum::<f64>().max(0.0))
    }

    /// Reads of all disks in flight, on average; 0 if they are unknown.
    pub(super) fn reads_in_flight(&self) -> f64 {
        let disks = self.disk_rates.iter().flat_map(BTreeMap::values);
        disks.filter(|disk| !disk.is_on_top).map(|disk| disk.reading).sum()
    }

    /// Whether pages were read back from swap. A kernel without swap counts none.
    pub fn swaps_in(&self) -> Option<bool> {
        let (before, last) = self.reclaim.both()?;
        Some(last.pswpin > before.pswpin)
    }

    /// Mean time of a read from swap, seconds; from any disk where the swap devices are unknown or not counted.
    /// `None` if nothing was read.
    pub(super) fn swap_read_s(&self) -> Option<f64> {
        let rates = self.disk_rates.as_ref()?;
        let mean = |disks: Vec<&DiskRates>| {
            let reads: f64 = disks.iter().map(|disk| disk.reads.completed).sum();
            let reading: f64 = disks.iter().map(|disk| disk.reading).sum();
            (reads > 0.0).then(|| reading / reads)
        };
        if self.swap_devices.is_empty() {
            return mean(rates.values().collect());
        }
        mean(self.swap_devices.iter().filter_map(|device| rates.get(device)).collect())
    }

    /// Whether reclaim ran because of the node, or of a limit that counts as the node's.
    pub fn reclaims(&self) -> Option<bool> {
        let (before, last) = self.reclaim.both()?;
        let moved = |pages: fn(&Reclaim) -> Option<u64>| Some(pages(before)? != pages(last)?);
        Some(
            moved(|reclaim| reclaim.pgscan_kswapd)?
                || moved(|reclaim| reclaim.stalls_normal)?
                || moved(|reclaim| reclaim.stalls_movable)?
                || self.limit_hits.increase(|hits| Some(*hits))? > 0.0,
        )
    }
}

fn share(before: &Ticks, last: &Ticks, ticks: fn(&Ticks) -> u64) -> Option<Ratio> {
    Ratio::of(increase(ticks(before), ticks(last))?, increase(before.total, last.total)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::waiting::series::Reading;
    use std::time::Duration;

    #[test]
    fn cpus_of_a_core_overlap_by_the_product_of_their_busy_shares() {
        let start = clock::now().at;
        let times = |at_s, busy: [u64; 4]| {
            let each = (0..)
                .zip(busy)
                .map(|(cpu, busy)| (cpu, Ticks { busy, steal: 0, total: at_s * 100 }));
            let value = CpuTimes { each: each.collect(), ..CpuTimes::default() };
            Some(Reading { at: start + Duration::from_secs(at_s), value })
        };
        let window = Window { before: times(0, [0; 4]), last: times(5, [250, 500, 100, 400]) };
        let overlap = |cores: Vec<Vec<u32>>| {
            let cores = Some(cores);
            let readings =
                NodeReadings { cpu_times: window.clone(), cores, ..NodeReadings::default() };
            readings.smt_overlap().map(|cpus| (cpus * 1e6).round() / 1e6)
        };
        // .5 and .2, and 1 and .8; then all four, of which one is always busy.
        assert_eq!(overlap(vec![vec![0, 2], vec![1, 3]]), Some(0.1 + 0.8));
        assert_eq!(overlap(vec![vec![0, 1, 2, 3]]), Some(1.5));
        let cpu_times = window.clone();
        let readings = NodeReadings { cpu_times, ..NodeReadings::default() };
        assert_eq!(readings.busy_cpus(&[1, 3].into_iter().collect()), Some(1.8));
        assert_eq!(readings.busy_cpus(&[1, 4].into_iter().collect()), None);
        // One that is offline overlaps with none.
        assert_eq!(overlap(vec![vec![0, 4], vec![1]]), Some(0.0));
        assert_eq!(overlap(vec![]), None);
    }
}
