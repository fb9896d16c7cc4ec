//! I/O wait of a container: the part of its pressure that other workloads on its disks explain, or
//! reclaim by the node. Pure.

use std::time::Instant;

use super::disks::{DiskUse, disk_wait, reclaimed_by_node};
use super::node::NodeReadings;
use super::readings::{Needs, Readings};
use super::series::Ratio;
use super::wait::{NEGLIGIBLE, Unknown, Wait, WaitResult};

/// Whether its tasks wait.
pub(super) fn waits(readings: &Readings) -> bool {
    readings.pressure.io.some().is_some_and(|some| some >= NEGLIGIBLE)
}

/// `io.stat` costs many times as much as pressure, so it is read only while the container waits, and
/// refaults only while the node has reclaimed memory lately.
pub(super) fn needs(readings: &Readings, node: &NodeReadings, now: Instant) -> Needs {
    let mut needs = Needs::empty();
    if readings.io.limited.is_none() || readings.pressure.io.moved() {
        needs |= Needs::IO_MAX;
    }
    if waits(readings) || readings.waited_for_io_lately(now) {
        needs |= Needs::IO_COUNTERS;
        if node.reclaimed_lately(now) {
            needs |= Needs::REFAULTS;
        }
    }
    needs
}

/// The wait is multiplied by the share of other workloads in the operations of the container's
/// disks: on a disk that no other workload uses, there is no contention. Refaults count in full,
/// since with more memory there would be none. A container with an `io.max`, which may explain all of
/// the wait, has no weight.
pub(super) fn wait(readings: &Readings, node: &NodeReadings) -> WaitResult {
    known_wait(readings, node).ok_or(Unknown { most_demand: 1.0 })
}

fn known_wait(readings: &Readings, node: &NodeReadings) -> Option<Wait> {
    let raw = readings.pressure.io.shares().some?;
    if readings.io.limited? {
        return Some(Wait::of_stall(raw, raw, Ratio::ZERO, 0.0));
    }
    let wait = |share| Wait::of_stall(raw, Ratio::ZERO, share, 1.0);
    if raw.get() < NEGLIGIBLE {
        return Some(wait(raw));
    }
    let disk = DiskUse::of(readings, node);
    let (others, by_node) = (disk.others?, reclaimed_by_node(readings));
    let again = disk.swapped_in.unwrap_or(0.0) + disk.displaced.unwrap_or(0.0);
    let again = (again * by_node).min(1.0);
    let waited = disk_wait(raw, &disk, node.cpus());
    Some(wait(Ratio::of(waited * (again + (1.0 - again) * others), 1.0)?))
}
