//! CPU wait of a container by the run delay of its threads. Pure.

use super::wait::{NEGLIGIBLE, Wait};
use crate::rates::{ContainerRates, CpuRates, Ratio, ThreadRates};
use crate::sample::CpuLimits;

/// `None` where a needed file could not be read. `cpus` are the node's.
pub(super) fn cpu_wait(container: &ContainerRates, cpus: Option<u64>) -> Option<Wait> {
    let threads = container.threads?;
    let waited = if threads.delayed < NEGLIGIBLE {
        threads.delayed
    } else {
        let by_node = threads.delayed - own_delay(&container.cpu, threads, cpus)?;
        by_node.min(quota_left(&container.cpu)?).max(0.0)
    };
    let share =
        |delay| Ratio::of(delay, threads.vcpus.unwrap_or(threads.delayed + threads.ran).max(1.0));
    let (raw, own_limit) = (share(threads.delayed)?, share(threads.delayed - waited)?);
    Wait::of_cpu(threads.ran, waited, threads.vcpus, raw, own_limit)
}

/// CPUs' worth of delay that throttling explains. While one of the container's CPUs is throttled,
/// the threads that are queued there wait: on average (ran + delayed) / CPUs, but at least one.
/// CPUs on which the container runs are not throttled, although Linux 7.2 counts some of that time
/// as throttled.
fn own_delay(cpu: &CpuRates, threads: ThreadRates, cpus: Option<u64>) -> Option<f64> {
    let (throttled, limits) = (cpu.throttled?, cpu.limits.as_ref()?);
    let cpus = allowed_cpus(limits, cpus);
    let throttled = throttled.min((cpus - threads.ran).max(0.0));
    let queued = (threads.ran + threads.delayed) / cpus;
    Some((throttled * queued.max(1.0)).min(threads.delayed))
}

/// CPUs that the quota leaves unused: a container that gets all that its quota allows does not wait
/// because of the node. Infinite without a quota.
pub(super) fn quota_left(cpu: &CpuRates) -> Option<f64> {
    match cpu.limits.as_ref()?.quota() {
        Some(quota) => Some((quota - cpu.usage?).max(0.0)),
        None => Some(f64::INFINITY),
    }
}

/// CPUs on which a container may run.
#[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of CPUs")]
pub(super) fn allowed_cpus(limits: &CpuLimits, cpus: Option<u64>) -> f64 {
    let node = cpus.unwrap_or(1).max(1);
    let own = limits.cpus.as_ref().map(|set| u64::from(set.len())).filter(|own| *own > 0);
    own.map_or(node, |own| own.min(node)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::tests::{limits, vm};

    /// A VM whose threads ran on `ran` CPUs and waited for `delayed` CPUs.
    fn container(ran: f64, delayed: f64, throttled: f64, quota: Option<f64>) -> ContainerRates {
        let mut container = vm(1, 0.0, ran, throttled);
        container.cpu.limits = Some(limits(quota, None));
        container.threads = Some(ThreadRates { ran, delayed, vcpus: None });
        container
    }

    fn wait(container: &ContainerRates) -> (f64, f64) {
        let wait = cpu_wait(container, Some(4)).unwrap();
        (wait.contention.get(), wait.demand)
    }

    #[test]
    fn contention_is_waited_over_wanted() {
        assert_eq!(wait(&container(1.0, 1.0, 0.0, None)), (0.5, 2.0));
        assert_eq!(wait(&container(0.5, 0.0, 0.0, None)), (0.0, 0.5));
        assert_eq!(wait(&container(0.0, 0.0, 0.0, None)), (0.0, 0.0));
        // CPU ready is the wait of the average vCPU, so half of a small demand is a small CPU
        // ready.
        let mut little = container(0.02, 0.02, 0.0, None);
        little.threads.as_mut().unwrap().vcpus = Some(4.0);
        let wait = cpu_wait(&little, Some(4)).unwrap();
        assert_eq!((wait.contention.get(), wait.node.get(), wait.raw.get()), (0.5, 0.005, 0.005));
    }

    #[test]
    fn throttling_is_not_the_nodes() {
        // One thread with a quota of a fifth: for the rest of the time it is throttled.
        let (contention, demand) = wait(&container(0.2, 0.8, 0.8, Some(0.2)));
        assert!(contention < 1e-9 && (demand - 0.2).abs() < 1e-9, "{contention} {demand}");
        // Eight threads on four CPUs: two wait behind each throttled one.
        let (contention, demand) = wait(&container(0.5, 7.0, 3.5, Some(9.0)));
        assert_eq!((contention, demand), (0.4375 / 0.9375, 0.9375));
        // As measured on two CPUs with Linux 7.2: it got 0.36 CPUs less than its quota allows, and
        // more time was counted as throttled than it did not run.
        let fills = cpu_wait(&container(1.64, 2.38, 1.05, Some(2.0)), Some(2)).unwrap();
        assert!((fills.contention.get() - 0.18).abs() < 1e-9, "{fills:?}");
        // A VM that gets all that its quota allows does not wait because of the node. One that gets
        // half of it does.
        assert_eq!(wait(&container(2.0, 2.0, 0.0, Some(2.0))).0, 0.0);
        assert_eq!(wait(&container(0.5, 1.5, 0.0, Some(1.0))), (0.5, 1.0));
    }

    #[test]
    fn what_was_not_read_is_absent() {
        let without = |change: fn(&mut ContainerRates)| {
            let mut container = container(1.0, 1.0, 0.0, Some(4.0));
            change(&mut container);
            cpu_wait(&container, Some(4))
        };
        assert_eq!(without(|container| container.cpu.usage = None), None);
        assert_eq!(without(|container| container.cpu.throttled = None), None);
        assert_eq!(without(|container| container.cpu.limits = None), None);
        assert_eq!(without(|container| container.threads = None), None);
        // The limits of a container that hardly waits are not read.
        let calm = ContainerRates { cpu: CpuRates::default(), ..container(1.0, 0.001, 0.0, None) };
        assert!(wait(&calm).0 < 0.001);
    }
}
