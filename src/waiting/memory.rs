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
    let (swapping, unstalled) = io.map_or((0.0, 0.0), |io| for_swap(io, &disk, node.cpus()));
    let stalls = raw > Ratio::ZERO;
    let stalled = if stalls && node.reclaims()? { raw.get() } else { 0.0 };
    let reclaimed = (stalled + unstalled).max(swapping);
    let by_node = if reclaimed > 0.0 { reclaimed_by_node(readings)? } else { 1.0 };
    let own_limit = stalls && readings.memory.own_limit()?;
    let own_limit = if own_limit { raw.get() - stalled * by_node } else { 0.0 };
    let share = Ratio::of(reclaimed * by_node, 1.0)?;
    Some(Wait::of_stall(raw, Ratio::of(own_limit, 1.0)?, share, weight))
}

/// Shares of time that the container waited for its pages in swap, and the part of it that the kernel
/// does not count as a stall.
fn for_swap(io: Ratio, disk: &DiskUse, cpus: f64) -> (f64, f64) {
    let waited = disk_wait(io, disk, cpus);
    let for_pages = |share: Option<f64>| waited * share.unwrap_or(0.0);
    (for_pages(disk.swapped_in), for_pages(disk.swapped_in_unstalled))
}

#[cfg(test)]
mod tests {
    use super::super::readings::ScannedPages;
    use super::super::tests::{container, pressure, window};
    use super::*;
    use crate::kernel::node_text::Reclaim;

    /// A node that reclaims memory or not.
    fn node(reclaims: bool) -> NodeReadings {
        let scanned = |pages| Reclaim { pgscan_kswapd: Some(pages), pgscan_direct: Some(0) };
        let reclaim = window(scanned(0), scanned(u64::from(reclaims)));
        NodeReadings { reclaim, ..NodeReadings::default() }
    }

    /// A VM that waits for 0.3 of the time. Its own limit was hit or not, and kswapd scanned this share
    /// of its pages.
    fn vm(own_limit: bool, by_kswapd: Option<u64>) -> Readings {
        let mut vm = container(0.0, 1.0, 0.0, None);
        vm.pressure.memory = pressure(0.3);
        vm.memory.limit_hits = window(0, u64::from(own_limit));
        if let Some(percent) = by_kswapd {
            let pages = |by_kswapd, directly| ScannedPages { by_kswapd, directly };
            vm.memory.scanned = window(pages(7, 7), pages(7 + percent, 107 - percent));
        }
        vm
    }

    fn shares(vm: &Readings, reclaims: bool) -> Option<(f64, f64)> {
        let wait = wait(vm, &node(reclaims)).ok()?;
        let round = |share: Ratio| (share.get() * 1e6).round() / 1e6;
        Some((round(wait.node), round(wait.own_limit)))
    }

    #[test]
    fn pressure_counts_while_the_node_reclaims_less_the_part_of_own_limits() {
        assert_eq!(shares(&vm(false, None), false), Some((0.0, 0.0)));
        assert_eq!(shares(&vm(true, None), false), Some((0.0, 0.3)));
        assert_eq!(shares(&vm(true, Some(80)), false), Some((0.0, 0.3)));
        assert_eq!(shares(&vm(true, None), true), None, "either can be the cause");
        assert_eq!(shares(&vm(true, Some(80)), true), Some((0.24, 0.06)));
        assert_eq!(shares(&vm(false, Some(80)), true), Some((0.3, 0.0)));
    }

    #[test]
    fn refaults_from_swap_are_memory_wait() {
        let swap = |swapped_in, unstalled| {
            let disk = DiskUse {
                reading: Some(0.4),
                swapped_in: Some(swapped_in),
                swapped_in_unstalled: Some(unstalled),
                ..DiskUse::default()
            };
            for_swap(Ratio::of(0.2, 1.0).unwrap(), &disk, 4.0)
        };
        // As measured on Linux 6.1, which counts none of it as a stall.
        assert_eq!(swap(1.0, 1.0), (0.4, 0.4));
        // Newer kernels count a part of it as a stall, which is in the pressure already.
        assert_eq!(swap(0.5, 0.25), (0.2, 0.1));
    }

    #[test]
    fn what_could_not_be_read_is_unknown_and_bounded_by_its_memory() {
        let unknown = |change: fn(&mut Readings)| {
            let mut vm = vm(true, Some(80));
            vm.memory.in_use = MemoryInUse::Bytes(4096);
            change(&mut vm);
            wait(&vm, &node(true)).map(|_| ()).map_err(|unknown| unknown.most_demand)
        };
        assert_eq!(unknown(|_| ()), Ok(()));
        assert_eq!(unknown(|vm| vm.memory.limit_hits.clear()), Err(4096.0));
        assert_eq!(unknown(|vm| vm.pressure.memory.clear()), Err(4096.0));
        let unreadable: fn(&mut Readings) = |vm| vm.memory.in_use = MemoryInUse::Unreadable;
        assert_eq!(unknown(unreadable), Err(f64::INFINITY));
    }

    #[test]
    fn files_are_read_after_the_pressure_has_moved() {
        let (mut node, calm) = (node(false), container(0.0, 1.0, 0.0, None));
        node.pressure.memory = pressure(0.0);
        assert_eq!(needs(&calm, &node), Needs::empty());
        assert_eq!(needs(&vm(false, None), &node), Needs::LIMIT_HITS);
        assert_eq!(needs(&vm(true, None), &node), Needs::LIMIT_HITS | Needs::SCANNED);
        node.pressure.memory = pressure(0.1);
        assert_eq!(needs(&calm, &node), Needs::MEMORY_IN_USE);
    }
}
