//! The quartile that reduces the contention of many containers to one number.

use crate::waiting::Wait;

/// Share of all demand that may have a higher contention than the result.
const UPPER: f64 = 0.25;

/// Floor of the demand of all VMs: this share of the node's CPUs, but at most this number of CPUs.
/// Below the floor, contention is 0. From the floor to twice the floor, it is scaled from 0 to its
/// full value.
const DEMAND_FLOOR_SHARE: f64 = 0.02;
const DEMAND_FLOOR_CPUS: f64 = 0.5;

/// The upper quartile of a node's containers for one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quartile {
    pub contention: f64,
    /// Waiting of the average vCPU of the container that `contention` is taken from.
    pub ready: f64,
    /// Demand of all containers.
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

    /// Whether as much unknown demand can have a higher contention than this, as far as it is not
    /// allowed to.
    pub fn may_be_exceeded_by(&self, unknown: f64) -> bool {
        unknown > 0.0 && unknown >= UPPER * (self.demand + unknown)
    }

    /// CPU contention of a node with this number of CPUs and this share of steal, 0 to 1.
    #[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of CPUs")]
    pub fn cpu_contention(&self, cpus: Option<u64>, steal: f64) -> f64 {
        let floor = (DEMAND_FLOOR_SHARE * cpus.unwrap_or(1) as f64).min(DEMAND_FLOOR_CPUS);
        self.contention.max(steal) * (self.demand / floor - 1.0).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::Ratio;

    fn quartile(weighted: Vec<(f64, f64)>) -> f64 {
        let wait = |(value, weight)| {
            Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::of(value, 1.0).unwrap(), weight)
        };
        Quartile::of(weighted.into_iter().map(wait).collect()).contention
    }

    #[test]
    fn one_two_three_and_four_values() {
        let equal = |values: &[f64]| quartile(values.iter().map(|&value| (value, 1.0)).collect());
        assert_eq!([equal(&[]), quartile(vec![(0.4, 0.0)])], [0.0; 2]);
        assert_eq!([equal(&[0.4]), equal(&[0.0, 0.4]), equal(&[0.1, 0.4, 0.2])], [0.4; 3]);
        assert_eq!(equal(&[0.1, 0.9, 0.3, 0.2]), 0.3);
    }

    #[test]
    fn weight_decides_and_not_the_number() {
        let small = |count| std::iter::repeat_n((0.0, 0.1), count);
        // A starved large VM among small ones decides. A small one among large ones does not, and
        // idle ones do not change the result.
        assert_eq!(quartile(small(20).chain([(0.8, 4.0)]).collect()), 0.8);
        assert_eq!(quartile(vec![(0.9, 0.1), (0.1, 4.0)]), 0.1);
        let idle = std::iter::repeat_n((0.0, 0.0), 50);
        assert_eq!(quartile(idle.chain([(0.5, 1.0)]).collect()), 0.5);
    }
}
