//! One container: what it waited for, and whose fault that was. The estimators of `docs/score.md`.

use serde::Serialize;

use super::calibration::Spread;
use super::cpu_range::CpuRange;
use crate::rates::{MemberRates, Ratio};

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
    /// the share of time in which each CPU that it wanted was waited for, which can be more than
    /// the raw pressure: that reads too little.
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
/// that met a limit of its own, as much as the node's background thread looked at of its pages.
pub(super) fn memory_waiting(member: &MemberRates, node_reclaims: Option<bool>) -> Option<Waiting> {
    let raw = member.pressure.memory.some?;
    if raw == Ratio::ZERO {
        return Some(evenly(raw, Ratio::ZERO, Ratio::ZERO));
    }
    Some(match (member.memory.own_limit?, node_reclaims?) {
        (true, true) => {
            let for_node = member.memory.scanned_for_node.unwrap_or(Ratio::ZERO).get();
            let part = |share: f64| Ratio::of(raw.get() * share, 1.0);
            evenly(raw, part(1.0 - for_node)?, part(for_node)?)
        }
        (true, false) => evenly(raw, raw, Ratio::ZERO),
        (false, true) => evenly(raw, Ratio::ZERO, raw),
        (false, false) => evenly(raw, Ratio::ZERO, Ratio::ZERO),
    })
}

/// I/O: as much of it as others have of the disks that it used, since a disk that a container has to
/// itself is as slow as it is. Nothing is said of one with an `io.max`, whose waiting may be all its
/// own.
pub(super) fn io_waiting(member: &MemberRates) -> Option<Waiting> {
    let raw = member.pressure.io.some?;
    if member.io.has_max? {
        return None;
    }
    if raw.get() < IO_HARDLY {
        return Some(evenly(raw, Ratio::ZERO, raw));
    }
    let left = Ratio::of(raw.get() * member.io.others?.get(), 1.0)?;
    Some(evenly(raw, Ratio::ZERO, left))
}

/// Waiting of a resource of which nobody can tell how much was wanted: all count alike.
fn evenly(raw: Ratio, own_limit: Ratio, left: Ratio) -> Waiting {
    Waiting { raw, own_limit, left, contention: left, demand: 1.0 }
}
