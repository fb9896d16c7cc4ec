//! The quartile that makes one number of many containers.

/// The part of all demand that may be worse off than the answer.
const UPPER: f64 = 0.25;

/// The upper quartile by weight: the item with the smallest value that three quarters of the weight do
/// not exceed (the inverse of the weighted distribution function, Hyndman and Fan's type 1). One item
/// is its own quartile; of two equal weights it is the larger, of four the second largest. `None`
/// without weight.
pub(super) fn upper_quartile<T>(
    mut items: Vec<T>,
    value: impl Fn(&T) -> f64,
    weight: impl Fn(&T) -> f64,
) -> Option<T> {
    let total: f64 = items.iter().map(&weight).sum();
    if total <= 0.0 {
        return None;
    }
    items.sort_by(|a, b| value(b).total_cmp(&value(a)));
    // A margin for sums that are not quite equal in binary.
    let allowed = UPPER * total * (1.0 + 1e-9);
    let mut above = 0.0;
    items.into_iter().find(|item| {
        above += weight(item);
        above > allowed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quartile(weighted: Vec<(f64, f64)>) -> Option<f64> {
        upper_quartile(weighted, |item| item.0, |item| item.1).map(|(value, _)| value)
    }

    #[test]
    fn one_two_three_and_four_values() {
        let equal = |values: &[f64]| quartile(values.iter().map(|&value| (value, 1.0)).collect());
        assert_eq!(equal(&[]), None);
        assert_eq!(equal(&[0.4]), Some(0.4));
        assert_eq!(equal(&[0.0, 0.4]), Some(0.4));
        assert_eq!(equal(&[0.1, 0.4, 0.2]), Some(0.4));
        assert_eq!(equal(&[0.1, 0.9, 0.3, 0.2]), Some(0.3));
    }

    #[test]
    fn weight_decides_and_not_the_number() {
        let small = |count| std::iter::repeat_n((0.0, 0.1), count);
        // One starved large VM among small ones is seen, one small one among large ones decides
        // nothing, and idle ones dilute nothing.
        assert_eq!(quartile(small(20).chain([(0.8, 4.0)]).collect()), Some(0.8));
        assert_eq!(quartile(vec![(0.9, 0.1), (0.1, 4.0)]), Some(0.1));
        let idle = std::iter::repeat_n((0.0, 0.0), 50);
        assert_eq!(quartile(idle.chain([(0.5, 1.0)]).collect()), Some(0.5));
    }

    proptest! {
        #[test]
        fn it_is_one_of_the_values(
            weighted in proptest::collection::vec((0.0..=1.0, 0.0..=100.0), 0..20)
        ) {
            let found = quartile(weighted.clone());
            let has_weight = weighted.iter().any(|(_, weight)| *weight > 0.0);
            prop_assert_eq!(found.is_some(), has_weight);
            if let Some(found) = found {
                prop_assert!(weighted.iter().any(|(value, weight)| *value == found && *weight > 0.0));
            }
        }
    }
}
