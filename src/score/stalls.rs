//! Memory and I/O wait of a container: the part of its pressure that the node explains. Pure.

use super::wait::{NEGLIGIBLE, Wait};
use crate::rates::{ContainerRates, Ratio, TickRates};

/// Memory pressure counts only while the node reclaims memory, or kubepods does at its limit. If
/// the container hit its own limit, only the share of its scanned pages that kswapd scanned counts.
/// Waiting for pages in swap also counts, even if the kernel does not count it as a stall.
pub(super) fn memory_wait(container: &ContainerRates, rates: &TickRates) -> Option<Wait> {
    let raw = container.pressure.memory.some?;
    let waited = disk_wait(container, rates.cpus).unwrap_or(0.0);
    let for_pages = |share| waited * reclaimed_share(container, share);
    // Waiting for its own pages in swap, and the part of it that the kernel does not count as a
    // stall.
    let swapping = for_pages(container.io.swapped_in);
    let unstalled = for_pages(container.io.swapped_in_unstalled);
    let (mut own_limit, mut node) = (0.0, 0.0);
    if raw > Ratio::ZERO {
        node = if rates.reclaims? { raw.get() * reclaimed_by_node(container) } else { 0.0 };
        own_limit = if container.memory.own_limit? { raw.get() - node } else { 0.0 };
    }
    let node = Ratio::of((node + unstalled).max(swapping), 1.0)?;
    // If the memory controller is off, all containers have the same weight.
    let weight = container.memory.current.unwrap_or(1.0);
    Some(Wait::of_stall(raw, Ratio::of(own_limit, 1.0)?, node, weight))
}

/// Share of the container's reclaimed pages that were reclaimed because of the node and not of a
/// limit.
fn reclaimed_by_node(container: &ContainerRates) -> f64 {
    match container.memory.own_limit {
        Some(false) => 1.0,
        Some(true) => container.memory.scanned_for_node.map_or(0.0, Ratio::get),
        None => 0.0,
    }
}

/// `share` is the share of refaults in the container's reads. Returns the part of it that is due to
/// reclaim because of the node.
fn reclaimed_share(container: &ContainerRates, share: Option<Ratio>) -> f64 {
    share.map_or(0.0, Ratio::get) * reclaimed_by_node(container)
}

/// I/O wait is multiplied by the share of other workloads in the operations of the container's
/// disks: on a disk that no other workload uses, there is no contention. Refaults count in full,
/// since with more memory there would be none. `None` with an `io.max`, which may explain all of
/// the wait.
pub(super) fn io_wait(container: &ContainerRates, cpus: Option<u64>) -> Option<Wait> {
    let raw = container.pressure.io.some?;
    if container.io.has_max? {
        return None;
    }
    let wait = |node| Wait::of_stall(raw, Ratio::ZERO, node, 1.0);
    if raw.get() < NEGLIGIBLE {
        return Some(wait(raw));
    }
    let others = container.io.others?.get();
    let waited = disk_wait(container, cpus)?;
    let share = |share| reclaimed_share(container, share);
    let again = (share(container.io.swapped_in) + share(container.io.displaced)).min(1.0);
    Some(wait(Ratio::of(waited * (again + (1.0 - again) * others), 1.0)?))
}

/// Share of time that the container waited for disks. I/O pressure is an average over CPUs, so it
/// shows only a part of the wait of a thread that sleeps on several CPUs in turn. The time that
/// reads took shows the rest, if a thread waited for each read.
#[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of CPUs")]
fn disk_wait(container: &ContainerRates, cpus: Option<u64>) -> Option<f64> {
    let raw = container.pressure.io.some?.get();
    let most = raw * cpus.unwrap_or(1).max(1) as f64;
    Some(container.io.reading.unwrap_or(0.0).min(most).clamp(raw, 1.0))
}
