//! The quantile that makes one number of many VMs.

/// The part of all that is wanted that may be worse off than the answer.
const UPPER: f64 = 0.25;

/// The upper quartile of values by their weights: the smallest value that is not exceeded by three
/// quarters of the weight (the inverse of the weighted distribution function, Hyndman and Fan's
/// type 1). One value is its own quartile; of two equal weights it is the larger, of four the
/// second largest. `None` without weight.
pub(super) fn upper_quartile(mut weighted: Vec<(f64, f64)>) -> Option<f64> {
    let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    if total <= 0.0 {
        return None;
    }
    weighted.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    // A hair's breadth for sums that are not quite equal in binary.
    let allowed = UPPER * total * (1.0 + 1e-9);
    let mut above = 0.0;
    let reached = weighted.iter().find(|(_, weight)| {
        above += weight;
        above > allowed
    });
    reached.map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_two_three_and_four_values() {
        let equal = |values: &[f64]| upper_quartile(values.iter().map(|&v| (v, 1.0)).collect());
        assert_eq!(equal(&[]), None);
        assert_eq!(equal(&[0.4]), Some(0.4));
        assert_eq!(equal(&[0.0, 0.4]), Some(0.4));
        assert_eq!(equal(&[0.1, 0.4, 0.2]), Some(0.4));
        assert_eq!(equal(&[0.1, 0.9, 0.3, 0.2]), Some(0.3));
    }

    #[test]
    fn weight_decides_and_not_the_number() {
        let small = |count| std::iter::repeat_n((0.0, 0.1), count);
        // One starved large VM among small ones is seen, one small among large ones decides
        // nothing, and idle ones dilute nothing.
        assert_eq!(upper_quartile(small(20).chain([(0.8, 4.0)]).collect()), Some(0.8));
        assert_eq!(upper_quartile(vec![(0.9, 0.1), (0.1, 4.0)]), Some(0.1));
        let idle = std::iter::repeat_n((0.0, 0.0), 50);
        assert_eq!(upper_quartile(idle.chain([(0.5, 1.0)]).collect()), Some(0.5));
    }

    proptest! {
        #[test]
        fn it_is_one_of_the_values(
            weighted in proptest::collection::vec((0.0..=1.0, 0.0..=100.0), 0..20)
        ) {
            let quartile = upper_quartile(weighted.clone());
            let has_weight = weighted.iter().any(|(_, weight)| *weight > 0.0);
            prop_assert_eq!(quartile.is_some(), has_weight);
            if let Some(quartile) = quartile {
                prop_assert!(weighted.iter().any(|(value, weight)| *value == quartile && *weight > 0.0));
            }
        }
    }
}
