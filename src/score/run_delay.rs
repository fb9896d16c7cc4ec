//! CPU wait of a container by the run delay of its threads. Pure.

use super::wait::Wait;
use crate::rates::{ContainerRates, CpuRates, Ratio, ThreadRates};
use crate::sample::CpuLimits;

/// A container whose threads wait for less than this many CPUs doesn't wait: its limits are not read.
const NEGLIGIBLE: f64 = 0.01;

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

/// CPUs' worth of delay that throttling explains. While one of its CPUs is throttled, the threads
/// wait that queue there: on average (ran + delayed) / CPUs, and one at least. CPUs on which the
/// container runs are not throttled; Linux 7.2 counts some of that time, too.
fn own_delay(cpu: &CpuRates, threads: ThreadRates, cpus: Option<u64>) -> Option<f64> {
    let (throttled, limits) = (cpu.throttled?, cpu.limits?);
    let cpus = allowed_cpus(&limits, cpus);
    let throttled = throttled.min((cpus - threads.ran).max(0.0));
    let queued = (threads.ran + threads.delayed) / cpus;
    Some((throttled * queued.max(1.0)).min(threads.delayed))
}

/// CPUs that the quota leaves unused: a container that gets all that its quota allows does not wait
/// for the node.
pub(super) fn quota_left(cpu: &CpuRates) -> Option<f64> {
    match cpu.limits?.quota() {
        Some(quota) => Some((quota - cpu.usage?).max(0.0)),
        None => Some(f64::INFINITY),
    }
}

/// CPUs on which a container may run.
#[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of CPUs")]
pub(super) fn allowed_cpus(limits: &CpuLimits, cpus: Option<u64>) -> f64 {
    let node = cpus.unwrap_or(1).max(1);
    limits.cpus.filter(|own| *own > 0).map_or(node, |own| own.min(node)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::tests::{limits, vm};
    use proptest::prelude::*;

    /// A VM whose threads ran and waited for so many CPUs.
    fn container(ran: f64, delayed: f64, throttled: f64, quota: Option<f64>) -> ContainerRates {
        let cpu = CpuRates {
            usage: Some(ran),
            throttled: Some(throttled),
            limits: Some(limits(quota, None)),
            ..CpuRates::default()
        };
        let threads = Some(ThreadRates { ran, delayed, vcpus: None });
        ContainerRates { cpu, threads, ..vm(1, 0.0, 0.0, 0.0) }
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
        // A VM that never runs.
        assert_eq!(wait(&container(0.0, 2.0, 0.0, None)), (1.0, 2.0));
    }

    #[test]
    fn cpu_ready_is_the_wait_of_the_average_vcpu() {
        let four_vcpus = |mut container: ContainerRates| {
            container.threads.as_mut().unwrap().vcpus = Some(4.0);
            cpu_wait(&container, Some(4)).unwrap()
        };
        let half = four_vcpus(container(1.0, 1.0, 0.0, None));
        assert_eq!((half.raw.get(), half.node.get(), half.own_limit.get()), (0.25, 0.25, 0.0));
        // Half of what little it wants is little of its vCPUs' time.
        let little = four_vcpus(container(0.02, 0.02, 0.0, None));
        assert_eq!((little.contention.get(), little.node.get()), (0.5, 0.005));
    }

    #[test]
    fn throttling_is_not_the_nodes() {
        // One thread with a quota of a fifth: for the rest of the time it is throttled.
        let (contention, demand) = wait(&container(0.2, 0.8, 0.8, Some(0.2)));
        assert!(contention < 1e-9 && (demand - 0.2).abs() < 1e-9, "{contention} {demand}");
        // Eight threads on four CPUs: two wait behind each throttled one.
        let (contention, demand) = wait(&container(0.5, 7.0, 3.5, Some(9.0)));
        assert_eq!((contention, demand), (0.4375 / 0.9375, 0.9375));
        // As measured on two CPUs of Linux 7.2: it got 0.36 of a CPU less than its quota allows, and
        // more was counted as throttled than it left of the CPUs.
        let fills = cpu_wait(&container(1.64, 2.38, 1.05, Some(2.0)), Some(2)).unwrap();
        assert!((fills.contention.get() - 0.18).abs() < 1e-9, "{fills:?}");
        // A VM that gets all that its quota allows does not wait for the node, one that gets half
        // of it does.
        assert_eq!(wait(&container(2.0, 2.0, 0.0, Some(2.0))).0, 0.0);
        assert_eq!(wait(&container(0.5, 1.5, 0.0, Some(1.0))), (0.5, 1.0));
    }

    #[test]
    fn what_was_not_read_is_absent() {
        let known = container(1.0, 1.0, 0.0, Some(4.0));
        for cpu in [
            CpuRates { usage: None, ..known.cpu },
            CpuRates { throttled: None, ..known.cpu },
            CpuRates { limits: None, ..known.cpu },
        ] {
            assert_eq!(cpu_wait(&ContainerRates { cpu, ..known.clone() }, Some(4)), None);
        }
        assert_eq!(cpu_wait(&ContainerRates { threads: None, ..known }, Some(4)), None);
        // The limits of a container that hardly waits are not read.
        let calm = ContainerRates { cpu: CpuRates::default(), ..container(1.0, 0.001, 0.0, None) };
        assert!(wait(&calm).0 < 0.001);
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_grows_with_the_delay(
            (ran, delayed, more) in (0.0..300.0, 0.0..1e5, 0.0..1e5),
            throttled in 0.0..300.0,
            quota in proptest::option::of(0.01..300.0),
            cpus in proptest::option::of(0u64..300),
        ) {
            let wait = |delayed| cpu_wait(&container(ran, delayed, throttled, quota), cpus).unwrap();
            let (low, high) = (wait(delayed), wait(delayed + more));
            prop_assert!(low.demand.is_finite() && low.demand >= 0.0);
            prop_assert!(low.contention.get() <= 1.0);
            if throttled == 0.0 {
                prop_assert!(low.contention.get() <= high.contention.get() + 1e-9);
            }
        }
    }
}
