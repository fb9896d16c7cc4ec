//! The quartile that makes one number of many containers.

use super::wait::Wait;

/// The part of all demand that may be worse off than the answer.
const UPPER: f64 = 0.25;

/// The smallest contention that three quarters of the demand do not exceed (Hyndman and Fan's type
/// 1): of two equal demands the larger, of four the second largest. `None` without demand.
pub(super) fn upper_quartile(mut waits: Vec<Wait>) -> Option<Wait> {
    let total: f64 = waits.iter().map(|wait| wait.demand).sum();
    waits.sort_by(|a, b| b.contention.get().total_cmp(&a.contention.get()));
    // A margin for sums that are not quite equal in binary.
    let allowed = UPPER * total * (1.0 + 1e-9);
    let mut above = 0.0;
    waits.into_iter().find(|wait| {
        above += wait.demand;
        above > allowed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::Ratio;

    fn quartile(weighted: Vec<(f64, f64)>) -> Option<f64> {
        let wait = |(value, weight)| {
            Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::of(value, 1.0).unwrap(), weight)
        };
        let found = upper_quartile(weighted.into_iter().map(wait).collect());
        found.map(|wait| wait.contention.get())
    }

    #[test]
    fn one_two_three_and_four_values() {
        let equal = |values: &[f64]| quartile(values.iter().map(|&value| (value, 1.0)).collect());
        assert_eq!((equal(&[]), quartile(vec![(0.4, 0.0)])), (None, None));
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
}
