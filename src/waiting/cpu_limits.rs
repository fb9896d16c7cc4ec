//! CPU usage, throttling and limits of a container, for both meters of CPU wait. Pure.

use std::time::{Duration, Instant};

use super::node::NodeReadings;
use super::readings::{Needs, Readings, Threads};
use super::series::{increase, lately};
use super::wait::NEGLIGIBLE;

/// Interval at which limits, and counters of containers that do not wait, are read.
const SLOW_INTERVAL: Duration = Duration::from_secs(30);

/// The limits are needed again after some time. `cpu.stat` shows the effect of a quota, and costs many times as
/// much as pressure. So it is read at each tick of a container that waits, and of a calm one only often enough for
/// its usage.
pub(super) fn needs(readings: &Readings, now: Instant) -> Needs {
    let limits_read_at = readings.cpu_limits.as_ref().map(|limits| limits.at);
    let waited = lately(readings.cpu_waited_at, now);
    Needs::CPU_LIMITS.when(is_due(limits_read_at, now))
        | Needs::CPU_COUNTERS.when(waited || is_due(readings.cpu.read_at(), now))
}

/// Whether a file with the slow interval is to be read, which was read last at this time.
pub(super) fn is_due(read_at: Option<Instant>, now: Instant) -> bool {
    read_at.is_none_or(|at| now.saturating_duration_since(at) >= SLOW_INTERVAL)
}

/// CPUs used on average, between the last two readings.
pub(super) fn usage(readings: &Readings) -> Option<f64> {
    readings.cpu.rate(|counters| counters.container.usage_us).map(|micros| micros / 1e6)
}

/// CPUs that a VM used beside its vCPUs, on average between the last two readings.
pub(super) fn used_beside(readings: &Readings) -> Option<f64> {
    let ran = readings.cpu.rate(|counters| counters.vcpus_ran_ns)? / 1e9;
    Some((usage(readings)? - ran).max(0.0))
}

/// Number of tasks: the larger one of the last two readings, since tasks that waited may have ended.
pub(super) fn tasks(readings: &Readings) -> Option<f64> {
    let now = readings.cpu.value()?.tasks?;
    let before = readings.cpu.both().and_then(|(before, _)| before.tasks);
    Some(now.max(before.unwrap_or_default()) as f64)
}

/// CPUs lost on average to its own quota or its pod's: the largest value of any level, since levels
/// can report the same time. 0 without a quota.
pub(super) fn throttled(readings: &Readings) -> Option<f64> {
    if readings.limits()?.quota.is_none() {
        return Some(0.0);
    }
    let own = readings.cpu.increase(|it| Some(it.container.throttled_us.unwrap_or_default()))?;
    let (before, last) = readings.cpu.both()?;
    // A quota is new: earlier throttling is outside this window and counts as 0.
    let levels = before.throttled_us.iter().zip(&last.throttled_us);
    let levels = levels.filter_map(|(before, last)| increase(*before, *last));
    let micros = levels.fold(own, f64::max);
    // Counters of a container that has just begun to wait are of a longer window, at whose begin it was not
    // throttled, either.
    let waited = readings.pressure.cpu.seconds().filter(|waited| !are_of_window(readings, *waited));
    Some(micros / 1e6 / waited.unwrap_or(readings.cpu.seconds()?))
}

/// CPUs that the quota leaves unused: a container that gets all that its quota allows does not wait
/// because of the node. Infinite without a quota.
pub(super) fn quota_left(readings: &Readings) -> Option<f64> {
    let Some(quota) = readings.limits()?.quota else { return Some(f64::INFINITY) };
    Some((quota - usage(readings)?).max(0.0))
}

/// CPUs that all others took, of the container's own CPUs: it can't wait for more because of the node. The
/// rest of its waiting is for its own threads, as for the emulator on dedicated CPUs. The CPUs of a cpuset are
/// its own outside pods, and if there is one for each vCPU, or as many as it `requested`, in thousandths: so
/// many the kubelet gives it exclusively. `None` without such a cpuset, where it has changed since it was read,
/// and in the first window in which the container waits.
pub(super) fn taken_by_others(
    readings: &Readings,
    requested: Option<u64>,
    vcpus: Option<usize>,
    node: &NodeReadings,
) -> Option<f64> {
    let cpuset = readings.limits()?.cpus.as_ref()?;
    let count = cpuset.count();
    let is_own = readings.limits()?.is_unit
        || vcpus.is_some_and(|vcpus| count as usize >= vcpus)
        || requested == Some(1000 * u64::from(count));
    if !is_own
        || f64::from(count) >= node.cpus()
        || !are_of_window(readings, node.cpu_times.seconds()?)
    {
        return None;
    }
    let taken = node.busy_cpus(cpuset)? - usage(readings)?;
    let rounding = NEGLIGIBLE * f64::from(cpuset.count());
    (taken > -rounding).then(|| taken.max(0.0))
}

/// Whether the counters are of a window of so many seconds: until the container waits, they are read rarely.
pub(super) fn are_of_window(readings: &Readings, seconds: f64) -> bool {
    readings.cpu.seconds().is_some_and(|own| own < 1.5 * seconds)
}

/// The most that a container can have demanded, if its waiting is unknown: what its quota allows, and what its threads
/// `ran_and_waited`, or else a CPU for each of its tasks or vCPUs. 0 if by its pressure it hardly waited.
pub(super) fn most_demand(readings: &Readings, cpus: f64, ran_and_waited: Option<f64>) -> f64 {
    if readings.has_cpu_pressure(cpus) == Some(false) {
        return 0.0;
    }
    let quota = readings.limits().and_then(|limits| limits.quota);
    let threads = match &readings.threads {
        Threads::Read { threads, .. } => Some(ran_and_waited.unwrap_or(threads.len() as f64)),
        Threads::Hidden | Threads::NotRead => tasks(readings),
    };
    threads.into_iter().chain(quota).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::super::readings::CpuCounters;
    use super::super::tests::{container, micros, window};
    use super::*;

    #[test]
    fn throttled_time_is_that_of_the_level_with_the_largest_increase() {
        let mut limited = container(0.5, 0.5, 0.1, Some(0.5));
        let (before, last) = limited.cpu.both().unwrap();
        let with =
            |counters: &CpuCounters, throttled_us| CpuCounters { throttled_us, ..counters.clone() };
        // One had another quota for a year.
        let much = 1 << 50;
        let before = with(before, vec![7, much]);
        limited.cpu = window(before, with(last, vec![7 + micros(0.4), much]));
        assert!((throttled(&limited).unwrap() - 0.4).abs() < 1e-6);
        let (before, last) = limited.cpu.both().map(|(a, b)| (a.clone(), b.clone())).unwrap();
        // The quota of a pod is new.
        limited.cpu = window(with(&before, vec![]), last);
        assert!((throttled(&limited).unwrap() - 0.1).abs() < 1e-6);
    }

    #[test]
    fn cpu_stat_is_read_at_every_tick_of_a_container_that_waits_and_else_every_half_minute() {
        let mut calm = container(0.0, 0.5, 0.0, None);
        let read_at = calm.cpu.last.as_ref().unwrap().at;
        let after = |seconds| read_at + Duration::from_secs(seconds);
        assert_eq!(needs(&calm, after(5)), Needs::empty());
        assert!(needs(&calm, after(35)).contains(Needs::CPU_LIMITS | Needs::CPU_COUNTERS));
        calm.cpu_waited_at = Some(read_at);
        assert_eq!(needs(&calm, after(5)), Needs::CPU_COUNTERS);
        // The first two readings make a rate.
        let new = Readings { cpu: Default::default(), ..container(0.0, 0.5, 0.0, None) };
        assert_eq!(needs(&new, after(5)), Needs::CPU_COUNTERS);
    }
}
