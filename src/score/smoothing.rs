//! Exponential smoothing in continuous time, for windows of any length. The first window has no
//! predecessor, so its value is not smoothed.

use std::time::Duration;

use crate::waiting::Ratio;

/// Time after which a score has followed a change by 63 %.
const TIME_CONSTANT: Duration = Duration::from_secs(30);

/// Minimum weight of the windows for a score, which is reached after 30 s.
const SETTLED: f64 = 0.632;

/// Time for which the last value is kept while none can be read. The value of a longer window is
/// out of date and not used.
const HELD_FOR: Duration = Duration::from_secs(60);

/// An exponential moving average. The time before the first window has no weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MovingAverage {
    time_constant: Duration,
    sum: f64,
    weight: f64,
    /// For how long no value could be read.
    pub(super) absent: Duration,
    /// Whether a window had a value. An adopted value alone is not enough, since an earlier agent
    /// measured it.
    was_read: bool,
}

impl Default for MovingAverage {
    fn default() -> Self {
        Self::over(TIME_CONSTANT)
    }
}

impl MovingAverage {
    /// An average that follows a change by 63 % in this time.
    pub fn over(time_constant: Duration) -> Self {
        Self { time_constant, sum: 0.0, weight: 0.0, absent: Duration::ZERO, was_read: false }
    }

    /// Adds the value of a window; `None` if it could not be read. A window longer than 60 s, in
    /// which the agent was suspended, counts as not read.
    pub fn advance(&mut self, value: Option<f64>, window: Duration) {
        let Some(value) = value.filter(|_| window <= HELD_FOR) else {
            self.absent = self.absent.saturating_add(window);
            if self.is_unknown() {
                *self = Self { absent: self.absent, ..Self::over(self.time_constant) };
            }
            return;
        };
        let kept = self.kept_after(window);
        self.sum = self.sum * kept + value * (1.0 - kept);
        self.weight = self.weight * kept + (1.0 - kept);
        (self.absent, self.was_read) = (Duration::ZERO, true);
    }

    /// Share of its weight that a value has left after this time.
    fn kept_after(&self, time: Duration) -> f64 {
        (-time.as_secs_f64() / self.time_constant.as_secs_f64()).exp()
    }

    /// Whether its windows are together at least as long as this.
    pub fn covers(&self, history: Duration) -> bool {
        const ROUNDING: f64 = 1e-9;
        self.was_read && self.weight + ROUNDING >= 1.0 - self.kept_after(history)
    }

    /// Whether no value could be read for more than a minute.
    pub fn is_unknown(&self) -> bool {
        self.absent > HELD_FOR
    }

    /// Uses `value` for all the time before the first window.
    pub fn adopt(&mut self, value: f64) {
        self.sum += value * (1.0 - self.weight);
        self.weight = 1.0;
    }

    /// The value, even with a short history; `None` before the first window.
    pub fn mean(&self) -> Option<f64> {
        self.was_read.then(|| self.sum / self.weight)
    }

    /// As [`MovingAverage::mean`], for a share.
    pub fn now(&self) -> Option<Ratio> {
        // A rounding error can make the quotient slightly larger than 1, which `Ratio::of`
        // corrects.
        Ratio::of(self.mean()?, 1.0)
    }

    /// The value, once its history is long enough for a score.
    pub fn settled(&self) -> Option<Ratio> {
        if self.weight >= SETTLED { self.now() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(5);

    fn after(values: &[(f64, u64)]) -> MovingAverage {
        let mut smoothed = MovingAverage::default();
        for &(value, seconds) in values {
            smoothed.advance(Some(value), Duration::from_secs(seconds));
        }
        smoothed
    }

    fn now(smoothed: MovingAverage) -> f64 {
        smoothed.now().unwrap().get()
    }

    #[test]
    fn a_change_comes_through_by_63_percent_in_the_time_constant() {
        assert_eq!(MovingAverage::default().now(), None);
        assert!((now(after(&[(0.4, 5)])) - 0.4).abs() < 1e-12, "the first window stands alone");
        let calm = [(0.0, 60); 20];
        let whole = now(after(&[&calm[..], &[(1.0, 30)]].concat()));
        assert!((whole - 0.632).abs() < 0.001, "{whole}");
        let in_steps = now(after(&[&calm[..], &[(1.0, 5), (1.0, 13), (1.0, 12)]].concat()));
        assert!((whole - in_steps).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_settled_before_30_s_but_what_was_adopted_is_once_something_reads() {
        assert_eq!(after(&[(0.4, 29)]).settled(), None);
        assert!(after(&[(0.4, 15), (0.4, 15)]).settled().is_some());
        let mut late = after(&[(0.0, 5)]);
        late.adopt(0.4);
        let mut early = MovingAverage::default();
        early.adopt(0.4);
        early.advance(None, TICK);
        assert_eq!(early.now(), None);
        early.advance(Some(0.0), TICK);
        let expected = 0.4 * (-5.0_f64 / 30.0).exp();
        for smoothed in [late, early] {
            assert!((smoothed.settled().unwrap().get() - expected).abs() < 1e-12);
        }
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
}
