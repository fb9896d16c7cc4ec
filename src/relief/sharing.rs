//! Weighted max-min fair sharing of CPUs, as the kernel's scheduler shares them between cgroups.

/// A demand for CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    /// CPUs that it gets in any case.
    pub(super) least: f64,
    /// CPUs that it can use.
    pub(super) most: f64,
    pub(super) weight: f64,
}

/// Distributes `cpus` in addition to the `least` of each. Demands with the fewest CPUs for their
/// weight get CPUs first, until they have as many as the next ones, or their `most`. Returns the
/// CPUs of each, with its `least`.
pub(super) fn fair_shares(wants: &[Want], cpus: f64) -> Vec<f64> {
    let begin = wants.iter().map(|want| (want.least / want.weight, want.weight));
    let end = wants.iter().map(|want| (want.most.max(want.least) / want.weight, -want.weight));
    let mut changes: Vec<(f64, f64)> = begin.chain(end).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    // CPUs per unit of weight. It rises until all CPUs are distributed.
    let (mut level, mut growing, mut left) = (0.0, 0.0, cpus);
    for (next, weight) in changes {
        let taken = growing * (next - level);
        if taken > left {
            level += left / growing;
            break;
        }
        (level, growing, left) = (next, growing + weight, left - taken);
    }
    let share = |want: &Want| (want.weight * level).max(want.least).min(want.most.max(want.least));
    wants.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want(least: f64, most: f64, weight: f64) -> Want {
        Want { least, most, weight }
    }

    fn shares(wants: &[Want], cpus: f64) -> Vec<f64> {
        fair_shares(wants, cpus).iter().map(|share| (share * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn small_wants_are_met_and_the_rest_is_shared_by_weight() {
        let wants = [want(0.0, 0.5, 1.0), want(0.0, 4.0, 1.0), want(0.0, 4.0, 3.0)];
        assert_eq!(shares(&wants, 4.5), [0.5, 1.0, 3.0]);
        assert_eq!(shares(&wants, 100.0), [0.5, 4.0, 4.0]);
        assert_eq!(shares(&wants, 0.0), [0.0; 3]);
        assert_eq!(shares(&[], 1.0), [0.0; 0]);
    }

    #[test]
    fn what_each_has_already_stays_and_counts() {
        let wants = [want(1.0, 4.0, 1.0), want(0.0, 4.0, 1.0)];
        assert_eq!(shares(&wants, 0.5), [1.0, 0.5]);
        assert_eq!(shares(&wants, 2.0), [1.5, 1.5]);
    }

    proptest! {
        #[test]
        fn all_cpus_are_given_away_or_all_wants_are_met(
            wants in prop::collection::vec((0.0..4.0, 0.0..8.0, 1.0..1000.0), 1..20),
            cpus in 0.0..40.0_f64,
        ) {
            let wants: Vec<Want> =
                wants.iter().map(|&(least, more, weight)| want(least, least + more, weight)).collect();
            let sum = |of: fn(&Want) -> f64| wants.iter().map(of).sum::<f64>();
            let given = fair_shares(&wants, cpus).iter().sum::<f64>() - sum(|want| want.least);
            let most = sum(|want| want.most - want.least);
            prop_assert!((given - cpus.min(most)).abs() < 1e-6, "{given} of {cpus}, {most} wanted");
        }
    }
}
