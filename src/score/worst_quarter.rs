//! Reduces the waiting of many workloads to that of the node: the mean over the quarter of their
//! demand that waits most. It changes continuously with every workload's waiting and demand, so
//! that no small difference decides.

use crate::waiting::{LEAST_CPUS, Wait};

/// Share of all demand that is averaged.
const QUARTER: f64 = 0.25;

/// The waiting of a node's workloads for one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorstQuarter {
    /// Mean contention of the quarter of the demand that has the highest.
    pub contention: f64,
    /// Mean CPU ready of the same demand.
    pub ready: f64,
    /// Demand of all workloads.
    pub demand: f64,
}

impl WorstQuarter {
    /// For memory or I/O. All are 0 without demand.
    pub fn of(waits: Vec<Wait>) -> Self {
        Self::of_at_least(0.0, waits)
    }

    /// For CPU, on a node whose hypervisor gave this share of its demand to other guests.
    pub fn of_cpu(waits: Vec<Wait>, steal: f64) -> Self {
        let worst = Self::of_at_least(LEAST_CPUS, waits);
        // Steal delays only what is demanded.
        let demanded = (worst.demand * QUARTER / LEAST_CPUS).min(1.0);
        let with_steal = |waiting: f64| 1.0 - (1.0 - waiting) * (1.0 - steal * demanded);
        let (contention, ready) = (with_steal(worst.contention), with_steal(worst.ready));
        Self { contention, ready, ..worst }
    }

    fn of_at_least(least: f64, mut waits: Vec<Wait>) -> Self {
        let demand: f64 = waits.iter().map(|wait| wait.demand).sum();
        let quarter = (QUARTER * demand).max(least);
        waits.sort_by(|a, b| b.contention.get().total_cmp(&a.contention.get()));
        let (mut left, mut contention, mut ready) = (quarter, 0.0, 0.0);
        for wait in waits {
            let part = wait.demand.min(left);
            contention += part * wait.contention.get();
            ready += part * wait.node.get();
            left -= part;
        }
        let mean = |sum: f64| if quarter > 0.0 { (sum / quarter).min(1.0) } else { 0.0 };
        Self { contention: mean(contention), ready: mean(ready), demand }
    }

    /// Whether this much unknown demand, of which all may wait, can be the whole quarter.
    pub fn may_be(&self, unknown: f64) -> bool {
        unknown > 0.0 && unknown >= QUARTER * (self.demand + unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::Ratio;

    fn waits(weighted: impl IntoIterator<Item = (f64, f64)>) -> Vec<Wait> {
        let wait = |(value, weight)| {
            Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::of(value, 1.0).unwrap(), weight)
        };
        weighted.into_iter().map(wait).collect()
    }

    fn contention(weighted: impl IntoIterator<Item = (f64, f64)>) -> f64 {
        (WorstQuarter::of(waits(weighted)).contention * 1e6).round() / 1e6
    }

    #[test]
    fn one_to_five_values() {
        let equal = |values: &[f64]| contention(values.iter().map(|&value| (value, 1.0)));
        assert_eq!([equal(&[]), contention([(0.4, 0.0)])], [0.0; 2]);
        assert_eq!([equal(&[0.4]), equal(&[0.0, 0.4]), equal(&[0.1, 0.4, 0.2])], [0.4; 3]);
        assert_eq!(equal(&[0.1, 0.9, 0.3, 0.2]), 0.9);
        assert_eq!(equal(&[0.0, 0.9, 0.3, 0.2, 0.1]), 0.78);
    }

    #[test]
    fn weight_counts_and_not_the_number() {
        let small = |count| std::iter::repeat_n((0.0, 0.1), count);
        assert_eq!(contention(small(20).chain([(0.8, 4.0)])), 0.8);
        let idle = std::iter::repeat_n((0.0, 0.0), 50);
        assert_eq!(contention(idle.chain([(0.5, 1.0)])), 0.5);
    }

    #[test]
    fn a_small_vm_changes_no_level_alone() {
        let starved = |share: f64| contention([(1.0, share), (0.0, 1.0 - share)]);
        assert_eq!([starved(0.0499) < 0.2, starved(0.01) < 0.05], [true; 2]);
        // Without a jump, it decides more the larger it is.
        assert_eq!([0.05, 0.125, 0.25, 0.3].map(starved), [0.2, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn little_demand_for_cpus_counts_in_part() {
        let cpu = |demand| WorstQuarter::of_cpu(waits([(0.5, demand)]), 0.0).contention;
        let rounded = |demand| (cpu(demand) * 1e6).round() / 1e6;
        assert_eq!([0.0, 0.05, 0.25, 4.0].map(rounded), [0.0, 0.1, 0.5, 0.5]);
    }

    #[test]
    fn steal_comes_on_top_of_what_workloads_wait_for() {
        let with_steal = |demand| WorstQuarter::of_cpu(waits([(0.5, demand)]), 0.2);
        let WorstQuarter { contention, ready, .. } = with_steal(1.0);
        assert_eq!((contention, ready), (0.6, 0.6));
        assert_eq!(with_steal(0.0).contention, 0.0);
    }
}
