//! Other rules of memory and I/O from the same records: the node's own pressure, and the busy time of its
//! disks. Pure.

use crate::counters::{MemoryIo, PodCounters, Pressures};
use crate::record::Record;
use crate::scenario::Resource;
use crate::waits::{judged, of_all};

/// `some` of the whole node.
pub fn node_some(record: &Record, resource: Resource) -> f64 {
    judged(record).map_or(0.0, |(before, after)| {
        some(&before.node.pressure, &after.node.pressure, resource) / (after.at - before.at)
    })
}

/// Without any pressure: the share of time in which a disk that it uses had something to do, times
/// the share that others have of that.
pub fn by_disks(record: &Record) -> f64 {
    of_all(record, Resource::Io, |name, pod| {
        if pod.io_max.is_some() {
            return None;
        }
        let (before, after) = judged(record)?;
        let node = (before.node.memory_io.as_ref()?, after.node.memory_io.as_ref()?);
        let own = (before.pods.get(name)?, after.pods.get(name)?);
        let own = (own.0.memory_io.as_ref()?, own.1.memory_io.as_ref()?);
        let seconds = after.at - before.at;
        Some(by_neighbours(record, node, own, |disk| {
            let busy = |counters: &MemoryIo| counters.busy_ms.get(disk).copied().unwrap_or(0);
            (more(busy(node.0), busy(node.1)) / 1000.0 / seconds).min(1.0)
        }))
    })
}

/// The share that others have of the operations on the disks that it uses, each disk counted as much
/// as it is used, times `weight` of the disk.
fn by_neighbours(
    record: &Record,
    node: (&MemoryIo, &MemoryIo),
    own: (&MemoryIo, &MemoryIo),
    weight: impl Fn(&str) -> f64,
) -> f64 {
    let (mut all, mut others) = (0.0, 0.0);
    for (disk, now) in &own.1.operations {
        let of = |counters: &MemoryIo| counters.operations.get(disk).copied().unwrap_or_default();
        let mine = more(of(own.0), *now);
        // The node's are counted after the kernel merged some, and what it writes back is no pod's.
        let node_wide = more(of(node.0), of(node.1)).max(of_pods(record, disk));
        all += mine;
        others += mine * (1.0 - mine / node_wide.max(1.0)) * weight(disk);
    }
    if all > 0.0 { others / all } else { 0.0 }
}

/// Operations of all pods on a disk.
fn of_pods(record: &Record, disk: &str) -> f64 {
    let operations = |pod: &PodCounters| {
        let all = pod.memory_io.as_ref().map(|counters| &counters.operations);
        all.and_then(|all| all.get(disk)).copied().unwrap_or_default()
    };
    judged(record).map_or(0.0, |(before, after)| {
        let pods = after.pods.iter();
        pods.map(|(name, now)| more(before.pods.get(name).map_or(0, operations), operations(now)))
            .sum()
    })
}

fn some(before: &Pressures, after: &Pressures, resource: Resource) -> f64 {
    let of = |pressures: &Pressures| match resource {
        Resource::Memory => pressures.memory.0,
        Resource::Io => pressures.io.0,
    };
    more(of(before), of(after)) / 1e6
}

#[allow(clippy::cast_precision_loss, reason = "counters of half a minute are far below 2^52")]
fn more(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64
}
