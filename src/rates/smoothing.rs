//! Exponential smoothing in continuous time: windows of any length, and none at the start.

use std::time::Duration;

use super::window::Ratio;

/// After this long, a change has come through by 63 %.
const TIME_CONSTANT: Duration = Duration::from_secs(30);

/// Less weight than this, which 30 s have, is too little to rest a score on.
const SETTLED: f64 = 0.632;

/// For so long a value that cannot be read keeps its last one; a longer window is of the past.
const HELD_FOR: Duration = Duration::from_secs(60);

/// A smoothed value. What there was before the first window has no weight in it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Smoothed {
    sum: f64,
    weight: f64,
    absent: Duration,
    /// Whether a window had a value. An adopted value alone is of another agent's time.
    was_read: bool,
}

impl Smoothed {
    /// Takes in the value of a window; `None` where it could not be read. Time without ticks, in which
    /// the agent was stopped, is not read either.
    pub fn advance(&mut self, value: Option<f64>, window: Duration) {
        let Some(value) = value.filter(|_| window <= HELD_FOR) else {
            self.absent = self.absent.saturating_add(window);
            if self.absent > HELD_FOR {
                *self = Self::default();
            }
            return;
        };
        let kept = (-window.as_secs_f64() / TIME_CONSTANT.as_secs_f64()).exp();
        self.sum = self.sum * kept + value * (1.0 - kept);
        self.weight = self.weight * kept + (1.0 - kept);
        (self.absent, self.was_read) = (Duration::ZERO, true);
    }

    /// Lets `value` stand for all the time before the first window.
    pub fn adopt(&mut self, value: f64) {
        self.sum += value * (1.0 - self.weight);
        self.weight = 1.0;
    }

    /// The value, however little it rests on.
    pub fn mean(&self) -> Option<f64> {
        self.was_read.then(|| self.sum / self.weight)
    }

    /// The same of a share.
    pub fn now(&self) -> Option<Ratio> {
        // Of sums that are equal in all but their last bit, the one may be the larger.
        Ratio::of(self.mean()?, 1.0)
    }

    /// The value, once it has a history.
    pub fn settled(&self) -> Option<Ratio> {
        if self.weight >= SETTLED { self.now() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_change_comes_through_by_63_percent_in_the_time_constant() {
        assert_eq!(Smoothed::default().now(), None);
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
        let mut early = Smoothed::default();
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
