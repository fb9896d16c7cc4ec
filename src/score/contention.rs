//! One container: what it waited for, and whose fault that was. The estimators of `docs/score.md`.

use serde::Serialize;

use crate::rates::{MemberRates, Ratio};

/// Less than this share of its time is not worth a `cpu.stat`, which the reader then leaves out.
const NEGLIGIBLE: f64 = 0.001;

/// What a container waited for in one window, as shares of its time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waiting {
    /// The kernel's pressure: for CPU `full`, else `some`.
    pub raw: Ratio,
    /// The part that its own limit or its pod's explains.
    pub own_limit: Ratio,
    /// The part that the node explains. With memory, what neither explains is in no part.
    pub left: Ratio,
    /// Share of what it wanted that it had to wait for because of the node.
    pub contention: Ratio,
    /// How much it counts: for CPU what it wanted, in CPUs; else 1.
    pub demand: f64,
}

/// CPU. `full` is an average over the CPUs on which the container wanted to run, so each of them
/// ran it for at most the rest of the time, and all of them together for `usage`.
pub(super) fn cpu_waiting(member: &MemberRates) -> Option<Waiting> {
    let raw = member.pressure.cpu.full?;
    if raw.get() < NEGLIGIBLE {
        let (none, demand) = (Ratio::ZERO, member.cpu.usage.unwrap_or(0.0));
        return Some(Waiting { raw, own_limit: none, left: none, contention: none, demand });
    }
    let (usage, throttled) = (member.cpu.usage?, member.cpu.throttled?);
    // Throttled time is summed over CPUs: over those on which it ran or would have run, and one at
    // the least, it is a share of time as `full` is.
    let own_limit = (throttled / (usage + throttled).max(1.0)).min(raw.get());
    let left = raw.get() - own_limit;
    let ran = usage.min(1.0 - left);
    let contention = if left > 0.0 { left / (left + ran) } else { 0.0 };
    // What one CPU's worth of running had to wait for, all of them had.
    let demand = if ran > 0.0 { usage * (left + ran) / ran } else { left };
    Some(Waiting {
        raw,
        own_limit: Ratio::of(own_limit, 1.0)?,
        left: Ratio::of(left, 1.0)?,
        contention: Ratio::of(contention, 1.0)?,
        demand,
    })
}

/// Memory: it counts only while the node itself looks for memory, and no limit of the container's
/// own made it wait.
pub(super) fn memory_waiting(member: &MemberRates, node_reclaims: Option<bool>) -> Option<Waiting> {
    let raw = member.pressure.memory.some?;
    if raw == Ratio::ZERO {
        return Some(evenly(raw, Ratio::ZERO, Ratio::ZERO));
    }
    Some(match (member.own_memory_limit?, node_reclaims?) {
        (true, _) => evenly(raw, raw, Ratio::ZERO),
        (false, true) => evenly(raw, Ratio::ZERO, raw),
        (false, false) => evenly(raw, Ratio::ZERO, Ratio::ZERO),
    })
}

/// I/O: nothing is said of a container with an `io.max`, since its waiting may be all its own.
pub(super) fn io_waiting(member: &MemberRates) -> Option<Waiting> {
    let raw = member.pressure.io.some?;
    (!member.has_io_max?).then(|| evenly(raw, Ratio::ZERO, raw))
}

/// Waiting of a resource of which nobody can tell how much was wanted: all count alike.
fn evenly(raw: Ratio, own_limit: Ratio, left: Ratio) -> Waiting {
    Waiting { raw, own_limit, left, contention: left, demand: 1.0 }
}
