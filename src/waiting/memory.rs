//! Memory wait of a container: the part of its pressure, and of its waiting for swap, that the node
//! explains. Pure.

use super::disks::{DiskUse, disk_wait, reclaimed_by_node};
use super::node::NodeReadings;
use super::readings::{MemoryInUse, Needs, Readings};
use super::series::Ratio;
use super::wait::{Unknown, Wait, WaitResult};

/// Memory in use is a weight, needed while any task of the node waits. Reclaim by limits matters
/// only if the container has waited since it was read.
pub(super) fn needs(readings: &Readings, node: &NodeReadings) -> Needs {
    let mut needs = Needs::empty();
    if node.pressure.memory.moved() {
        needs |= Needs::MEMORY_IN_USE;
    }
    if readings.pressure.memory.moved() {
        needs |= Needs::LIMIT_HITS;
        let memory = &readings.memory;
        if memory.own_limit() == Some(true) || memory.scanned.value().is_some() {
            needs |= Needs::SCANNED;
        }
    }
    needs
}

/// Pressure counts only while the node reclaims memory, or kubepods does at its limit. If the
/// container hit its own limit, only the share of its scanned pages that kswapd scanned counts.
/// Waiting for pages in swap also counts, even if the kernel does not count it as a stall.
pub(super) fn wait(readings: &Readings, node: &NodeReadings) -> WaitResult {
    // If the memory controller is off, all containers have the same weight.
    let weight = match readings.memory.in_use {
        #[allow(clippy::cast_precision_loss, reason = "2^52 bytes are far beyond any memory")]
        MemoryInUse::Bytes(bytes) => bytes as f64,
        MemoryInUse::NotRead => 1.0,
        MemoryInUse::Unreadable => return Err(Unknown::UNBOUNDED),
    };
    known_wait(readings, node, weight).ok_or(Unknown { most_demand: weight })
}

fn known_wait(readings: &Readings, node: &NodeReadings, weight: f64) -> Option<Wait> {
    let raw = readings.pressure.memory.shares().some?;
    let disk = DiskUse::of(readings, node);
    let io = readings.pressure.io.shares().some;
    let waited = io.map_or(0.0, |io| disk_wait(io, &disk, node.cpus()));
    let by_node = reclaimed_by_node(readings);
    let for_pages = |share: Option<f64>| waited * share.unwrap_or(0.0) * by_node;
    // Waiting for its own pages in swap, and the part of it that the kernel does not count as a
    // stall.
    let swapping = for_pages(disk.swapped_in);
    let unstalled = for_pages(disk.swapped_in_unstalled);
    let (mut own_limit, mut stalled) = (0.0, 0.0);
    if raw > Ratio::ZERO {
        stalled = if node.reclaims()? { raw.get() * by_node } else { 0.0 };
        own_limit = if readings.memory.own_limit()? { raw.get() - stalled } else { 0.0 };
    }
    let share = Ratio::of((stalled + unstalled).max(swapping), 1.0)?;
    Some(Wait::of_stall(raw, Ratio::of(own_limit, 1.0)?, share, weight))
}
