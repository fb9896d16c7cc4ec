//! The load of containers on the node's disks, and the time that it takes, for the meters of memory
//! and I/O wait. Pure.

use std::collections::BTreeMap;

use super::disk_rates::DiskRates;
use super::node::NodeReadings;
use super::readings::Readings;
use super::series::increase;
use crate::kernel::io_stat::{Device, IoCounters};
use crate::kernel::page_size;

/// A container's use of disks in one window. `None` is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DiskUse {
    /// Share of the operations on its disks that other workloads requested.
    pub(super) others: Option<f64>,
    /// Its reads in flight, on average. If one task waits for each read, this is the share of time
    /// waited.
    pub(super) reading: Option<f64>,
    /// Share of the bytes that it read which came from swap.
    pub(super) swapped_in: Option<f64>,
    /// Share of the bytes that it read which had been evicted from the page cache, times the other
    /// pods' share of all pods' memory: an estimate of the reads that they caused.
    pub(super) displaced: Option<f64>,
}

impl DiskUse {
    pub(super) fn of(readings: &Readings, node: &NodeReadings) -> Self {
        let (io, disks) = (&readings.io, node.disk_rates.as_ref());
        let (Some((before, after)), Some(seconds), Some(disks)) =
            (io.counters.both(), io.counters.seconds(), disks)
        else {
            return Self::default();
        };
        let (Some(before), Some(after)) = (before, after) else {
            // Without the controller io, all operations count as those of other workloads.
            return Self { others: Some(1.0), ..Self::default() };
        };
        let (mut reading, mut read_bytes, mut completed, mut beside) = (0.0, 0.0, 0.0, 0.0);
        let mut is_counted = true;
        for after in layers_below(before, after, disks) {
            // A disk that it did not use before has no row.
            let before = before.iter().find(|before| before.device == after.device);
            let rate = |of: fn(&IoCounters) -> u64| {
                Some(increase(before.map(of).unwrap_or_default(), of(after))? / seconds)
            };
            let rates = [rate(|io| io.reads), rate(|io| io.writes), rate(|io| io.read_bytes)];
            let [Some(reads), Some(writes), Some(bytes)] = rates else { continue };
            let disk = disks.get(&after.device).copied().unwrap_or_default();
            read_bytes += bytes;
            // Its own reads in flight, if each took as long as the average read of the disk.
            reading += disk.reading * disk.reads.share(reads);
            // Operations that the disk completed for it, and for all workloads: merged ones are one.
            let own = disk.reads.completed * disk.reads.share(reads)
                + disk.writes.completed * disk.writes.share(writes);
            let all = disk.reads.completed + disk.writes.completed;
            // Of a disk that is not counted (`queue/iostats`), the use by others is not known.
            is_counted &= all > 0.0 || reads + writes == 0.0;
            completed += own;
            // Each disk is weighted by the container's use of it.
            beside += own * (all - own).max(0.0) / all.max(f64::MIN_POSITIVE);
        }
        let pages_read = read_bytes.max(f64::MIN_POSITIVE) / page_size() as f64;
        let share = |pages: f64| (pages.max(0.0) / pages_read).min(1.0);
        let reread = readings.memory.stat.rate(|stat| stat.workingset_refault_file).map(share);
        let memory = io.pod_memory.zip(node.pods_memory);
        let by_others = memory.map(|(own, all)| all.saturating_sub(own) as f64 / all.max(1) as f64);
        // 0 if it used none of the node's disks, such as with network storage.
        let others = (beside / completed.max(f64::MIN_POSITIVE)).min(1.0);
        Self {
            others: is_counted.then_some(others),
            reading: Some(reading),
            swapped_in: readings.memory.pages_from_disk().map(share),
            displaced: reread.zip(by_others).map(|(reread, others)| reread * others),
        }
    }
}

/// The devices that a cgroup used, without those on top of others (LVM, LUKS, md), which count the same operations
/// again, if it used another one in this window.
fn layers_below<'a>(
    before: &'a [IoCounters],
    after: &'a [IoCounters],
    disks: &'a BTreeMap<Device, DiskRates>,
) -> impl Iterator<Item = &'a IoCounters> {
    let is_on_top = |one: &IoCounters| disks.get(&one.device).is_some_and(|disk| disk.is_on_top);
    let is_below = |one: &&IoCounters| !is_on_top(one) && !before.contains(one);
    let uses_below = after.iter().any(|one| is_below(&one));
    after.iter().filter(move |one| !(uses_below && is_on_top(one)))
}

#[cfg(test)]
mod tests;
