//! CPU wait of containers by their pressure, where their threads can't be seen. Pure.
//!
//! `some` of `cpu.pressure` is an average over the CPUs on which a container is active. It says how
//! much the container waits where it is, and not on how many CPUs. So each container's *least* wait
//! is taken, as if it waited on as few CPUs as its usage allows, and all are scaled by one factor:
//! with it they add up to the node's run delay, which counts every task, less what quotas explain.

use super::run_delay::{allowed_cpus, quota_left};
use super::wait::{NEGLIGIBLE, Wait};
use crate::rates::{CpuRates, Ratio, TickRates};

/// What one container's own files say of its wait, in CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    /// On as few CPUs as its usage allows.
    least: f64,
    /// No more tasks can wait, and the quota leaves no more.
    most: f64,
    /// Waiting that its quota explains, which the node counts as well.
    throttled: f64,
    /// Pressure, and the part of it that its quota explains.
    raw: Ratio,
    own_limit: Ratio,
}

/// The factor of a window; 1 where the node's run delay or another workload is not known.
pub(super) fn scale(rates: &TickRates) -> f64 {
    let factor = || {
        let containers = rates.containers.as_ref()?.iter().map(|one| &one.cpu);
        let (mut least, mut throttled) = (0.0, 0.0);
        for workload in containers.chain(rates.others.as_ref()?) {
            let bounds = Bounds::of(workload, rates.cpus)?;
            least += bounds.least;
            throttled += bounds.throttled;
        }
        let by_node = rates.run_delay? - throttled;
        (by_node > least && least > 0.0).then(|| by_node / least)
    };
    factor().unwrap_or(1.0)
}

/// What a container waited for; `None` where a needed file could not be read.
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
        // Throttled time is summed over CPUs: over those that were used or throttled, and one at the
        // least, it is a share of time.
        let own = (throttled / (used + throttled).max(1.0)).min(raw.get());
        let some = raw.get() - own;
        // A CPU on which the container always wants to run, runs it for 1 - full of the time.
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
    use crate::rates::ContainerRates;
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
        // Never less than their own files say, and never more than their tasks can.
        assert!((waited(&rates(Some(0.0), &vms, &[]), &vms[0]) - 0.2).abs() < 1e-9);
        assert!((waited(&rates(Some(1e6), &vms, &[]), &vms[0]) - 8.2).abs() < 1e-9);
        // Without the node's count the least stands.
        assert!((waited(&rates(None, &vms, &[]), &vms[0]) - 0.2).abs() < 1e-9);
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
