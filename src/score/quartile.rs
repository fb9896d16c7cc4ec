//! The quartile that reduces the waiting of many workloads to that of the node.

use crate::waiting::Wait;

/// Share of all demand that may have a higher contention than the result.
const UPPER: f64 = 0.25;

/// Floor of the demand of all VMs: this share of the node's CPUs, but at most this number of CPUs.
/// Below the floor, contention is 0. From the floor to twice the floor, it is scaled from 0 to its
/// full value.
const DEMAND_FLOOR_SHARE: f64 = 0.02;
const DEMAND_FLOOR_CPUS: f64 = 0.5;

/// The upper quartile of a node's workloads for one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quartile {
    pub contention: f64,
    /// CPU ready of the workload that `contention` is taken from.
    pub ready: f64,
    /// Demand of all workloads.
    pub demand: f64,
}

impl Quartile {
    /// The smallest contention that three quarters of the demand do not exceed (Hyndman and Fan's
    /// type 1): of two equal demands it is the larger contention, of four the second largest. 0
    /// without demand.
    pub fn of(mut waits: Vec<Wait>) -> Self {
        let demand: f64 = waits.iter().map(|wait| wait.demand).sum();
        waits.sort_by(|a, b| b.contention.get().total_cmp(&a.contention.get()));
        // A margin for rounding errors of the sums.
        let (allowed, mut above) = (UPPER * demand * (1.0 + 1e-9), 0.0);
        let found = waits.into_iter().find(|wait| {
            above += wait.demand;
            above > allowed
        });
        let (contention, ready) =
            found.map_or((0.0, 0.0), |wait| (wait.contention.get(), wait.node.get()));
        Self { contention, ready, demand }
    }

    /// For CPU, on a node with this number of CPUs, whose hypervisor gave this share of its demand to
    /// other guests. Steal delays the part of the demand that does not wait for this node.
    pub fn of_cpu(waits: Vec<Wait>, cpus: f64, steal: f64) -> Self {
        let Self { contention, ready, demand } = Self::of(waits);
        let floor = (DEMAND_FLOOR_SHARE * cpus).min(DEMAND_FLOOR_CPUS);
        let counts = (demand / floor - 1.0).clamp(0.0, 1.0);
        let with_steal = |waiting: f64| counts * (1.0 - (1.0 - waiting) * (1.0 - steal));
        Self { contention: with_steal(contention), ready: with_steal(ready), demand }
    }

    /// Whether as much unknown demand can have a higher contention than this, as far as it is not
    /// allowed to.
    pub fn may_be_exceeded_by(&self, unknown: f64) -> bool {
        unknown > 0.0 && unknown >= UPPER * (self.demand + unknown)
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

    fn quartile(weighted: impl IntoIterator<Item = (f64, f64)>) -> f64 {
        Quartile::of(waits(weighted)).contention
    }

    #[test]
    fn one_two_three_and_four_values() {
        let equal = |values: &[f64]| quartile(values.iter().map(|&value| (value, 1.0)));
        assert_eq!([equal(&[]), quartile([(0.4, 0.0)])], [0.0; 2]);
        assert_eq!([equal(&[0.4]), equal(&[0.0, 0.4]), equal(&[0.1, 0.4, 0.2])], [0.4; 3]);
        assert_eq!(equal(&[0.1, 0.9, 0.3, 0.2]), 0.3);
    }

    #[test]
    fn weight_decides_and_not_the_number() {
        let small = |count| std::iter::repeat_n((0.0, 0.1), count);
        // A starved large VM among small ones decides. A small one among large ones does not, and
        // idle ones do not change the result.
        assert_eq!(quartile(small(20).chain([(0.8, 4.0)])), 0.8);
        assert_eq!(quartile([(0.9, 0.1), (0.1, 4.0)]), 0.1);
        let idle = std::iter::repeat_n((0.0, 0.0), 50);
        assert_eq!(quartile(idle.chain([(0.5, 1.0)])), 0.5);
    }

    #[test]
    fn little_demand_for_cpus_counts_in_part() {
        let cpu = |demand| Quartile::of_cpu(waits([(0.5, demand)]), 100.0, 0.0).contention;
        assert_eq!([0.0, 0.5, 0.75, 1.0, 4.0].map(cpu), [0.0, 0.0, 0.25, 0.5, 0.5]);
    }

    #[test]
    fn steal_comes_on_top_of_what_workloads_wait_for() {
        let with_steal = |demand| Quartile::of_cpu(waits([(0.5, demand)]), 4.0, 0.2);
        let Quartile { contention, ready, .. } = with_steal(1.0);
        assert_eq!((contention, ready), (0.6, 0.6));
        assert_eq!(with_steal(0.0).contention, 0.0);
    }
}
