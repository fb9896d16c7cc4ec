//! CPU time of a container and of its threads between two samples. Pure.

use std::collections::HashMap;
use std::time::Duration;

use super::window::{WaitShares, increase, per_second};
use crate::kernel::task_text::TaskTimes;
use crate::sample::{CpuCounters, CpuLimits, CpuUse, ThreadSample};

/// CPU time of a container between two readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuRates {
    /// Shares of the tick's window in which its tasks waited.
    pub waits: WaitShares,
    /// CPUs used on average.
    pub usage: Option<f64>,
    /// CPUs lost on average to its own quota or its pod's: the largest value of any level, since
    /// levels can report the same time.
    pub throttled: Option<f64>,
    pub limits: Option<CpuLimits>,
}

/// Threads of a container between two samples, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadRates {
    /// CPUs that they ran on, on average.
    pub ran: f64,
    /// CPUs that they waited for: 1 for each thread that waits all the time.
    pub delayed: f64,
    /// Number of vCPU threads; `None` in a container without any.
    pub vcpus: Option<f64>,
}

/// Only threads that are in both samples count. Counters of a new thread can include time before
/// this window, and those of a thread that ended are lost.
pub(super) fn thread_rates(
    before: &[ThreadSample],
    after: &[ThreadSample],
    window: Duration,
) -> Option<ThreadRates> {
    let window_ns = window.as_secs_f64() * 1e9;
    let before: HashMap<u32, TaskTimes> =
        before.iter().map(|thread| (thread.id, thread.times)).collect();
    let both = after.iter().filter_map(|thread| {
        let before = before.get(&thread.id)?;
        let ran = increase(before.run_ns, thread.times.run_ns)?;
        // The kernel adds a delay when it ends, so it can be longer than the window. Kernels were
        // also observed to count sleep as delay.
        let most = (window_ns - ran).max(0.0);
        let delayed = increase(before.delay_ns, thread.times.delay_ns)?;
        Some((ran, if thread.starved { most } else { delayed.min(most) }))
    });
    let (mut ran, mut delayed, mut threads) = (0.0, 0.0, 0_u32);
    for (more_ran, more_delayed) in both {
        (ran, delayed, threads) = (ran + more_ran, delayed + more_delayed, threads + 1);
    }
    if threads == 0 && !after.is_empty() {
        return None;
    }
    let vcpus = after.iter().filter(|thread| thread.is_vcpu).count();
    let vcpus = u32::try_from(vcpus).ok().filter(|vcpus| *vcpus > 0).map(f64::from);
    let cpus = |ns: f64| per_second(ns, window).map(|ns| ns / 1e9);
    Some(ThreadRates { ran: cpus(ran)?, delayed: cpus(delayed)?, vcpus })
}

/// Rates between the last two readings, which are further apart than two ticks if the container
/// hardly waits.
pub(super) fn cpu_rates(cpu: &CpuUse, waits: WaitShares) -> CpuRates {
    let limits = cpu.limits.clone();
    let (Some(before), Some(last)) = (cpu.before, cpu.last) else {
        // Without a quota nothing is throttled, so throttling is 0 even if it was not read.
        let throttled = limits.as_ref().filter(|limits| limits.quota().is_none()).map(|_| 0.0);
        return CpuRates { waits, usage: None, throttled, limits };
    };
    let window = last.at.saturating_duration_since(before.at);
    let cpus = |micros: f64| per_second(micros, window).map(|micros| micros / 1e6);
    let usage_us = before.usage_us.zip(last.usage_us);
    let usage = usage_us.and_then(|(before, last)| cpus(increase(before, last)?));
    CpuRates { waits, usage, throttled: throttled_us(&before, &last).and_then(cpus), limits }
}

fn throttled_us(before: &CpuCounters, last: &CpuCounters) -> Option<f64> {
    let (before, last) = (before.throttled?, last.throttled?);
    let own = increase(before.container_us, last.container_us)?;
    let here_or_above = increase(before.here_or_above_us, last.here_or_above_us)?;
    // The quota of a pod is new: earlier throttling is outside this window and counts as 0.
    let pod = match (before.pod_us, last.pod_us) {
        (Some(before), Some(last)) => increase(before, last)?,
        (_, _) => 0.0,
    };
    Some(own.max(pod).max(here_or_above))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: u32, run_ns: u64, delay_ns: u64) -> ThreadSample {
        let times = TaskTimes { run_ns, delay_ns };
        ThreadSample { id, is_vcpu: false, times, starved: false }
    }

    #[test]
    fn threads_of_both_samples_count() {
        let window = Duration::from_secs(5);
        let rates = |before: &[ThreadSample], after: &[ThreadSample]| {
            let rates = thread_rates(before, after, window)?;
            Some((rates.ran, rates.delayed))
        };
        let before = [thread(1, 0, 0), thread(2, 7, 7), thread(3, 9_000_000_000, 0)];
        let after = [thread(1, 2_000_000_000, 2_500_000_000), thread(4, 8_000_000_000, 1)];
        assert_eq!(rates(&before, &after), Some((0.4, 0.5)));
        // No thread waits for longer than the rest of the window.
        let slept = [thread(1, 1_000_000_000, 30_000_000_000)];
        assert_eq!(rates(&before, &slept), Some((0.2, 0.8)));
        // A reused thread ID is another thread.
        let reused = [after[0], thread(3, 1, 1)];
        assert_eq!(rates(&before, &reused), Some((0.4, 0.5)));
        // New threads alone have no rate, and a container without threads waits for nothing.
        assert_eq!(rates(&before, &after[1..]), None);
        assert_eq!(rates(&before, &[]), Some((0.0, 0.0)));
    }

    #[test]
    fn a_starved_thread_waits_all_the_time_although_its_counters_stand_still() {
        let before = [thread(1, 5, 5), thread(2, 5, 5)];
        let mut after = before;
        after[1].starved = true;
        after.iter_mut().for_each(|thread| thread.is_vcpu = true);
        let rates = thread_rates(&before, &after, Duration::from_secs(5)).unwrap();
        assert_eq!(rates, ThreadRates { ran: 0.0, delayed: 1.0, vcpus: Some(2.0) });
    }
}
