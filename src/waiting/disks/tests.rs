//! Use of one disk, on which each read takes 10 ms.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::tests::{SECONDS, window};
use super::*;
use crate::kernel::counters::MemoryStat;
use crate::kernel::io_stat::Device;
use crate::waiting::disk_rates::{DiskRates, Operations};
use crate::waiting::readings::IoReadings;
use crate::waiting::series::Window;

/// Operations since the container was created, half of them reads of 4 KiB.
fn counted(minor: u32, operations: u64) -> Option<Vec<IoCounters>> {
    let reads = operations / 2;
    Some(vec![IoCounters {
        device: Device { major: 8, minor },
        reads,
        writes: operations - reads,
        read_bytes: 4096 * reads,
        written_bytes: 0,
    }])
}

fn node() -> NodeReadings {
    let operations = Operations { completed: 200.0 / SECONDS, requested: 200.0 / SECONDS };
    let reading = 2.0 / SECONDS;
    let disk = DiskRates { reads: operations, writes: operations, reading, ..DiskRates::default() };
    let disk_rates = Some(BTreeMap::from([(Device { major: 8, minor: 0 }, disk)]));
    NodeReadings { disk_rates, pods_memory: Some(1_000), ..NodeReadings::default() }
}

fn use_between(io: IoReadings) -> DiskUse {
    let readings = Readings { io, ..Readings::default() };
    DiskUse::of(&readings, &node())
}

fn operations(before: Option<Vec<IoCounters>>, last: Option<Vec<IoCounters>>) -> IoReadings {
    IoReadings { counters: window(before, last), ..IoReadings::default() }
}

fn rounded(share: Option<f64>) -> Option<f64> {
    share.map(|share| (share * 1e9).round() / 1e9)
}

#[test]
fn others_have_what_is_left_of_the_disks_that_it_used() {
    let others = |before, last| rounded(use_between(operations(before, last)).others);
    assert_eq!(others(counted(0, 1_000), counted(0, 1_100)), Some(0.75));
    assert_eq!(others(counted(0, 1_000), counted(0, 1_500)), Some(0.0));
    // Its storage is not on a disk of the node, or on one that the node does not count.
    assert_eq!(others(counted(0, 1_000), counted(0, 1_000)), Some(0.0));
    assert_eq!(others(counted(1, 1_000), counted(1, 1_000)), Some(0.0));
    assert_eq!(others(counted(1, 1_000), counted(1, 1_100)), None);
    // A disk that it did not use before.
    assert_eq!(others(Some(vec![]), counted(0, 100)), Some(0.75));
    // Without an io controller, all operations count as those of other workloads. Operations that
    // were not read are unknown.
    assert_eq!(others(None, None), Some(1.0));
    let mut failed = operations(counted(0, 0), counted(0, 100));
    failed.counters.push(None);
    assert_eq!(use_between(failed).others, None);
}

#[test]
fn what_is_merged_is_one_operation_of_a_disk() {
    // As measured with a reader, and a writer to the page cache, that each use half of the disk's
    // time.
    let disk = DiskRates {
        reads: Operations { completed: 98.0, requested: 98.0 },
        writes: Operations { completed: 102.0, requested: 1_625.0 },
        reading: 0.18,
        ..DiskRates::default()
    };
    let device = Device { major: 8, minor: 0 };
    let disk_rates = Some(BTreeMap::from([(device, disk)]));
    let node = NodeReadings { disk_rates, ..NodeReadings::default() };
    // In five seconds.
    let of = |reads, writes| {
        let own = IoCounters { device, reads, writes, read_bytes: 0, written_bytes: 0 };
        let io = operations(Some(vec![]), Some(vec![own]));
        let others = DiskUse::of(&Readings { io, ..Readings::default() }, &node).others;
        others.map(|share| (share * 1e3).round() / 1e3)
    };
    assert_eq!((of(5 * 98, 0), of(0, 5 * 1_625)), (Some(0.51), Some(0.49)));
}

#[test]
fn a_disk_on_top_of_another_is_counted_once() {
    // Two VMs, each with a logical volume on the same disk, of which each makes half of the reads.
    let rates = |completed, reading, is_on_top| {
        let reads = Operations { completed, requested: completed };
        DiskRates { reads, reading, is_on_top, ..DiskRates::default() }
    };
    let [disk, volume] = [(8, 0), (253, 6)].map(|(major, minor)| Device { major, minor });
    let disks = [(disk, rates(200.0, 8.0, false)), (volume, rates(100.0, 4.0, true))];
    let node = NodeReadings { disk_rates: Some(disks.into()), ..NodeReadings::default() };
    let used = |devices: &[Device]| {
        let row = |device: &Device| IoCounters {
            device: *device,
            reads: 500,
            writes: 0,
            read_bytes: 4096,
            written_bytes: 0,
        };
        let rows = devices.iter().map(row).collect();
        let io = operations(Some(vec![]), Some(rows));
        let used = DiskUse::of(&Readings { io, ..Readings::default() }, &node);
        (rounded(used.others), rounded(used.reading))
    };
    assert_eq!(used(&[disk, volume]), (Some(0.5), Some(4.0)));
    // One whose disks show nothing.
    assert_eq!(used(&[volume]), (Some(0.0), Some(4.0)));
}

#[test]
fn its_reads_take_as_long_as_the_disks_do() {
    let reading = |before, last| rounded(use_between(operations(before, last)).reading);
    // Fifty of 10 ms in five seconds.
    assert_eq!(reading(counted(0, 1_000), counted(0, 1_100)), Some(0.1));
    assert_eq!(reading(counted(0, 1_000), counted(0, 1_000)), Some(0.0));
    // Never more than the disk's.
    assert_eq!(reading(counted(0, 1_000), counted(0, 9_000)), Some(0.4));
    assert_eq!(reading(counted(1, 0), counted(1, 100)), Some(0.0));
}

#[test]
fn what_came_back_from_swap_is_a_share_of_what_was_read() {
    let share = |window| {
        let mut readings =
            Readings { io: operations(counted(0, 0), counted(0, 100)), ..Readings::default() };
        readings.memory.stat = window;
        rounded(DiskUse::of(&readings, &node()).swapped_in)
    };
    let pages = |pages, zswapped| {
        let (workingset_refault_anon, zswpin) = (Some(pages), zswapped);
        Arc::new(MemoryStat { workingset_refault_anon, zswpin, ..MemoryStat::default() })
    };
    assert_eq!(share(window(pages(7, None), pages(32, None))), Some(0.5));
    assert_eq!(share(window(pages(7, None), pages(97, None))), Some(1.0));
    assert_eq!(share(window(pages(7, None), pages(6, None))), None);
    // All but 25 were still in memory.
    assert_eq!(share(window(pages(7, Some(0)), pages(97, Some(65)))), Some(0.5));
    assert_eq!(share(Window::default()), None);
}

#[test]
fn what_had_to_leave_the_page_cache_counts_by_the_memory_that_others_have() {
    let displaced = |pages: u64, pod_memory| {
        let stat = |pages| {
            Arc::new(MemoryStat { workingset_refault_file: Some(pages), ..MemoryStat::default() })
        };
        let io = operations(counted(0, 0), counted(0, 100));
        let mut readings = Readings { io: IoReadings { pod_memory, ..io }, ..Readings::default() };
        readings.memory.stat = window(stat(7), stat(7 + pages));
        rounded(DiskUse::of(&readings, &node()).displaced)
    };
    assert_eq!(displaced(50, Some(250)), Some(0.75));
    assert_eq!(displaced(25, Some(250)), Some(0.375));
    // The kernel reads ahead, so refaults can exceed the reads.
    assert_eq!(displaced(90, Some(250)), Some(0.75));
    // There are no other pods. The memory of all pods was read slightly earlier, so it can be the
    // smaller one.
    assert_eq!(displaced(50, Some(1_000)), Some(0.0));
    assert_eq!(displaced(50, Some(1_100)), Some(0.0));
    assert_eq!(displaced(50, None), None);
}
