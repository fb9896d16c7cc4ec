//! Memory and I/O wait of a container: the part of its pressure that the node explains. Pure.

use super::wait::Wait;
use crate::rates::{ContainerRates, Ratio};

/// Who else uses the disks of a container is read only where it waits for more.
const NEGLIGIBLE_IO: f64 = 0.01;

/// Memory pressure counts only while the node itself reclaims, or kubepods does at its limit. Of a
/// container that hit a limit of its own, the part counts that kswapd scanned of its pages. Waiting
/// for pages in swap counts too, whether the kernel calls it a stall or not.
pub(super) fn memory_wait(
    container: &ContainerRates,
    node_reclaims: Option<bool>,
    cpus: Option<u64>,
) -> Option<Wait> {
    let raw = container.pressure.memory.some?;
    // Where the memory controller is off, all containers count alike.
    let weight = container.memory.current.unwrap_or(1.0);
    let (swapping, unstalled) = swap_wait(container, cpus);
    if raw == Ratio::ZERO {
        return Some(Wait::of_stall(raw, Ratio::ZERO, swapping, weight));
    }
    let part = |share: f64| Ratio::of(raw.get() * share, 1.0);
    let (own_limit, node) = match (container.memory.own_limit?, node_reclaims?) {
        (true, true) => {
            let for_node = reclaimed_by_node(container);
            (part(1.0 - for_node)?, part(for_node)?)
        }
        (true, false) => (raw, Ratio::ZERO),
        (false, true) => (Ratio::ZERO, raw),
        (false, false) => (Ratio::ZERO, Ratio::ZERO),
    };
    let with_unstalled = Ratio::of(node.get() + unstalled, 1.0)?;
    let node = if swapping > with_unstalled { swapping } else { with_unstalled };
    Some(Wait::of_stall(raw, own_limit, node, weight))
}

/// Of the container's reclaimed pages, the share that the node's shortage took, and no limit.
fn reclaimed_by_node(container: &ContainerRates) -> f64 {
    match container.memory.own_limit {
        Some(false) => 1.0,
        Some(true) => container.memory.scanned_for_node.map_or(0.0, Ratio::get),
        None => 0.0,
    }
}

/// Waiting for the container's own pages in swap; and the part of it that the kernel calls no stall,
/// which is in no memory pressure.
fn swap_wait(container: &ContainerRates, cpus: Option<u64>) -> (Ratio, f64) {
    let waited = disk_wait(container, cpus).unwrap_or(0.0);
    let for_pages = |share: Option<Ratio>| waited * reclaimed_share(container, share);
    let all = Ratio::of(for_pages(container.io.swapped_in), 1.0).unwrap_or(Ratio::ZERO);
    (all, for_pages(container.io.swapped_in_unstalled))
}

/// Of refaults, a share of what the container read, the share of pages that the node had taken.
fn reclaimed_share(container: &ContainerRates, share: Option<Ratio>) -> f64 {
    share.map_or(0.0, Ratio::get) * reclaimed_by_node(container)
}

/// I/O wait counts by the share that others have of the disks that the container uses, since a disk
/// that it has to itself is as slow as it is; refaults count whole, since with more memory there
/// would be none. `None` with an `io.max`, which may explain all of it.
pub(super) fn io_wait(container: &ContainerRates, cpus: Option<u64>) -> Option<Wait> {
    let raw = container.pressure.io.some?;
    if container.io.has_max? {
        return None;
    }
    let wait = |node| Wait::of_stall(raw, Ratio::ZERO, node, 1.0);
    if raw.get() < NEGLIGIBLE_IO {
        return Some(wait(raw));
    }
    let others = container.io.others?.get();
    let waited = disk_wait(container, cpus)?;
    let share = |share| reclaimed_share(container, share);
    let again = (share(container.io.swapped_in) + share(container.io.displaced)).min(1.0);
    Some(wait(Ratio::of(waited * (again + (1.0 - again) * others), 1.0)?))
}

/// I/O pressure is an average over CPUs: of a thread that sleeps on each in turn it shows a part. The
/// time that reads took shows the rest, if a thread waited for each.
#[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of CPUs")]
fn disk_wait(container: &ContainerRates, cpus: Option<u64>) -> Option<f64> {
    let raw = container.pressure.io.some?.get();
    let most = raw * cpus.unwrap_or(1).max(1) as f64;
    Some(container.io.reading.unwrap_or(0.0).min(most).clamp(raw, 1.0))
}
