//! CPU wait of a container by its pressure, where no vCPU threads are read. Pure.
//!
//! `some` of `cpu.pressure` is an average over the CPUs on which a container is active. It does not
//! show on how many CPUs the container waits. So the *least* wait of each container is computed, as
//! if it waited on as few CPUs as its usage allows. All of these are scaled by one factor, so that
//! they add up to the node's run delay, which includes every task, also those that ended. The waiting
//! that quotas explain, and that of containers whose threads are read, is subtracted from it first.

use super::cpu_limits;
use super::node::NodeReadings;
use super::readings::Readings;
use super::run_delay::ThreadTimes;
use super::series::Ratio;
use super::wait::Wait;

/// Bounds of one container's wait by its own files, in CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    /// Its wait on as few CPUs as its usage allows.
    least: f64,
    /// The most that its tasks can wait, and that its quota leaves.
    most: f64,
    /// Waiting that its quota explains, which the node's run delay includes.
    throttled: f64,
    /// Pressure, and the part of it that its quota explains.
    raw: Ratio,
    own_limit: Ratio,
}

/// The factor of a window by which waits are scaled that pressure measures, for `all` workloads of a node. It is 1 if
/// the node's run delay or the wait of a workload with pressure is unknown. One that has just begun to wait counts with
/// its pressure, which its quota may explain for each of its tasks.
pub fn pressure_scale<'a>(all: impl Iterator<Item = &'a Readings>, node: &NodeReadings) -> f64 {
    let cpus = node.cpus();
    let factor = || {
        let (run_delay, mut least, mut explained) = (node.run_delay()?, 0.0, 0.0);
        for readings in all {
            if let Some(threads) = ThreadTimes::of(readings) {
                explained += threads.delayed;
            } else if let Some(bounds) = Bounds::of(readings, cpus) {
                least += bounds.least;
                explained += bounds.throttled;
            } else if readings.pressure.cpu.value().is_some() {
                // Where a cgroup's pressure is off, its waiting counts as that of the others.
                let (some, limits) = (readings.pressure.cpu.some()?, readings.limits()?);
                if limits.quota.is_some() {
                    // Its pressure is an average over the CPUs on which it is active.
                    let most = (some * limits.allowed_cpus(cpus)).min(1.0);
                    explained += most * cpu_limits::tasks(readings)?;
                } else {
                    least += some;
                }
            }
        }
        let by_node = run_delay - explained;
        (by_node > least && least > 0.0).then(|| by_node / least)
    };
    factor().unwrap_or(1.0)
}

/// The CPU wait of a container that `requested` so many thousandths of a CPU; `None` if it is unknown.
pub(super) fn wait(
    readings: &Readings,
    requested: Option<u64>,
    node: &NodeReadings,
    scale: f64,
) -> Option<Wait> {
    let (used, bounds) = (cpu_limits::usage(readings)?, Bounds::of(readings, node.cpus())?);
    let waited = (bounds.least * scale).min(bounds.most);
    let taken = cpu_limits::taken_by_others(readings, requested, None, node);
    let by_others = taken.filter(|taken| *taken < waited).map_or(1.0, |taken| taken / waited);
    let raw = bounds.raw.get();
    let own_limit = raw - (raw - bounds.own_limit.get()) * by_others;
    Wait::of_cpu(used, waited * by_others, bounds.raw, Ratio::of(own_limit, 1.0)?)
}

impl Bounds {
    fn of(readings: &Readings, cpus: f64) -> Option<Self> {
        let shares = readings.pressure.cpu.shares();
        let raw = shares.some?;
        if readings.has_cpu_pressure(cpus) == Some(false) {
            let own_limit = Ratio::ZERO;
            return Some(Self { least: 0.0, most: 0.0, throttled: 0.0, raw, own_limit });
        }
        let used = cpu_limits::usage(readings)?;
        let throttled = cpu_limits::throttled(readings)?;
        let cpus = readings.limits()?.allowed_cpus(cpus);
        // Throttled time is summed over CPUs. Divided by the CPUs that were used or throttled, but
        // at least one, it is a share of time.
        let own = (throttled / (used + throttled).max(1.0)).min(raw.get());
        let some = raw.get() - own;
        // A CPU on which the container is always runnable runs it for 1 - full of the time.
        let runs = 1.0 - (shares.full?.get() - own).max(0.0);
        let least = some * (used / runs.max(f64::EPSILON)).clamp(1.0, cpus);
        let idle_tasks = cpu_limits::tasks(readings).map(|tasks| (tasks - used).max(0.0));
        let all_idle = idle_tasks.unwrap_or(f64::INFINITY);
        let most = cpu_limits::quota_left(readings)?.min(all_idle);
        let by_node = if least > most { most / least } else { 1.0 };
        let own_limit = raw.get() - some * by_node;
        // The more of its CPUs are throttled, the more of its tasks queue on them.
        let crowded = ((used + throttled) / cpus).min(1.0) * own_limit / raw.get();
        let queued = if throttled > 0.0 { crowded * idle_tasks.unwrap_or(0.0) } else { 0.0 };
        Some(Self {
            least: least.min(most),
            most,
            // Others may share the quota.
            throttled: throttled.max(queued).min(all_idle),
            raw,
            own_limit: Ratio::of(own_limit, 1.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{
        container_with_tasks, micros, node_with_cpus, ran_and_delayed, window,
    };
    use super::*;
    use crate::kernel::node_text::RunDelay;

    fn workload(some: f64, used: f64, throttled: f64, quota: Option<f64>, tasks: u64) -> Readings {
        container_with_tasks(some, used, throttled, quota, Some(tasks))
    }

    /// A node of so many busy CPUs, with this run delay in CPUs.
    fn node(cpus: usize, run_delay: Option<f64>) -> NodeReadings {
        let total = |total_ns| RunDelay { total_ns, ..RunDelay::default() };
        let run_delay = run_delay.map(|delay| window(total(0), total(micros(delay) * 1000)));
        let run_delay = run_delay.unwrap_or_default();
        NodeReadings { run_delay, ..node_with_cpus(&vec![1.0; cpus]) }
    }

    /// CPUs that the first of these workloads waited for.
    fn waited(run_delay: Option<f64>, all: &[&Readings]) -> f64 {
        let node = node(4, run_delay);
        let scale = pressure_scale(all.iter().copied(), &node);
        let wait = wait(all[0], None, &node, scale).unwrap();
        wait.demand - cpu_limits::usage(all[0]).unwrap()
    }

    #[test]
    fn all_together_waited_for_what_the_node_counted() {
        let vms = [workload(0.2, 0.8, 0.0, None, 9), workload(0.4, 0.6, 0.0, None, 9)];
        let system = workload(0.1, 0.1, 0.0, None, 9);
        // No file but its pressure is read of a workload that does not wait.
        let mut calm = workload(0.0, 0.0, 0.0, None, 9);
        (calm.cpu, calm.cpu_limits) = Default::default();
        let node = |first: usize| [&vms[first], &vms[1 - first], &system, &calm];
        assert!((waited(Some(2.1), &node(0)) - 0.6).abs() < 1e-6);
        assert!((waited(Some(2.1), &node(1)) - 1.2).abs() < 1e-6);
        // Never less than the least wait, and never more than their tasks can wait.
        assert!((waited(Some(0.0), &node(0)) - 0.2).abs() < 1e-6);
        assert!((waited(Some(1e6), &node(0)) - 8.2).abs() < 1e-6);
        // The usage of one that has just begun to wait is unknown.
        let new = |quota| Readings { cpu: <_>::default(), ..workload(0.1, 0.1, 0.0, quota, 9) };
        let with = |new: &Readings| waited(Some(2.1), &[&vms[0], &vms[1], new, &calm]);
        assert!((with(&new(None)) - 0.6).abs() < 1e-6);
        assert!((with(&new(Some(0.5))) - 0.2).abs() < 1e-6, "its quota may have been short");
        // Not for longer than its task can have waited: 0.4 of the 2.1.
        let mut once = workload(0.1, 0.1, 0.0, Some(0.5), 1);
        once.cpu.before = None;
        assert!((with(&once) - 0.2 * 1.7 / 0.6).abs() < 1e-6);
        // Until its pressure has a rate, the least wait is used.
        once.pressure.cpu.before = None;
        assert!((with(&once) - 0.2).abs() < 1e-6);
        // A cgroup can have its pressure off.
        let silent = Readings { pressure: Default::default(), cpu_limits: None, ..calm.clone() };
        assert!((waited(Some(2.1), &[&vms[0], &vms[1], &system, &silent]) - 0.6).abs() < 1e-6);
        // Without the node's run delay, the least wait is used.
        assert!((waited(None, &node(0)) - 0.2).abs() < 1e-6);
    }

    #[test]
    fn little_pressure_can_be_much_waiting_on_many_cpus() {
        // 64 threads each, spread over 64 CPUs, wait for 0.6 CPUs together.
        let container = workload(0.0094, 1.0, 0.0, None, 65);
        let waited = |cpus: usize, run_delay| {
            let node = node(cpus, Some(run_delay));
            let scale = pressure_scale(vec![&container; 40].into_iter(), &node);
            wait(&container, None, &node, scale).unwrap().cpus
        };
        assert!((waited(64, 24.0) - 0.6).abs() < 1e-6);
        assert_eq!(waited(1, 1.0), 0.0);
    }

    #[test]
    fn what_the_threads_of_vms_did_not_wait_is_left_for_the_others() {
        let other = workload(0.2, 0.8, 0.0, None, 9);
        let mut vm = workload(0.9, 0.6, 0.0, None, 9);
        vm.threads = ran_and_delayed(0.6, 1.5);
        assert!((waited(Some(2.1), &[&other, &vm]) - 0.6).abs() < 1e-6);
    }

    #[test]
    fn a_queue_behind_a_quota_is_put_on_no_vm() {
        // As measured: forty threads with one CPU waited for 38.8 of 39.3, three VMs for 0.15 each.
        let vm = workload(0.09, 0.4, 0.0, None, 4);
        let batch = workload(0.95, 1.0, 3.0, Some(1.0), 41);
        let vm_waited = waited(Some(39.3), &[&vm, &vm, &vm, &batch]);
        assert!((0.08..0.2).contains(&vm_waited), "{vm_waited}");
    }

    #[test]
    fn two_units_of_three_loops_on_two_cpus_wait_for_two_thirds() {
        let unit = workload(0.95, 1.0, 0.0, None, 3);
        let node = node(2, Some(4.0));
        let scale = pressure_scale([&unit, &unit].into_iter(), &node);
        let wait = wait(&unit, None, &node, scale).unwrap();
        assert!((wait.contention.get() - 2.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn on_cpus_that_it_requested_for_itself_a_container_waits_for_itself() {
        let mut container = workload(0.9, 1.9, 0.0, None, 16);
        let limits = container.cpu_limits.as_mut().unwrap();
        limits.value.cpus = Some(Arc::new((0..2).collect()));
        let wait = |requested, busy: &[f64]| {
            let wait = wait(&container, requested, &node_with_cpus(busy), 1.0).unwrap();
            [wait.cpus, wait.own_limit.get()].map(|value| (value * 1e6).round() / 1e6)
        };
        let [shared, _] = wait(None, &[0.95, 0.95, 0.0, 0.0]);
        assert!(shared > 1.0, "{shared}");
        assert_eq!(wait(Some(3000), &[0.95, 0.95, 0.0, 0.0]), [shared, 0.0]);
        assert_eq!(wait(Some(2000), &[0.95, 0.95, 0.0, 0.0]), [0.0, 0.9]);
        // Others took a twentieth of a CPU.
        assert_eq!(wait(Some(2000), &[0.975, 0.975, 0.0, 0.0])[0], 0.05);
    }
}
