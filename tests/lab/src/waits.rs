//! Truth of memory and I/O: how long VMs waited because of the node. No pressure file is read. Pure.
//!
//! The kernel's delay accounting has, for each thread, how long it slept for memory and in I/O. A VM's wait is
//! that of all its threads, as a share of what they ran and waited, as for CPU.
//!
//! The cause follows from a second run of each load alone on the same node, with the same limits. What it
//! waits there for a piece of work is due to its limit or to the disk. **Truth is what the VM waited beyond
//! that**: its wait, less the work that it did times the wait of one piece of it alone. So a VM with a slow
//! disk of its own has no contention: elsewhere it would wait as much. A load that does not fit the node even
//! alone would count as its own cause; there is no such scenario.
//!
//! I/O that the kernel does for lack of memory counts as both, as it does in pressure. The kernel's
//! `thrashing` is the wait for pages that had been in use. Of page faults for others only the sleep counts:
//! the rest is CPU time and waiting for a CPU, which Linux 6.1 includes, and which an emulated machine
//! doubles. Kernels differ in which I/O counts as swap-in; for a load that touches only memory of its own, all
//! I/O is. Sleep in I/O during reclaim is counted twice.
//!
//! A thread that waits for native AIO does not sleep in I/O. There lost work takes the place of delay: for a
//! load that goes as fast as the disk, both are the same number. Truth of such a load is never more than the
//! lost work, since a writer to the page cache can wait here and there and still do all its work. Delay
//! accounting does not see the sleep above `memory.high` either, which is always an own limit.

use crate::counters::{PodCounters, Point};
use crate::rates::scored;
use crate::record::{Alone, Record};
use crate::scenario::{How, Io, JUDGED_FROM, Pod, Resource};
use crate::taskstats::Delays;
use crate::truth::of_node;

/// The VMs' waiting because of the node.
pub fn by_delays(record: &Record, resource: Resource) -> f64 {
    of_all(record, resource, |name, pod| {
        let alone = record.alone.get(&pod.name)?;
        let waited = share_of_demand(record, resource, name, pod)?;
        Some(match pod.load.io {
            _ if resource == Resource::Memory => waited,
            Some(Io { how: How::NativeAio, .. }) => lost(record, name, alone)?,
            Some(Io { per_second: None, .. }) => waited.min(lost(record, name, alone)?),
            Some(Io { per_second: Some(_), .. }) | None => waited,
        })
    })
}

/// The share of what a VM's threads ran and waited in which they waited, less what their work makes them
/// wait alone. As in the score, a VM wants a quarter of a CPU at least or, for I/O, a CPU, and its waiting
/// for memory that the node does not cause is no demand.
fn share_of_demand(record: &Record, resource: Resource, name: &str, pod: &Pod) -> Option<f64> {
    let (alone, unstalled) = (record.alone.get(&pod.name)?, unstalled(record, name)?);
    let of = |delays: &Delays| seconds(delays, resource, pod, unstalled);
    let (before, after) = judged(record)?;
    let (then, now) = (before.pods.get(name)?, after.pods.get(name)?);
    let ran = |thread: &u32| {
        let before = then.threads.get(thread).map_or(0, |then| then.0);
        in_seconds(now.threads.get(thread).map_or(0, |now| now.0).saturating_sub(before))
    };
    let ran_all: f64 = now.threads.keys().map(ran).sum();
    let (mut known, mut ran_known) = (0.0, 0.0);
    for (thread, delays) in delays(then, now, after.at) {
        (known, ran_known) = (known + of(&delays), ran_known + ran(&thread));
    }
    // Threads whose delay is not known wait as long as the others for the same work.
    let all = if ran_known > 0.0 { known * ran_all / ran_known } else { known };
    let work = record.reports.get(name)?.work * f64::from(pod.load.threads);
    // A load that did no work even alone waits because of itself.
    let own = if alone.work > 0.0 { of(&alone.delays) / alone.work * work } else { all };
    let waited = (all - own).max(0.0);
    let (wanted, least) = match resource {
        Resource::Memory => (waited, 0.25),
        Resource::Io => (all, 1.0),
    };
    Some(waited / (ran_all + wanted).max(least * (after.at - before.at)))
}

/// The share of the work that VMs do alone and did not do here.
pub fn by_loads(record: &Record) -> f64 {
    of_all(record, Resource::Io, |name, pod| lost(record, name, record.alone.get(&pod.name)?))
}

/// The half of a node's VMs that waits most, of those that have a number. Of memory, a VM has the weight of the
/// memory that it needs; of I/O, all have the same.
pub fn of_all(record: &Record, resource: Resource, of: impl Fn(&str, &Pod) -> Option<f64>) -> f64 {
    let weight = |pod: &Pod| match resource {
        Resource::Memory => f64::from(needed_mib(pod)).max(1.0),
        Resource::Io => 1.0,
    };
    let all = scored(record).into_iter();
    let shares = all.filter_map(|(name, pod)| Some((of(&name, pod)?.clamp(0.0, 1.0), weight(pod))));
    let shares: Vec<_> = shares.collect();
    if shares.is_empty() { 0.0 } else { of_node(shares) }
}

/// The memory of a pod's working sets, as far as its own limits allow it, MiB.
fn needed_mib(pod: &Pod) -> u32 {
    let wanted = pod.load.memory.map_or(0, |memory| memory.mib * pod.load.threads);
    let limits = [pod.container_memory, pod.pod_memory].into_iter().flatten();
    limits.flat_map(|limit| [limit.max, limit.high]).flatten().fold(wanted, u32::min)
}

/// The first and last point of the judged time.
pub fn judged(record: &Record) -> Option<(&Point, &Point)> {
    let first = record.points.iter().find(|point| point.at > JUDGED_FROM - 0.5)?;
    Some((first, record.points.last()?))
}

fn lost(record: &Record, name: &str, alone: &Alone) -> Option<f64> {
    let wanted = alone.work / alone.seconds * (record.scenario.seconds - JUDGED_FROM);
    (wanted > 0.0).then_some(1.0 - record.reports.get(name)?.work / wanted)
}

/// The VMs' share of time in one kind of delay, whatever its cause.
pub fn of_kind(record: &Record, kind: fn(Delays) -> u64) -> f64 {
    of_all(record, Resource::Memory, |name, _| {
        let (before, after) = judged(record)?;
        let (then, now) = (before.pods.get(name)?, after.pods.get(name)?);
        let waited = most(then, now, after.at, |all| in_seconds(kind(all)));
        Some(waited / (after.at - before.at))
    })
}

/// Of its threads the one that waited most. `at` is when `after` was, seconds.
fn most(before: &PodCounters, after: &PodCounters, at: f64, of: impl Fn(Delays) -> f64) -> f64 {
    delays(before, after, at).map(|(_, delays)| of(delays)).fold(0.0, f64::max)
}

/// How long each thread waited. `at` is when `after` was, and no thread is older, seconds. Linux 7.2 sometimes
/// counts more delay than the thread's lifetime: such a thread is left out.
fn delays(
    before: &PodCounters,
    after: &PodCounters,
    at: f64,
) -> impl Iterator<Item = (u32, Delays)> {
    after.delays.iter().filter_map(move |(thread, now)| {
        let then = before.delays.get(thread).copied().unwrap_or_default();
        let delays = now.by(then, u64::saturating_sub);
        let counted = [now.freepages, now.compact, now.thrashing, now.swapin, now.blkio];
        let is_known = counted.into_iter().all(|waited| in_seconds(waited) <= at);
        is_known.then_some((*thread, delays))
    })
}

/// `unstalled` is the share of a VM's page faults whose wait is not a part of `thrashing`.
fn seconds(delays: &Delays, resource: Resource, pod: &Pod, unstalled: f64) -> f64 {
    match resource {
        Resource::Memory => {
            let (thrashing, swapping) = (in_seconds(delays.thrashing), swapping(delays, pod));
            in_seconds(delays.reclaiming()) + (thrashing + unstalled * swapping).max(swapping)
        }
        Resource::Io => in_seconds(delays.blkio),
    }
}

/// The share of a container's page faults that brought no page which had been in use.
#[allow(clippy::cast_precision_loss, reason = "page faults of half a minute are far below 2^52")]
fn unstalled(record: &Record, name: &str) -> Option<f64> {
    let (before, after) = judged(record)?;
    let (before, after) = (before.pods.get(name)?, after.pods.get(name)?);
    let (before, after) = (before.memory_io.as_ref()?, after.memory_io.as_ref()?);
    let faults = after.major_faults.saturating_sub(before.major_faults);
    let restored = after.restored.saturating_sub(before.restored);
    Some(1.0 - (restored as f64 / faults.max(1) as f64).min(1.0))
}

/// Sleep while pages are read from swap, seconds.
fn swapping(delays: &Delays, pod: &Pod) -> f64 {
    let nothing_else = pod.load.memory.is_some_and(|memory| !memory.file);
    in_seconds(if nothing_else { delays.blkio } else { delays.swapin.min(delays.blkio) })
}

#[allow(clippy::cast_precision_loss, reason = "what is counted in seconds is far below 2^52")]
fn in_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
