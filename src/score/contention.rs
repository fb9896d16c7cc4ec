//! One container: what it waited for, and whose fault that was. The estimators of `docs/score.md`.

use serde::Serialize;

use super::calibration::Spread;
use super::cpu_range::{CpuRange, cpus_of};
use crate::rates::{MemberRates, Ratio, Room};

/// Of a container that waits for less it is not asked who else uses its disks.
const IO_HARDLY: f64 = 0.01;

/// What a container waited for in one window, as shares of its time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waiting {
    /// The kernel's pressure, `some`.
    pub raw: Ratio,
    /// The part of it that its own limit or its pod's explains.
    pub own_limit: Ratio,
    /// What the node explains. With memory and I/O, what neither explains is in no part. With CPU it is
    /// the share of time in which each CPU that it wanted was waited for. It can be more than the raw
    /// pressure, which reads too little; with I/O too.
    pub left: Ratio,
    /// Share of what it wanted that it had to wait for because of the node.
    pub contention: Ratio,
    /// How much it counts: for CPU what it wanted, in CPUs; else 1.
    pub demand: f64,
}

/// CPU: what is left of its range, at the spread that the node's own total tells.
pub(super) fn cpu_waiting(
    member: &MemberRates,
    cpus: Option<u64>,
    spread: Spread,
) -> Option<Waiting> {
    let raw = member.cpu.waits.some?;
    let range = CpuRange::of(&member.cpu, cpus)?;
    let waited = spread.waited(&range);
    let demand = waited + range.usage;
    let contention = if waited > 0.0 { waited / demand } else { 0.0 };
    Some(Waiting {
        raw,
        own_limit: Ratio::of(range.own_limit, 1.0)?,
        left: Ratio::of(waited, demand.max(1.0))?,
        contention: Ratio::of(contention, 1.0)?,
        demand,
    })
}

/// Memory: it counts only while the node itself looks for memory, or kubepods does. Of a container
/// that met a limit of its own, as much as the node's background thread looked at of its pages. What it
/// waits for pages in swap counts, too, whether the kernel calls that a stall or not.
pub(super) fn memory_waiting(
    member: &MemberRates,
    node_reclaims: Option<bool>,
    cpus: Option<u64>,
) -> Option<Waiting> {
    let raw = member.pressure.memory.some?;
    let (swapping, unstalled) = swapping(member, cpus);
    if raw == Ratio::ZERO {
        return Some(evenly(raw, Ratio::ZERO, swapping));
    }
    let part = |share: f64| Ratio::of(raw.get() * share, 1.0);
    let (own_limit, left) = match (member.memory.own_limit?, node_reclaims?) {
        (true, true) => {
            let for_node = taken_by_node(member);
            (part(1.0 - for_node)?, part(for_node)?)
        }
        (true, false) => (raw, Ratio::ZERO),
        (false, true) => (Ratio::ZERO, raw),
        (false, false) => (Ratio::ZERO, Ratio::ZERO),
    };
    let with_unstalled = Ratio::of(left.get() + unstalled, 1.0)?;
    Some(evenly(raw, own_limit, if swapping > with_unstalled { swapping } else { with_unstalled }))
}

/// Of the pages that were taken from it, the share that the node's shortage took, and no limit.
fn taken_by_node(member: &MemberRates) -> f64 {
    match member.memory.own_limit {
        Some(false) => 1.0,
        Some(true) => member.memory.scanned_for_node.map_or(0.0, Ratio::get),
        None => 0.0,
    }
}

/// What it waited for pages of its own that the node had put into swap; and for those of them that the
/// kernel called no stall, which is in no pressure of memory.
fn swapping(member: &MemberRates, cpus: Option<u64>) -> (Ratio, f64) {
    let waited = waited_for_disks(member, cpus).unwrap_or(0.0);
    let for_pages = |share: Option<Ratio>| waited * share_taken_by_node(member, share);
    let all = Ratio::of(for_pages(member.io.swapped_in), 1.0).unwrap_or(Ratio::ZERO);
    (all, for_pages(member.io.swapped_in_unstalled))
}

/// Of what it had to read once more, a share of what it read, what the node had taken.
fn share_taken_by_node(member: &MemberRates, share: Option<Ratio>) -> f64 {
    share.map_or(0.0, Ratio::get) * taken_by_node(member)
}

/// I/O: as much of it as others have of the disks that it used, since a disk that a container has to
/// itself is as slow as it is; and whole what it would not have to read if the node had more memory, or
/// others less of it. Nothing is said of one with an `io.max`, whose waiting may be all its own.
pub(super) fn io_waiting(member: &MemberRates, cpus: Option<u64>) -> Option<Waiting> {
    let raw = member.pressure.io.some?;
    if member.io.has_max? {
        return None;
    }
    if raw.get() < IO_HARDLY {
        return Some(evenly(raw, Ratio::ZERO, raw));
    }
    let others = member.io.others?.get();
    let waited = waited_for_disks(member, cpus)?;
    let taken = |share| share_taken_by_node(member, share);
    let again = (taken(member.io.swapped_in) + taken(member.io.displaced)).min(1.0);
    let left = Ratio::of(waited * (again + (1.0 - again) * others), 1.0)?;
    Some(evenly(raw, Ratio::ZERO, left))
}

/// Pressure is an average over CPUs here, too: of one that sleeps on each in turn it tells a part. What
/// reads took tells the rest, if somebody waited for them.
fn waited_for_disks(member: &MemberRates, cpus: Option<u64>) -> Option<f64> {
    let raw = member.pressure.io.some?.get();
    let most = raw * cpus_of(&Room::default(), cpus);
    Some(member.io.reading.unwrap_or(0.0).min(most).clamp(raw, 1.0))
}

/// Waiting of a resource of which nobody can tell how much was wanted: all count alike.
fn evenly(raw: Ratio, own_limit: Ratio, left: Ratio) -> Waiting {
    Waiting { raw, own_limit, left, contention: left, demand: 1.0 }
}
