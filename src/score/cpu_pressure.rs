//! Computes the CPU wait of containers from their pressure, if their threads are not read. Pure.
//!
//! `some` of `cpu.pressure` is an average over the CPUs on which a container is active. It does not
//! show on how many CPUs the container waits. So the *least* wait of each container is computed, as
//! if it waited on as few CPUs as its usage allows. All of these are scaled by one factor, so that
//! they add up to the node's run delay, which includes every task. The waiting that quotas explain,
//! and that of containers whose threads are read, is subtracted from it first.

use super::run_delay::{allowed_cpus, quota_left};
use super::wait::{NEGLIGIBLE, Wait};
use crate::rates::{CpuRates, Ratio, TickRates};
use crate::sample::CpuSource;

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

/// The factor of a window, for workloads whose threads are not read. It is 1 if the node's run
/// delay or the wait of a workload is unknown.
pub(super) fn scale(rates: &TickRates) -> f64 {
    let factor = || {
        let (mut least, mut explained) = (0.0, 0.0);
        let mut add = |workload: &CpuRates| {
            let bounds = Bounds::of(workload, rates.cpus)?;
            least += bounds.least;
            explained += bounds.throttled;
            Some(())
        };
        rates.others.as_ref()?.iter().try_for_each(&mut add)?;
        let containers = rates.containers.as_ref()?;
        match rates.cpu_source {
            CpuSource::Psi => containers.iter().try_for_each(|one| add(&one.cpu))?,
            CpuSource::RunDelay => {
                let delays = containers.iter().map(|one| Some(one.threads?.delayed));
                explained += delays.sum::<Option<f64>>()?;
            }
        }
        let by_node = rates.run_delay? - explained;
        (by_node > least && least > 0.0).then(|| by_node / least)
    };
    factor().unwrap_or(1.0)
}

/// The CPU wait of a container; `None` if a required file could not be read.
pub(super) fn cpu_wait(cpu: &CpuRates, cpus: Option<u64>, scale: f64) -> Option<Wait> {
    let (used, bounds) = (cpu.usage?, Bounds::of(cpu, cpus)?);
    let waited = (bounds.least * scale).min(bounds.most);
    Wait::of_cpu(used, waited, None, bounds.raw, bounds.own_limit)
}

impl Bounds {
    fn of(cpu: &CpuRates, cpus: Option<u64>) -> Option<Self> {
        let raw = cpu.waits.some?;
        if raw.get() < NEGLIGIBLE {
            let own_limit = Ratio::ZERO;
            return Some(Self { least: 0.0, most: 0.0, throttled: 0.0, raw, own_limit });
        }
        let (used, throttled, limits) = (cpu.usage?, cpu.throttled?, cpu.limits.as_ref()?);
        let cpus = allowed_cpus(limits, cpus);
        // Throttled time is summed over CPUs. Divided by the CPUs that were used or throttled, but
        // at least one, it is a share of time.
        let own = (throttled / (used + throttled).max(1.0)).min(raw.get());
        let some = raw.get() - own;
        // A CPU on which the container is always runnable runs it for 1 - full of the time.
        let runs = 1.0 - (cpu.waits.full?.get() - own).max(0.0);
        let least = some * (used / runs.max(f64::EPSILON)).clamp(1.0, cpus);
        #[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of tasks")]
        let idle_tasks = limits.tasks.map(|tasks| (tasks as f64 - used).max(0.0));
        let most = quota_left(cpu)?.min(idle_tasks.unwrap_or(f64::INFINITY));
        let by_node = if least > most { most / least } else { 1.0 };
        let own_limit = raw.get() - some * by_node;
        // The more of its CPUs are throttled, the more of its tasks queue on them.
        let crowded = ((used + throttled) / cpus).min(1.0) * own_limit / raw.get();
        let queued = if throttled > 0.0 { crowded * idle_tasks.unwrap_or(0.0) } else { 0.0 };
        Some(Self {
            least: least.min(most),
            most,
            throttled: throttled.max(queued),
            raw,
            own_limit: Ratio::of(own_limit, 1.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{ContainerRates, ThreadRates};
    use crate::score::tests::{limits, node, vm};

    fn workload(some: f64, used: f64, throttled: f64, quota: Option<f64>, tasks: u64) -> CpuRates {
        let limits = Some(limits(quota, Some(tasks)));
        CpuRates { limits, ..vm(1, some, used, throttled).cpu }
    }

    fn rates(run_delay: Option<f64>, vms: &[CpuRates], others: &[CpuRates]) -> TickRates {
        let container =
            |cpu: &CpuRates| ContainerRates { cpu: cpu.clone(), ..vm(1, 0.0, 0.0, 0.0) };
        let others = Some(others.to_vec());
        TickRates { run_delay, others, ..node(vms.iter().map(container).collect()) }
    }

    fn waited(rates: &TickRates, cpu: &CpuRates) -> f64 {
        let wait = cpu_wait(cpu, rates.cpus, scale(rates)).unwrap();
        wait.demand - cpu.usage.unwrap()
    }

    #[test]
    fn all_together_waited_for_what_the_node_counted() {
        let vms = [workload(0.2, 0.8, 0.0, None, 9), workload(0.4, 0.6, 0.0, None, 9)];
        let system = workload(0.1, 0.1, 0.0, None, 9);
        // No file but its pressure is read of a workload that doesn't wait.
        let calm = CpuRates { waits: vm(1, 0.0, 0.0, 0.0).cpu.waits, ..CpuRates::default() };
        let node = rates(Some(2.1), &vms, &[system, calm]);
        assert!((waited(&node, &vms[0]) - 0.6).abs() < 1e-9);
        assert!((waited(&node, &vms[1]) - 1.2).abs() < 1e-9);
        // Never less than the least wait, and never more than their tasks can wait.
        assert!((waited(&rates(Some(0.0), &vms, &[]), &vms[0]) - 0.2).abs() < 1e-9);
        assert!((waited(&rates(Some(1e6), &vms, &[]), &vms[0]) - 8.2).abs() < 1e-9);
        // Without the node's run delay, the least wait is used.
        assert!((waited(&rates(None, &vms, &[]), &vms[0]) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn what_the_threads_of_vms_did_not_wait_is_left_for_the_others() {
        let others = [workload(0.2, 0.8, 0.0, None, 9)];
        let mut node = rates(Some(2.1), &[workload(0.9, 0.6, 0.0, None, 9)], &others);
        node.cpu_source = CpuSource::RunDelay;
        assert!((waited(&node, &others[0]) - 0.2).abs() < 1e-9, "threads were not read");
        let containers = node.containers.as_mut().unwrap();
        containers[0].threads = Some(ThreadRates { ran: 0.6, delayed: 1.5, vcpus: None });
        assert!((waited(&node, &others[0]) - 0.6).abs() < 1e-9);
    }

    #[test]
    fn a_queue_behind_a_quota_is_put_on_no_vm() {
        // As measured: forty threads with one CPU waited for 38.8 of 39.3, three VMs for 0.15 each.
        let vms = [(); 3].map(|()| workload(0.09, 0.4, 0.0, None, 4));
        let batch = workload(0.95, 1.0, 3.0, Some(1.0), 41);
        let node = rates(Some(39.3), &vms, &[batch]);
        assert!((0.08..0.2).contains(&waited(&node, &vms[0])), "{}", waited(&node, &vms[0]));
    }
}
