//! What a container and its threads did with CPUs. Pure.

use std::collections::HashMap;
use std::time::Duration;

use super::{WaitShares, increase, per_second};
use crate::kernel::limits::CpuMax;
use crate::kernel::task_text::TaskTimes;
use crate::sample::{CpuCounters, CpuRoom, CpuUse, ThreadTimes};

/// What a container did with CPUs between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuRates {
    /// Shares of the window in which its tasks waited.
    pub waits: WaitShares,
    /// CPUs used on average.
    pub usage: Option<f64>,
    /// CPUs that it could not use on average because of a quota of its own or of its pod,
    /// whichever level tells more.
    pub throttled: Option<f64>,
    /// What it may use, at the later sample.
    pub room: Option<Room>,
}

/// What a container may use of the node's CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Room {
    /// CPUs that the tighter of its own and its pod's quota allows; `None` without any.
    pub quota: Option<f64>,
    /// On how many CPUs it may run; `None` where only the node's number bounds it.
    pub cpus: Option<f64>,
    /// Tasks in it; `None` where nobody counts.
    pub tasks: Option<f64>,
}

/// What threads did between two samples, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadRates {
    /// CPUs that they ran on, on average.
    pub ran: f64,
    /// CPUs that they waited for: for each thread that waits all the time, 1.
    pub delayed: f64,
}

/// Of threads that both samples have: one that is gone took along what it did, and what a new one
/// did before it was found is not of this window.
pub(super) fn thread_rates(
    before: &[ThreadTimes],
    after: &[ThreadTimes],
    window: Duration,
) -> Option<ThreadRates> {
    let before: HashMap<u32, TaskTimes> =
        before.iter().map(|thread| (thread.id, thread.times)).collect();
    let both = after.iter().filter_map(|thread| {
        let before = before.get(&thread.id)?;
        let ran = increase(before.run_ns, thread.times.run_ns)?;
        let delayed = increase(before.delay_ns, thread.times.delay_ns)?;
        // Nobody waits for longer than that: kernels were seen to count a sleep in.
        let rest = (window.as_secs_f64() * 1e9 - ran).max(0.0);
        Some((ran, delayed.min(rest)))
    });
    let (mut ran, mut delayed, mut threads) = (0.0, 0.0, 0);
    for (more_ran, more_delayed) in both {
        (ran, delayed, threads) = (ran + more_ran, delayed + more_delayed, threads + 1);
    }
    let cpus = |ns: f64| per_second(ns, window).map(|ns| ns / 1e9);
    let is_known = threads > 0 || after.is_empty();
    Some(ThreadRates { ran: cpus(ran)?, delayed: cpus(delayed)? }).filter(|_| is_known)
}

/// Between its own last two readings, which are further apart for one that hardly waits.
pub(super) fn cpu_rates(cpu: &CpuUse, waits: WaitShares) -> CpuRates {
    let (usage_us, throttled_us, window) = match (cpu.before, cpu.last) {
        (Some(before), Some(last)) => (
            before.usage_us.zip(last.usage_us).and_then(|(before, last)| increase(before, last)),
            throttled_us(&before, &last),
            last.at.saturating_duration_since(before.at),
        ),
        (_, _) => (None, None, Duration::ZERO),
    };
    let cpus = |micros: f64| per_second(micros, window).map(|micros| micros / 1e6);
    CpuRates {
        waits,
        usage: usage_us.and_then(cpus),
        throttled: throttled_us.and_then(cpus),
        room: cpu.room.map(room),
    }
}

fn throttled_us(before: &CpuCounters, last: &CpuCounters) -> Option<f64> {
    let (before, last) = (before.throttled?, last.throttled?);
    let own = increase(before.container_us, last.container_us)?;
    let here_or_above = increase(before.here_or_above_us, last.here_or_above_us)?;
    // A pod that has its quota from now on tells of times long past.
    let pod = match (before.pod_us, last.pod_us) {
        (Some(before), Some(last)) => increase(before, last)?,
        (_, _) => 0.0,
    };
    Some(own.max(pod).max(here_or_above))
}

#[allow(clippy::cast_precision_loss, reason = "nobody has 2^52 CPUs or tasks")]
fn room(room: CpuRoom) -> Room {
    let quotas = [room.container_max, room.pod_max].into_iter().flatten();
    Room {
        quota: quotas.filter_map(CpuMax::cpus).reduce(f64::min),
        cpus: room.cpus.filter(|cpus| *cpus > 0).map(|cpus| cpus as f64),
        tasks: room.tasks.map(|tasks| tasks as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: u32, run_ns: u64, delay_ns: u64) -> ThreadTimes {
        ThreadTimes { id, times: TaskTimes { run_ns, delay_ns } }
    }

    #[test]
    fn threads_count_that_are_in_both_samples() {
        let window = Duration::from_secs(5);
        let rates = |before: &[ThreadTimes], after: &[ThreadTimes]| {
            let rates = thread_rates(before, after, window)?;
            Some((rates.ran, rates.delayed))
        };
        let before = [thread(1, 0, 0), thread(2, 7, 7), thread(3, 9_000_000_000, 0)];
        let after = [thread(1, 2_000_000_000, 2_500_000_000), thread(4, 8_000_000_000, 1)];
        assert_eq!(rates(&before, &after), Some((0.4, 0.5)));
        // More than the rest of the time nobody waits.
        let slept = [thread(1, 1_000_000_000, 30_000_000_000)];
        assert_eq!(rates(&before, &slept), Some((0.2, 0.8)));
        // A number that was used again is another thread.
        let reused = [after[0], thread(3, 1, 1)];
        assert_eq!(rates(&before, &reused), Some((0.4, 0.5)));
        // Of new ones alone nothing is known, and who has none waits for nothing.
        assert_eq!(rates(&before, &after[1..]), None);
        assert_eq!(rates(&before, &[]), Some((0.0, 0.0)));
    }
}
