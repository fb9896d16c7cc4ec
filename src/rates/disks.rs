//! The load of containers on the node's disks, and the time that it takes. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::window::{Ratio, increase, per_second};
use crate::kernel::io_stat::{Device, IoCounters};
use crate::kernel::node_text::DiskCounters;
use crate::sample::{DiskOperations, IoUse, Refaults, TickSample};

/// Evidence of why a container waits for disks. `None` is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IoRates {
    /// Whether it or its pod has an `io.max`.
    pub has_max: Option<bool>,
    /// Share of the operations on its disks that other workloads requested.
    pub others: Option<Ratio>,
    /// Its reads in flight, on average. If one task waits for each read, this is the share of time
    /// waited.
    pub reading: Option<f64>,
    /// Share of the bytes that it read which came from swap.
    pub swapped_in: Option<Ratio>,
    /// The part of `swapped_in` that the kernel did not count as a memory stall.
    pub swapped_in_unstalled: Option<Ratio>,
    /// Share of the bytes that it read which had been evicted from the page cache, times the other
    /// pods' share of all pods' memory: an estimate of the reads that they caused.
    pub displaced: Option<Ratio>,
}

/// Operations of a disk between two samples.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskRates {
    reads: Operations,
    writes: Operations,
    reading_s: f64,
}

/// Operations of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Operations {
    completed: f64,
    /// Operations before merging.
    requested: f64,
}

/// Operations of each disk between two samples.
pub(super) fn disk_rates(
    earlier: &TickSample,
    later: &TickSample,
) -> Option<BTreeMap<Device, DiskRates>> {
    // No rows mean that the file could not be read.
    let disks = [earlier, later].map(|sample| sample.disks.as_ref());
    let [Some(before), Some(after)] = disks.map(|disks| disks.filter(|all| !all.is_empty())) else {
        return None;
    };
    let more = |(device, after): (&Device, &DiskCounters)| {
        // A device may be missing in the earlier sample because its row could not be read.
        let before = before.get(device)?;
        let more = |of: fn(&DiskCounters) -> u64| increase(of(before), of(after));
        let operations = |completed, merged| {
            let completed = more(completed)?;
            Some(Operations { completed, requested: completed + more(merged)? })
        };
        let rates = DiskRates {
            reads: operations(|disk| disk.reads, |disk| disk.reads_merged)?,
            writes: operations(|disk| disk.writes, |disk| disk.writes_merged)?,
            reading_s: more(|disk| disk.reading_ms)? / 1000.0,
        };
        Some((*device, rates))
    };
    Some(after.iter().filter_map(more).collect())
}

impl Operations {
    /// The share of `own` operations of a container in all requested ones.
    fn share(self, own: f64) -> f64 {
        // The two counts were not read at the same moment, so the container's can be the larger
        // one.
        own / self.requested.max(own).max(1.0)
    }
}

/// Operations of a container on a disk between two samples.
struct Use {
    reads: f64,
    writes: f64,
    read_bytes: f64,
    disk: DiskRates,
}

impl IoRates {
    pub(super) fn between(
        before: Option<&IoUse>,
        after: &IoUse,
        disks: Option<&BTreeMap<Device, DiskRates>>,
        pods_memory: Option<u64>,
        window: Duration,
    ) -> Self {
        let unknown = Self { has_max: after.has_max, ..Self::default() };
        let (Some(before), Some(disks)) = (before, disks) else {
            return unknown;
        };
        match (&before.operations, &after.operations) {
            (Some(DiskOperations::Counted(earlier)), Some(DiskOperations::Counted(later))) => {
                let uses = uses(earlier, later, disks);
                let read: f64 = uses.iter().map(|one| one.read_bytes).sum();
                let more = |of: fn(&Refaults) -> u64| {
                    increase(before.refaults.as_ref().map(of)?, after.refaults.as_ref().map(of)?)
                };
                let swapped_in = more(|refaults| refaults.anon);
                let stalled = more(|refaults| refaults.anon_stalled);
                let reread = more(|refaults| refaults.file);
                let share = |bytes: f64| Ratio::of(bytes.max(0.0), read.max(1.0));
                Self {
                    others: others(&uses),
                    reading: per_second(uses.iter().map(Use::reading_s).sum(), window),
                    swapped_in: swapped_in.and_then(share),
                    swapped_in_unstalled: swapped_in
                        .zip(stalled)
                        .and_then(|(all, stalled)| share(all - stalled)),
                    displaced: reread
                        .zip(others_of(after.pod_memory, pods_memory))
                        .and_then(|(reread, others)| Ratio::of(share(reread)?.get() * others, 1.0)),
                    ..unknown
                }
            }
            (Some(_), Some(_)) => Self { others: Ratio::of(1.0, 1.0), ..unknown },
            _ => unknown,
        }
    }
}

/// The share of `all` that is not `own`.
fn others_of(own: Option<u64>, all: Option<u64>) -> Option<f64> {
    let (own, all) = (increase(0, own?)?, increase(0, all?)?);
    Some((all - own).max(0.0) / all.max(1.0))
}

fn uses(
    before: &BTreeMap<Device, IoCounters>,
    after: &BTreeMap<Device, IoCounters>,
    disks: &BTreeMap<Device, DiskRates>,
) -> Vec<Use> {
    let one = |(device, after): (&Device, &IoCounters)| {
        let more = |of: fn(&IoCounters) -> u64| {
            increase(before.get(device).map(of).unwrap_or_default(), of(after))
        };
        Some(Use {
            reads: more(|io| io.reads)?,
            writes: more(|io| io.writes)?,
            read_bytes: more(|io| io.read_bytes)?,
            disk: disks.get(device).copied().unwrap_or_default(),
        })
    };
    after.iter().filter_map(one).collect()
}

impl Use {
    /// Time that its own reads took, seconds, if each took as long as the average read of the disk.
    fn reading_s(&self) -> f64 {
        self.disk.reading_s * self.disk.reads.share(self.reads)
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
fn others(uses: &[Use]) -> Option<Ratio> {
    let all: f64 = uses.iter().map(|one| one.completed().0).sum();
    let others = uses.iter().map(|one| {
        let (own, total) = one.completed();
        own * (total - own).max(0.0) / total.max(1.0)
    });
    if all > 0.0 { Ratio::of(others.sum(), all) } else { Some(Ratio::ZERO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(5);

    fn device(minor: u32) -> Device {
        Device { major: 8, minor }
    }

    /// Operations on one disk, half of them reads of 4 KiB.
    fn counted(minor: u32, operations: u64) -> IoUse {
        let (reads, device) = (operations / 2, device(minor));
        let io = IoCounters {
            device,
            reads,
            writes: operations - reads,
            read_bytes: 4096 * reads,
            written_bytes: 0,
        };
        IoUse {
            has_max: Some(false),
            operations: Some(DiskOperations::Counted(BTreeMap::from([(device, io)]))),
            refaults: None,
            pod_memory: None,
        }
    }

    fn rates(before: &IoUse, after: &IoUse) -> IoRates {
        // Each read took 10 ms.
        let operations = Operations { completed: 200.0, requested: 200.0 };
        let disk = DiskRates { reads: operations, writes: operations, reading_s: 2.0 };
        let disks = BTreeMap::from([(device(0), disk)]);
        IoRates::between(Some(before), after, Some(&disks), Some(1_000), WINDOW)
    }

    #[test]
    fn others_have_what_is_left_of_the_disks_that_it_used() {
        let others = |before: &IoUse, after: &IoUse| rates(before, after).others.map(Ratio::get);
        assert_eq!(others(&counted(0, 1_000), &counted(0, 1_100)), Some(0.75));
        assert_eq!(others(&counted(0, 1_000), &counted(0, 1_500)), Some(0.0));
        // Its storage is not on a disk of the node, or on one that the node has no counters of.
        assert_eq!(others(&counted(0, 1_000), &counted(0, 1_000)), Some(0.0));
        assert_eq!(others(&counted(1, 1_000), &counted(1, 1_100)), Some(0.0));
        // A disk that it did not use before.
        let none =
            IoUse { operations: Some(DiskOperations::Counted(BTreeMap::new())), ..counted(0, 0) };
        assert_eq!(others(&none, &counted(0, 100)), Some(0.75));
        // Without an io controller, all operations count as those of other workloads. Operations
        // that were not read are unknown.
        let uncounted = IoUse { operations: Some(DiskOperations::Uncounted), ..counted(0, 0) };
        assert_eq!(others(&uncounted, &uncounted), Some(1.0));
        let unread = IoUse { operations: None, ..counted(0, 0) };
        assert_eq!(others(&unread, &counted(0, 100)), None);
    }

    #[test]
    fn what_is_merged_is_one_operation_of_a_disk() {
        // As measured with a reader, and a writer to the page cache, that each use half of the
        // disk's time.
        let disk = DiskRates {
            reads: Operations { completed: 98.0, requested: 98.0 },
            writes: Operations { completed: 102.0, requested: 1_625.0 },
            reading_s: 0.9,
        };
        let of = |reads, writes| {
            let one = Use { reads, writes, read_bytes: 0.0, disk };
            (others(&[one]).unwrap().get() * 1e3).round() / 1e3
        };
        assert_eq!((of(98.0, 0.0), of(0.0, 1_625.0)), (0.51, 0.49));
    }

    #[test]
    fn its_reads_take_as_long_as_the_disks_do() {
        let reading = |before: u64, after| rates(&counted(0, before), &counted(0, after)).reading;
        // Fifty of 10 ms in five seconds.
        assert_eq!(reading(1_000, 1_100), Some(0.1));
        assert_eq!(reading(1_000, 1_000), Some(0.0));
        // Never more than the disk's.
        assert_eq!(reading(1_000, 9_000), Some(0.4));
        assert_eq!(rates(&counted(1, 0), &counted(1, 100)).reading, Some(0.0));
    }

    #[test]
    fn what_came_back_from_swap_is_a_share_of_what_was_read() {
        let shares = |before: Option<(u64, u64)>, after: Option<(u64, u64)>| {
            let with = |swapped_in: Option<(u64, u64)>, io| {
                let refaults =
                    swapped_in.map(|(anon, anon_stalled)| Refaults { anon, anon_stalled, file: 0 });
                IoUse { refaults, ..io }
            };
            let (before, after) = (with(before, counted(0, 0)), with(after, counted(0, 100)));
            let rates = rates(&before, &after);
            rates.swapped_in.map(Ratio::get).zip(rates.swapped_in_unstalled.map(Ratio::get))
        };
        let pages = |all: u64, stalled: u64| Some((7 + all * 4096, 3 + stalled * 4096));
        assert_eq!(shares(pages(0, 0), pages(25, 0)), Some((0.5, 0.5)));
        assert_eq!(shares(pages(0, 0), pages(25, 15)), Some((0.5, 0.2)));
        assert_eq!(shares(pages(0, 0), pages(25, 26)), Some((0.5, 0.0)));
        assert_eq!(shares(pages(0, 0), pages(90, 0)), Some((1.0, 1.0)));
        assert_eq!(shares(None, pages(1, 0)), None);
        assert_eq!(shares(pages(1, 0), pages(0, 0)), None);
    }

    #[test]
    fn what_had_to_leave_the_page_cache_counts_by_the_memory_that_others_have() {
        let displaced = |pages: u64, pod_memory| {
            let with = |pages: u64, io| {
                let refaults = Refaults { anon: 0, anon_stalled: 0, file: 9 + pages * 4096 };
                IoUse { refaults: Some(refaults), pod_memory, ..io }
            };
            let rates = rates(&with(0, counted(0, 0)), &with(pages, counted(0, 100)));
            rates.displaced.map(Ratio::get)
        };
        assert_eq!(displaced(50, Some(250)), Some(0.75));
        assert_eq!(displaced(25, Some(250)), Some(0.375));
        // The kernel reads ahead, so refaults can exceed the reads.
        assert_eq!(displaced(90, Some(250)), Some(0.75));
        // There are no other pods. The memory of all pods was read slightly earlier, so it can be
        // the smaller one.
        assert_eq!(displaced(50, Some(1_000)), Some(0.0));
        assert_eq!(displaced(50, Some(1_100)), Some(0.0));
        assert_eq!(displaced(50, None), None);
    }
}
