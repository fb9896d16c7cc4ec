//! The load of containers on the node's disks, and the time that it takes, for the meters of memory
//! and I/O wait. Pure.

use std::collections::BTreeMap;

use super::disk_rates::DiskRates;
use super::node::NodeReadings;
use super::readings::Readings;
use super::series::increase;
use crate::kernel::io_stat::{Device, IoCounters};
use crate::kernel::page_bytes;

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

/// Operations of a container on a disk, per second.
struct OwnOperations {
    reads: f64,
    writes: f64,
    read_bytes: f64,
    disk: DiskRates,
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
        let operations = own_operations(before, after, seconds, disks);
        let read: f64 = operations.iter().map(|own| own.read_bytes).sum();
        let share = |bytes: f64| (bytes.max(0.0) / read.max(f64::MIN_POSITIVE)).min(1.0);
        let bytes = |pages: f64| increase(0, page_bytes()).map(|bytes| bytes * pages);
        let swapped_in = readings.memory.swapped_in.rate(|swapped_in| Some(swapped_in.pages));
        let reread = io.refaults.rate(|pages| Some(*pages)).and_then(bytes);
        Self {
            others: Some(others(&operations)),
            reading: Some(operations.iter().map(OwnOperations::reading).sum()),
            swapped_in: swapped_in.and_then(bytes).map(share),
            displaced: reread
                .zip(share_of_others(io.pod_memory, node.pods_memory))
                .map(|(reread, others)| share(reread) * others),
        }
    }
}

/// The share of `all` that is not `own`.
fn share_of_others(own: Option<u64>, all: Option<u64>) -> Option<f64> {
    let (own, all) = (increase(0, own?)?, increase(0, all?)?);
    Some((all - own).max(0.0) / all.max(1.0))
}

fn own_operations(
    before: &[IoCounters],
    after: &[IoCounters],
    seconds: f64,
    disks: &BTreeMap<Device, DiskRates>,
) -> Vec<OwnOperations> {
    let operations = |after: &IoCounters| {
        // A disk that it did not use before has no row.
        let before = before.iter().find(|before| before.device == after.device);
        let rate = |of: fn(&IoCounters) -> u64| {
            Some(increase(before.map(of).unwrap_or_default(), of(after))? / seconds)
        };
        Some(OwnOperations {
            reads: rate(|io| io.reads)?,
            writes: rate(|io| io.writes)?,
            read_bytes: rate(|io| io.read_bytes)?,
            disk: disks.get(&after.device).copied().unwrap_or_default(),
        })
    };
    after.iter().filter_map(operations).collect()
}

impl OwnOperations {
    /// Its own reads in flight, if each took as long as the average read of the disk.
    fn reading(&self) -> f64 {
        self.disk.reading * self.disk.reads.share(self.reads)
    }

    /// Operations that the disk completed for the container, and for all workloads. Merged
    /// operations count as one.
    fn completed(&self) -> (f64, f64) {
        let DiskRates { reads, writes, .. } = &self.disk;
        let own = reads.completed * reads.share(self.reads)
            + writes.completed * writes.share(self.writes);
        (own, reads.completed + writes.completed)
    }
}

/// Other workloads' share of the disks' operations, each disk weighted by the container's use of
/// it. It is 0 for a container that used none of the node's disks, such as with network storage.
fn others(operations: &[OwnOperations]) -> f64 {
    let all: f64 = operations.iter().map(|own| own.completed().0).sum();
    let others = operations.iter().map(|disk| {
        let (own, total) = disk.completed();
        own * (total - own).max(0.0) / total.max(f64::MIN_POSITIVE)
    });
    if all > 0.0 { (others.sum::<f64>() / all).min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests;
