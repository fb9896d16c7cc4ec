//! Reduces the waiting of many workloads to that of the node: the mean over the half of their demand
//! that waits most. It changes continuously with each workload's waiting and demand, so that no small
//! difference decides.

use crate::contract::Level;
use crate::waiting::Wait;

/// Share of all demand that is averaged.
const HALF: f64 = 0.5;

/// Least demand that is averaged, in CPUs: less than this, of VMs that are nearly idle, is not worth
/// a move.
const LEAST_CPUS: f64 = 0.5;

/// The waiting of a node's workloads for one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorstHalf {
    /// Mean contention of the half of the demand that has the highest.
    pub contention: f64,
    /// Demand of all workloads.
    pub demand: f64,
}

impl WorstHalf {
    /// For memory or I/O. All are 0 without demand.
    pub fn of(waits: &[Wait]) -> Self {
        Self::of_at_least(0.0, waits, |_| 1.0)
    }

    /// For CPU, as far as it counts for a level: see [`Level::full_demand`]. For `Low`, all counts. The node's
    /// hypervisor gave the share `steal` of its demand to other guests.
    pub fn of_cpu(level: Level, waits: &[Wait], steal: f64) -> Self {
        // Of any demand, even none, the quotient by 0 is not less than 1.
        let part = |wait: &Wait| (wait.demand / level.full_demand()).min(1.0);
        let Self { contention, demand } = Self::of_at_least(LEAST_CPUS, waits, part);
        // Steal delays the part of the demand that does not wait for this node.
        let delayed = steal * (demand * HALF / LEAST_CPUS).min(1.0);
        Self { contention: 1.0 - (1.0 - contention) * (1.0 - delayed), demand }
    }

    /// The contention of a workload counts by its `part`, 0 to 1.
    fn of_at_least(least: f64, waits: &[Wait], part: impl Fn(&Wait) -> f64) -> Self {
        let demand: f64 = waits.iter().map(|wait| wait.demand).sum();
        let half = (HALF * demand).max(least);
        let counted = |wait: &Wait| (wait.contention.get() * part(wait), wait.demand);
        let mut counted: Vec<(f64, f64)> = waits.iter().map(counted).collect();
        counted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut left, mut sum) = (half, 0.0);
        for (contention, demand) in counted {
            let averaged = demand.min(left);
            left -= averaged;
            sum += averaged * contention;
        }
        let contention = if half > 0.0 { (sum / half).clamp(0.0, 1.0) } else { 0.0 };
        Self { contention, demand }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::Ratio;

    /// Workloads with these contentions and demands.
    fn waits(weighted: impl IntoIterator<Item = (f64, f64)>) -> Vec<Wait> {
        let wait = |(value, weight)| {
            Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::of(value, 1.0).unwrap(), weight)
        };
        weighted.into_iter().map(wait).collect()
    }

    fn rounded(worst: WorstHalf) -> f64 {
        (worst.contention * 1e6).round() / 1e6
    }

    fn contention(weighted: impl IntoIterator<Item = (f64, f64)>) -> f64 {
        rounded(WorstHalf::of(&waits(weighted)))
    }

    fn of_cpu(level: Level, weighted: impl IntoIterator<Item = (f64, f64)>, steal: f64) -> f64 {
        rounded(WorstHalf::of_cpu(level, &waits(weighted), steal))
    }

    #[test]
    fn the_half_of_the_demand_that_waits_most_is_averaged() {
        let equal = |values: &[f64]| contention(values.iter().map(|&value| (value, 1.0)));
        assert_eq!([equal(&[]), contention([(0.4, 0.0)])], [0.0; 2]);
        assert_eq!([equal(&[0.4]), equal(&[0.0, 0.4])], [0.4; 2]);
        assert_eq!(equal(&[0.1, 0.9, 0.3, 0.2]), 0.6);
        // A calm VM that arrives changes it by as much as it is larger.
        assert_eq!([equal(&[0.6, 0.0, 0.0]), equal(&[0.6, 0.0, 0.0, 0.0])], [0.4, 0.3]);
    }

    #[test]
    fn weight_decides_and_not_the_number() {
        let small = |count| std::iter::repeat_n((0.0, 0.1), count);
        // A starved large VM among small ones decides. A small one among large ones does not, and
        // idle ones do not change the result.
        assert_eq!(contention(small(20).chain([(0.8, 4.0)])), 0.8);
        assert_eq!(contention([(1.0, 0.05), (0.0, 0.95)]), 0.1);
        assert_eq!(contention([(1.0, 0.01), (0.0, 0.99)]), 0.02);
        let idle = std::iter::repeat_n((0.0, 0.0), 50);
        assert_eq!(contention(idle.chain([(0.5, 1.0)])), 0.5);
    }

    #[test]
    fn little_demand_for_cpus_counts_in_part() {
        let cpu = |demand| of_cpu(Level::Low, [(0.5, demand)], 0.0);
        assert_eq!([0.0, 0.25, 0.5, 1.0, 4.0].map(cpu), [0.0, 0.25, 0.5, 0.5, 0.5]);
        // One without demand hides no other.
        assert_eq!(of_cpu(Level::Low, [(1.0, 0.0), (0.5, 0.25)], 0.0), 0.25);
    }

    #[test]
    fn a_vm_of_little_demand_counts_for_a_level_in_part_and_hides_no_other() {
        let both = |weighted: &[(f64, f64)]| {
            Level::RAISED.map(|level| of_cpu(level, weighted.iter().copied(), 0.0))
        };
        let small = |count| vec![(0.5, 0.08); count];
        assert_eq!(both(&[(0.3, 3.2)]), [0.3, 0.3]);
        assert_eq!(both(&small(40)), [0.08, 0.12]);
        // Small ones whose contention is higher do not stand for a large one that waits.
        let beside = [small(40), vec![(0.3, 3.2)]].concat();
        assert_eq!(of_cpu(Level::Low, beside.clone(), 0.0), 0.5);
        assert_eq!(both(&beside), [0.3, 0.3]);
    }

    #[test]
    fn steal_comes_on_top_of_what_workloads_wait_for() {
        let with_steal = |level, demand| of_cpu(level, [(0.5, demand)], 0.2);
        assert_eq!([0.0, 1.0].map(|demand| with_steal(Level::Low, demand)), [0.0, 0.6]);
        assert_eq!(with_steal(Level::Medium, 1.0), 0.6);
    }
}
