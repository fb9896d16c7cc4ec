//! Exponential smoothing in continuous time: windows of any length, and none at the start.

use std::time::Duration;

use crate::rates::Ratio;

/// After this long, a change has come through by 63 %.
const TIME_CONSTANT: Duration = Duration::from_secs(30);

/// A value rests on too little before it was seen for this long.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// For so long a value that cannot be read keeps its last one.
const HELD_FOR: Duration = Duration::from_secs(60);

/// A smoothed value. What there was before the first window has no weight in it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Smoothed {
    sum: f64,
    weight: f64,
    seen: Duration,
    absent: Duration,
    /// Taken over, and of no use before something reads here as well.
    adopted: Option<f64>,
}

impl Smoothed {
    /// Takes in the value of a window; `None` where it could not be told.
    pub(super) fn advance(&mut self, value: Option<f64>, window: Duration) {
        let Some(value) = value else {
            self.absent = self.absent.saturating_add(window);
            if self.absent > HELD_FOR {
                *self = Self::default();
            }
            return;
        };
        let kept = (-window.as_secs_f64() / TIME_CONSTANT.as_secs_f64()).exp();
        self.sum = self.sum * kept + value * (1.0 - kept);
        self.weight = self.weight * kept + (1.0 - kept);
        self.seen = self.seen.saturating_add(window);
        self.absent = Duration::ZERO;
        self.use_adopted();
    }

    /// Lets `value` stand for all the time before the first window, once there is one: where
    /// nothing reads, what another agent read is dated, and not to be dated anew.
    pub(super) fn adopt(&mut self, value: f64) {
        self.adopted = Some(value);
        if self.weight > 0.0 {
            self.use_adopted();
        }
    }

    fn use_adopted(&mut self) {
        let Some(value) = self.adopted.take() else { return };
        self.sum += value * (1.0 - self.weight);
        self.weight = 1.0;
        self.seen = self.seen.max(SETTLED_AFTER);
    }

    /// The value, however little it rests on.
    pub(super) fn now(&self) -> Option<Ratio> {
        // Of sums that are equal in all but their last bit, the one may be the larger.
        Ratio::of(self.sum, self.weight)
    }

    /// The value, once it has a history.
    pub(super) fn settled(&self) -> Option<Ratio> {
        if self.seen >= SETTLED_AFTER { self.now() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_secs(5);

    fn after(values: &[(f64, u64)]) -> Smoothed {
        let mut smoothed = Smoothed::default();
        for &(value, seconds) in values {
            smoothed.advance(Some(value), Duration::from_secs(seconds));
        }
        smoothed
    }

    fn now(smoothed: Smoothed) -> f64 {
        smoothed.now().unwrap().get()
    }

    #[test]
    fn a_steady_value_is_itself_from_the_first_window_on() {
        assert_eq!(Smoothed::default().now(), None);
        assert!((now(after(&[(0.4, 5)])) - 0.4).abs() < 1e-12);
    }

    #[test]
    fn a_change_comes_through_by_63_percent_in_the_time_constant() {
        let whole = now(after(&[(0.0, 100_000), (1.0, 30)]));
        assert!((whole - 0.632).abs() < 0.001, "{whole}");
        let in_steps = now(after(&[(0.0, 100_000), (1.0, 5), (1.0, 13), (1.0, 12)]));
        assert!((whole - in_steps).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_settled_before_30_s_but_what_was_adopted_is() {
        assert_eq!(after(&[(0.4, 29)]).settled(), None);
        assert!(after(&[(0.4, 15), (0.4, 15)]).settled().is_some());
        let mut smoothed = after(&[(0.0, 5)]);
        smoothed.adopt(0.4);
        let expected = 0.4 * (-5.0_f64 / 30.0).exp();
        assert!((smoothed.settled().unwrap().get() - expected).abs() < 1e-12);
    }

    #[test]
    fn what_was_adopted_counts_once_something_reads() {
        let mut smoothed = Smoothed::default();
        smoothed.adopt(0.4);
        smoothed.advance(None, TICK);
        assert_eq!(smoothed.now(), None);
        smoothed.advance(Some(0.0), TICK);
        let expected = 0.4 * (-5.0_f64 / 30.0).exp();
        assert!((smoothed.settled().unwrap().get() - expected).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_read_is_held_for_a_minute_and_then_absent() {
        let mut smoothed = after(&[(0.4, 60)]);
        for _ in 0..12 {
            smoothed.advance(None, TICK);
            assert!(smoothed.settled().is_some());
        }
        smoothed.advance(None, TICK);
        assert_eq!(smoothed.now(), None);
    }

    proptest! {
        #[test]
        fn it_stays_between_what_it_was_given(
            values in proptest::collection::vec((0.0..=1.0, 1u64..100), 1..50)
        ) {
            let smoothed = now(after(&values));
            let low = values.iter().map(|(value, _)| *value).fold(1.0, f64::min);
            let high = values.iter().map(|(value, _)| *value).fold(0.0, f64::max);
            prop_assert!(low - 1e-9 <= smoothed && smoothed <= high + 1e-9);
        }
    }
}
