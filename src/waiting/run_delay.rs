//! CPU wait of a container by the run delay of its threads. Pure.

use super::node::NodeReadings;
use super::readings::{Readings, ThreadReading, Threads};
use super::wait::{NEGLIGIBLE, Wait};
use super::{cpu_limits, series::Ratio};

/// CPU time of a container's threads in one window, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ThreadTimes {
    /// CPUs that they ran on, on average.
    pub(super) ran: f64,
    /// CPUs that they waited for: 1 for each thread that waits all the time.
    pub(super) delayed: f64,
    /// CPUs that they would run on if they did not wait, and slept as long between two bursts.
    pub(super) undelayed: f64,
    /// Variance of the number of threads that would run at a moment if they did not wait.
    pub(super) variance: f64,
}

impl ThreadTimes {
    /// Only threads that are in both readings count. Counters of a new thread can include time before
    /// this window, and those of a thread that ended are lost.
    pub(super) fn of(readings: &Readings) -> Option<Self> {
        let Threads::Read { threads, .. } = &readings.threads else { return None };
        let mut known = threads.iter().filter_map(rates).peekable();
        let is_known = threads.is_empty() || known.peek().is_some();
        let all = known.fold(Self::default(), |all, (ran, delayed)| {
            let share = undelayed(ran, delayed);
            Self {
                ran: all.ran + ran,
                delayed: all.delayed + delayed,
                undelayed: all.undelayed + share,
                variance: all.variance + share * (1.0 - share),
            }
        });
        is_known.then_some(all)
    }
}

/// CPUs that a container used; of a VM whose threads are read, its vCPUs alone.
pub(super) fn ran(readings: &Readings) -> Option<f64> {
    ThreadTimes::of(readings).map(|times| times.ran).or_else(|| cpu_limits::usage(readings))
}

/// CPUs that a thread ran on and waited for.
fn rates(thread: &ThreadReading) -> Option<(f64, f64)> {
    let ran = thread.times.rate(|times| Some(times.run_ns))? / 1e9;
    let delayed = thread.times.rate(|times| Some(times.delay_ns))? / 1e9;
    // The kernel adds a delay when it ends, so it can be longer than the window. Kernels were also
    // observed to count sleep as delay.
    let most = (1.0 - ran).max(0.0);
    Some((ran, if thread.starved { most } else { delayed.min(most) }))
}

/// A thread sleeps for the time that is left. Without the delay, it would run for the same share of the
/// rest.
fn undelayed(ran: f64, delayed: f64) -> f64 {
    if ran + delayed < 1.0 { ran / (1.0 - delayed) } else { 1.0 }
}

/// CPUs that the I/O threads waited for, because of the node or of a limit: 1 for each thread that waits
/// all the time. `None` for a container without any.
pub(super) fn of_iothreads(readings: &Readings) -> Option<f64> {
    let Threads::Read { iothreads, .. } = &readings.threads else { return None };
    let delayed = iothreads.iter().filter_map(rates).map(|(_, delayed)| delayed);
    delayed.reduce(|sum, delayed| sum + delayed)
}

/// Whether the threads wait. One that never gets a CPU waits, although its counters stand still.
pub(super) fn waits(readings: &Readings) -> bool {
    ThreadTimes::of(readings).is_some_and(|times| times.delayed >= NEGLIGIBLE)
}

/// The CPU wait of a container with these threads, that `requested` so many thousandths of a CPU; `None` if it
/// is unknown.
pub(super) fn wait(
    readings: &Readings,
    all: &[ThreadReading],
    requested: Option<u64>,
    node: &NodeReadings,
) -> Option<Wait> {
    let threads = ThreadTimes::of(readings)?;
    let waited = if threads.delayed < NEGLIGIBLE {
        threads.delayed
    } else {
        let window = all.iter().filter_map(|thread| thread.times.seconds()).fold(0.0, f64::max);
        if readings.limits()?.quota.is_some() && !cpu_limits::are_of_window(readings, window) {
            return None;
        }
        let by_node = threads.delayed - own_delay(readings, threads, node.cpus())?;
        let by_node = by_node.min(cpu_limits::quota_left(readings)?);
        let taken = cpu_limits::taken_by_others(readings, requested, Some(all.len()), node);
        by_node.min(taken.unwrap_or(f64::INFINITY)).max(0.0)
    };
    let share = |delay| Ratio::of(delay, (threads.delayed + threads.ran).max(1.0));
    let (raw, own_limit) = (share(threads.delayed)?, share(threads.delayed - waited)?);
    let wait = Wait::of_cpu(threads.ran, waited, raw, own_limit)?;
    Some(Wait { own_limit_cpus: threads.delayed - waited, ..wait })
}

/// CPUs' worth of delay that throttling explains. While one of the container's CPUs is throttled,
/// the threads that are queued there wait: on average (ran + delayed) / CPUs, but at least one.
/// CPUs on which the container runs are not throttled, although Linux 7.2 counts some of that time
/// as throttled.
fn own_delay(readings: &Readings, threads: ThreadTimes, cpus: f64) -> Option<f64> {
    let cpus = readings.limits()?.allowed_cpus(cpus);
    let throttled = cpu_limits::throttled(readings)?.min((cpus - threads.ran).max(0.0));
    let queued = (threads.ran + threads.delayed) / cpus;
    Some((throttled * queued.max(1.0)).min(threads.delayed))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{container, node_with_cpus, ran_and_delayed};
    use super::*;
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
    use crate::waiting::Measurement;

    /// A VM whose threads ran on `ran` CPUs and waited for `delayed` CPUs.
    fn vm(ran: f64, delayed: f64, throttled: f64, quota: Option<f64>) -> Readings {
        Readings { threads: ran_and_delayed(ran, delayed), ..container(0.5, ran, throttled, quota) }
    }

    fn waited(readings: &Readings, node: &NodeReadings) -> Option<Wait> {
        let Threads::Read { threads, .. } = &readings.threads else { unreachable!() };
        wait(readings, threads, None, node)
    }

    fn demand_of(readings: &Readings) -> (f64, f64) {
        let wait = waited(readings, &node_with_cpus(&[1.0; 4])).unwrap();
        let round = |value: f64| (value * 1e6).round() / 1e6;
        (round(wait.contention.get()), round(wait.demand))
    }

    #[test]
    fn contention_is_waited_over_wanted() {
        assert_eq!(demand_of(&vm(1.0, 1.0, 0.0, None)), (0.5, 2.0));
        assert_eq!(demand_of(&vm(0.5, 0.0, 0.0, None)), (0.0, 0.5));
        assert_eq!(demand_of(&vm(0.0, 0.0, 0.0, None)), (0.0, 0.0));
        // CPU ready is the wait of the average busy vCPU, so half of a small demand is a small CPU
        // ready.
        let shares = |ran, delayed| {
            let wait = waited(&vm(ran, delayed, 0.0, None), &node_with_cpus(&[1.0; 4])).unwrap();
            [wait.contention, wait.node, wait.raw].map(|share| (share.get() * 1e6).round())
        };
        assert_eq!(shares(0.02, 0.02), [500_000.0, 20_000.0, 20_000.0]);
        assert_eq!(shares(1.0, 1.0), [500_000.0; 3]);
    }

    #[test]
    fn variance_is_zero_for_vcpus_that_always_or_never_run() {
        let variance = |ran, delayed| {
            let times = ThreadTimes::of(&vm(ran, delayed, 0.0, None)).unwrap();
            (times.variance * 1e6).round() / 1e6
        };
        assert_eq!([variance(0.0, 0.0), variance(1.0, 0.0), variance(0.5, 0.5)], [0.0; 3]);
        assert_eq!([variance(0.5, 0.0), variance(0.2, 0.6)], [0.25; 2]);
    }

    #[test]
    fn throttling_is_not_the_nodes() {
        // One thread with a quota of a fifth: for the rest of the time it is throttled.
        assert_eq!(demand_of(&vm(0.2, 0.8, 0.8, Some(0.2))), (0.0, 0.2));
        // Eight threads on four CPUs: two wait behind each throttled one.
        let (contention, demand) = demand_of(&vm(0.5, 7.0, 3.5, Some(9.0)));
        assert_eq!((contention, demand), (0.466_667, 0.9375));
        let behind = waited(&vm(0.5, 7.0, 3.5, Some(9.0)), &node_with_cpus(&[1.0; 4])).unwrap();
        assert!((behind.cpus + behind.own_limit_cpus - 7.0).abs() < 1e-6, "{behind:?}");
        // As measured on two CPUs with Linux 7.2: it got 0.36 CPUs less than its quota allows, and
        // more time was counted as throttled than it did not run.
        let fills = vm(1.64, 2.38, 1.05, Some(2.0));
        let fills = waited(&fills, &node_with_cpus(&[1.0; 2])).unwrap();
        assert!((fills.contention.get() - 0.18).abs() < 1e-6, "{fills:?}");
        // A VM that gets all that its quota allows does not wait because of the node. One that gets
        // half of it does.
        assert_eq!(demand_of(&vm(2.0, 2.0, 0.0, Some(2.0))).0, 0.0);
        assert_eq!(demand_of(&vm(0.5, 1.5, 0.0, Some(1.0))), (0.5, 1.0));
    }

    #[test]
    fn on_cpus_of_its_own_a_vm_waits_for_itself() {
        let on = |ran, delayed, cpus: std::ops::Range<u32>, busy: &[f64]| {
            let mut pinned = vm(ran, delayed, 0.0, None);
            let limits = pinned.cpu_limits.as_mut().unwrap();
            limits.value.cpus = Some(Arc::new(cpus.collect()));
            (waited(&pinned, &node_with_cpus(busy)).unwrap().cpus * 1e6).round() / 1e6
        };
        // Two vCPUs wait for their emulator, and for others that took 0.3 CPUs.
        assert_eq!(on(1.2, 0.6, 0..2, &[0.75, 0.75, 1.0, 1.0]), 0.3);
        assert_eq!(on(1.2, 0.6, 0..2, &[0.6, 0.6, 1.0, 1.0]), 0.0);
        // It used more than these CPUs ran: the cpuset is an earlier one.
        assert_eq!(on(1.2, 0.6, 0..2, &[0.1, 0.1, 1.0, 1.0]), 0.6);
        // With fewer CPUs than vCPUs, as in what dedicated VMs leave, it waits for the node.
        assert_eq!(on(1.7, 2.3, 0..2, &[0.85, 0.85, 1.0, 1.0]), 2.3);
        assert_eq!(on(1.2, 0.6, 0..2, &[0.6, 0.6]), 0.6, "all CPUs of the node");
        // Unless it requested just these.
        let mut pinned = vm(1.7, 2.3, 0.0, None);
        pinned.cpu_limits.as_mut().unwrap().value.cpus = Some(Arc::new((0..2).collect()));
        let node = node_with_cpus(&[0.85, 0.85, 1.0, 1.0]);
        let Threads::Read { threads, .. } = &pinned.threads else { unreachable!() };
        let waited = |requested| wait(&pinned, threads, Some(requested), &node).unwrap().cpus;
        assert!(waited(2000) < 1e-6 && (waited(1000) - 2.3).abs() < 1e-6);
    }

    #[test]
    fn what_was_not_read_is_unknown() {
        let of = |mut readings: Readings, change: fn(&mut Readings)| {
            change(&mut readings);
            let cgroup = Arc::new(Cgroup::new(CgroupId(1), "/vm".to_owned(), None));
            let node = node_with_cpus(&[1.0; 4]);
            let measured = Measurement::of(&cgroup, None, &readings, &node, 1.0);
            measured.waits.cpu.map_err(|unknown| unknown.most_demand)
        };
        let without = |change| of(vm(1.0, 1.0, 0.0, Some(4.0)), change);
        // Its quota and what its threads ran and waited bound the demand, if they were read.
        assert_eq!(without(|readings| readings.cpu.push(None)), Err(2.0));
        assert_eq!(without(|readings| readings.cpu_limits = None), Err(2.0));
        let nearly_idle = of(vm(0.05, 0.02, 0.0, Some(2.0)), |readings| readings.cpu.push(None));
        assert!((nearly_idle.unwrap_err() - 0.07).abs() < 1e-6, "{nearly_idle:?}");
        assert_eq!(without(|readings| readings.threads = Threads::Hidden), Err(4.0));
        let unread = |readings: &mut Readings| {
            (readings.threads, readings.cpu_limits) = (Threads::Hidden, None);
        };
        assert_eq!(without(unread), Err(f64::INFINITY));
        // The limits of a container that hardly waits do not matter.
        let calm = Readings { cpu_limits: None, ..vm(1.0, 0.001, 0.0, None) };
        assert!(demand_of(&calm).0 < 0.001);
    }

    #[test]
    fn a_thread_that_never_runs_waits() {
        let mut starved = vm(0.0, 0.0, 0.0, Some(0.5));
        let Threads::Read { threads, .. } = &mut starved.threads else { unreachable!() };
        threads.iter_mut().for_each(|thread| thread.starved = true);
        assert!(waits(&starved));
        assert_eq!(demand_of(&starved), (1.0, 0.5));
    }
}
