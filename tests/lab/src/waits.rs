//! What VMs really waited for memory and for disks because of the node. No pressure file is looked
//! at. Pure.
//!
//! The kernel's delay accounting says how long each thread slept for memory and in I/O; it counts
//! tasks one by one, where pressure counts states of CPUs. A VM's wait is that of its thread that
//! waited most, as a share of time: as many threads wait at once, more of them do not hold the VM
//! back more, and idle ones beside it do not make it less. `some` is at least that.
//!
//! Whose fault it is follows from a second run, of each load alone on the same node, with the same
//! limits: what a piece of work waits then is the load's own doing, or the disk's: its limit makes
//! it wait, or the disk is as slow as it is. **Truth is what the VM waited beyond that**: its wait,
//! less the work that it did times what one piece of it waits alone. So a VM that has a slow disk to
//! itself is held back by nobody, which is what moving it elsewhere would show. A load that does not
//! fit the node even alone would be taken for its own fault: there is no such scenario.
//!
//! I/O that the kernel does for want of memory counts as both, as it does in pressure. Of asking for
//! pages in swap that is the sleep: the rest is CPU time and waiting for that, which Linux 6.1 counts in,
//! in an emulated machine twice as much. Which I/O delay accounting calls asking for pages in swap
//! differs, too: of a load that has nothing but memory of its own, all of it is. What it sleeps in I/O
//! while it looks for memory is counted twice.
//!
//! Delay accounting is blind where a thread waits for native AIO, for it does not sleep in I/O then.
//! There the work that it lost stands in, which is the same number for a load that goes as fast as
//! the disk lets it. Of such a load truth is never more than the work that it lost: who writes to the
//! page cache waits now here, now there, and has done all its work. Delay accounting is blind to the
//! sleep of those beyond `memory.high` too, which is always an own limit.

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

/// The share of time that the node made its VMs wait: the upper quartile, all alike.
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

/// The same of sleeping alone: who waits for native AIO does not sleep in I/O.
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
    // One that did nothing even alone waits for itself.
    let own = if alone.work > 0.0 { of(alone.delays) / alone.work * work } else { wait };
    Some((wait - own) / (after.at - before.at))
}

/// The share of the work that its VMs do alone, and did not do here.
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

/// The share of time that its VMs waited in one way, whoever's fault it was: the upper quartile.
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
        // Linux 7.2 was seen to say of one that it had waited for longer than it was there.
        let now = now.map(|waited| if in_seconds(waited) > at { 0 } else { waited });
        of(now.by(then, u64::saturating_sub))
    });
    waits.fold(0.0, f64::max)
}

fn seconds(delays: &Delays, resource: Resource, pod: &Pod) -> f64 {
    in_seconds(match resource {
        // Asking for a page that had been taken is a part of waiting for it.
        Resource::Memory => delays.reclaiming() + delays.thrashing.max(swapping(delays, pod)),
        Resource::Io => delays.blkio,
    })
}

/// Sleep of asking for pages in swap.
fn swapping(delays: &Delays, pod: &Pod) -> u64 {
    let nothing_else = pod.load.memory.is_some_and(|memory| !memory.file);
    if nothing_else { delays.blkio } else { delays.swapin.min(delays.blkio) }
}

#[allow(clippy::cast_precision_loss, reason = "what is counted in seconds is far below 2^52")]
fn in_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
