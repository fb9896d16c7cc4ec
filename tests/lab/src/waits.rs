//! Truth of memory and I/O: how long VMs waited because of the node. No pressure file is read. Pure.
//!
//! The kernel's delay accounting has, for each thread, how long it slept for memory and in I/O. A VM's wait is
//! that of its thread that waited longest, as a share of time: more waiting threads don't slow the VM down
//! more, and idle ones don't make it faster. `some` is at least that.
//!
//! The cause follows from a second run of each load alone on the same node, with the same limits. What it
//! waits there for a piece of work is due to its limit or to the disk. **Truth is what the VM waited beyond
//! that**: its wait, less the work that it did times the wait of one piece of it alone. So a VM with a slow
//! disk of its own has no contention: elsewhere it would wait as much. A load that does not fit the node even
//! alone would count as its own cause; there is no such scenario.
//!
//! I/O that the kernel does for lack of memory counts as both, as it does in pressure. Of reading pages from
//! swap only the sleep counts: the rest is CPU time and waiting for a CPU, which Linux 6.1 includes, and which
//! an emulated machine doubles. Kernels differ in which I/O counts as swap-in; for a load that touches only
//! memory of its own, all I/O is. Sleep in I/O during reclaim is counted twice.
//!
//! A thread that waits for native AIO does not sleep in I/O. There lost work takes the place of delay: for a
//! load that goes as fast as the disk, both are the same number. Truth of such a load is never more than the
//! lost work, since a writer to the page cache can wait here and there and still do all its work. Delay
//! accounting does not see the sleep above `memory.high` either, which is always an own limit.

use crate::rates::scored;
use crate::record::{Alone, PodCounters, Point, Record};
use crate::scenario::{How, Io, JUDGED_FROM, Pod};
use crate::taskstats::Delays;
use crate::truth::of_node;

/// A resource that threads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Memory,
    Io,
}

/// The upper quartile of the VMs' share of time that they waited because of the node, all with one weight.
pub fn by_delays(record: &Record, resource: Resource) -> f64 {
    of_all(record, |name, pod| {
        let alone = record.alone.get(&pod.name)?;
        let waited = beyond_own(record, name, alone, |delays| seconds(&delays, resource, pod))?;
        Some(match pod.load.io {
            Some(Io { how: How::NativeAio, .. }) if resource == Resource::Io => {
                lost(record, name, alone)?
            }
            Some(Io { per_second: None, .. }) => waited.min(lost(record, name, alone)?),
            Some(Io { per_second: Some(_), .. }) | None => waited,
        })
    })
}

/// The same of sleep alone, which leaves native AIO out.
pub fn by_sleep(record: &Record, resource: Resource) -> f64 {
    of_all(record, |name, pod| {
        let alone = record.alone.get(&pod.name)?;
        beyond_own(record, name, alone, |delays| seconds(&delays, resource, pod))
    })
}

/// The share of time that a VM waited, less what its work makes it wait alone.
fn beyond_own(
    record: &Record,
    name: &str,
    alone: &Alone,
    of: impl Fn(Delays) -> f64,
) -> Option<f64> {
    let (before, after) = judged(record)?;
    let wait = most(before.pods.get(name)?, after.pods.get(name)?, after.at, &of);
    let work = record.reports.get(name)?.work;
    // A load that did no work even alone waits because of itself.
    let own = if alone.work > 0.0 { of(alone.delays) / alone.work * work } else { wait };
    Some((wait - own) / (after.at - before.at))
}

/// The share of the work that VMs do alone and did not do here.
pub fn by_loads(record: &Record) -> f64 {
    of_all(record, |name, pod| lost(record, name, record.alone.get(&pod.name)?))
}

/// One number of a node's VMs, of those that have one.
pub fn of_all(record: &Record, of: impl Fn(&str, &Pod) -> Option<f64>) -> f64 {
    let all = scored(record).into_iter();
    let shares: Vec<_> =
        all.filter_map(|(name, pod)| Some((of(&name, pod)?.clamp(0.0, 1.0), 1.0))).collect();
    if shares.is_empty() { 0.0 } else { of_node(shares, 1) }
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

/// The upper quartile of the VMs' share of time in one kind of delay, whatever its cause.
pub fn of_kind(record: &Record, kind: fn(Delays) -> u64) -> f64 {
    of_all(record, |name, _| {
        let (before, after) = judged(record)?;
        let (then, now) = (before.pods.get(name)?, after.pods.get(name)?);
        let waited = most(then, now, after.at, |all| in_seconds(kind(all)));
        Some(waited / (after.at - before.at))
    })
}

/// Of its threads the one that waited most. `at` is when `after` was, and no thread is older, seconds.
fn most(before: &PodCounters, after: &PodCounters, at: f64, of: impl Fn(Delays) -> f64) -> f64 {
    let waits = after.delays.iter().map(|(thread, now)| {
        let then = before.delays.get(thread).copied().unwrap_or_default();
        // Linux 7.2 sometimes counts more delay than the thread's lifetime.
        let now = now.map(|waited| if in_seconds(waited) > at { 0 } else { waited });
        of(now.by(then, u64::saturating_sub))
    });
    waits.fold(0.0, f64::max)
}

fn seconds(delays: &Delays, resource: Resource, pod: &Pod) -> f64 {
    in_seconds(match resource {
        // Reading a page from swap is a part of thrashing.
        Resource::Memory => delays.reclaiming() + delays.thrashing.max(swapping(delays, pod)),
        Resource::Io => delays.blkio,
    })
}

/// Sleep while pages are read from swap.
fn swapping(delays: &Delays, pod: &Pod) -> u64 {
    let nothing_else = pod.load.memory.is_some_and(|memory| !memory.file);
    if nothing_else { delays.blkio } else { delays.swapin.min(delays.blkio) }
}

#[allow(clippy::cast_precision_loss, reason = "what is counted in seconds is far below 2^52")]
fn in_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
