//! Values of kernel files with the time at which each was read, and rates between two of them. Pure.
//! A counter that decreased, or a window that is too short, gives `None`, never a negative or
//! infinite rate.

use std::time::{Duration, Instant};

use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;

/// Shortest window of a rate. A shorter one contains too few of the kernel's own averaging windows.
const MIN_WINDOW: Duration = Duration::from_millis(900);

/// Time after a wait in which the container's costly files are read, and after a reclaim in which most refaults of
/// the reclaimed pages occur.
const LATELY: Duration = Duration::from_secs(60);

pub(crate) fn lately(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) < LATELY)
}

/// A finite number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    pub const ZERO: Self = Self(0.0);

    /// `part / whole`, clamped to the range 0 to 1, since windows of the kernel and of the agent
    /// differ by microseconds. `None` if it is not a finite number.
    pub fn of(part: f64, whole: f64) -> Option<Self> {
        let ratio = part / whole;
        ratio.is_finite().then(|| Self(ratio.clamp(0.0, 1.0)))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

/// A value, and when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<T> {
    pub at: Instant,
    pub value: T,
}

/// The three pressures of a cgroup or of the node; `None` where PSI is off, or a file could not be
/// read.
pub type PressureReadings = PerResource<Option<Reading<Pressure>>>;

/// The last two readings of a file. Each has its own time, since a pass over a busy node is slow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window<T> {
    pub before: Option<Reading<T>>,
    pub last: Option<Reading<T>>,
}

impl<T> Window<T> {
    /// Adds a reading; `None` if the file could not be read, or is not read for some time: its counters are not
    /// compared across that time.
    pub fn push(&mut self, reading: Option<Reading<T>>) {
        self.before = std::mem::replace(&mut self.last, reading);
    }

    pub fn value(&self) -> Option<&T> {
        self.last.as_ref().map(|reading| &reading.value)
    }

    /// Both values, the earlier first.
    pub fn both(&self) -> Option<(&T, &T)> {
        Some((&self.before.as_ref()?.value, &self.last.as_ref()?.value))
    }

    /// When the last one was read; `None` while there is no other one before it.
    pub(super) fn read_at(&self) -> Option<Instant> {
        self.before.as_ref().and(self.last.as_ref()).map(|last| last.at)
    }

    /// The time between the readings, seconds.
    pub fn seconds(&self) -> Option<f64> {
        let window = self.last.as_ref()?.at.saturating_duration_since(self.before.as_ref()?.at);
        (window >= MIN_WINDOW).then_some(window.as_secs_f64())
    }

    /// The increase of a counter.
    pub fn increase(&self, counter: impl Fn(&T) -> Option<u64>) -> Option<f64> {
        let (before, last) = self.both()?;
        increase(counter(before)?, counter(last)?)
    }

    /// The increase of a counter per second.
    pub fn rate(&self, counter: impl Fn(&T) -> Option<u64>) -> Option<f64> {
        Some(self.increase(counter)? / self.seconds()?)
    }
}

impl<T: Clone> Window<T> {
    /// Adds the last value again: another file shows that it is the same at this time.
    pub fn hold(&mut self, at: Instant) {
        self.push(self.last.clone().map(|reading| Reading { at, ..reading }));
    }
}

/// Increase of a counter; `None` after a reset.
pub fn increase(before: u64, after: u64) -> Option<f64> {
    after.checked_sub(before).map(|increase| increase as f64)
}

/// Shares of a window in which tasks waited for one resource (PSI).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureShares {
    /// At least one task waited.
    pub some: Option<Ratio>,
    /// All tasks waited at once.
    pub full: Option<Ratio>,
}

impl Window<Pressure> {
    pub fn shares(&self) -> PressureShares {
        let share = |total: fn(&Pressure) -> Option<u64>| Ratio::of(self.rate(total)?, 1e6);
        PressureShares {
            some: share(|pressure| pressure.some_us),
            full: share(|pressure| pressure.full_us),
        }
    }

    /// Share of time in which at least one task waited; `None` if it is unknown.
    pub fn some(&self) -> Option<f64> {
        self.shares().some.map(Ratio::get)
    }

    /// Whether a task has waited since the reading before; `true` if that is unknown.
    pub fn moved(&self) -> bool {
        self.both().is_none_or(|(before, last)| before != last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window(before: Option<u64>, last: Option<u64>, window: Duration) -> Window<Pressure> {
        let start = crate::clock::now().at;
        let reading =
            |at, some_us| Some(Reading { at, value: Pressure { some_us, full_us: None } });
        Window { before: reading(start, before), last: reading(start + window, last) }
    }

    #[test]
    fn a_share_is_waiting_time_over_the_readings_own_window() {
        let second = Duration::from_secs(5);
        assert_eq!(window(Some(1_000_000), Some(3_500_000), second).some(), Some(0.5));
        assert_eq!(window(Some(5), Some(5), second).some(), Some(0.0));
    }

    #[test]
    fn no_rate_across_a_reset_an_absence_or_a_short_window() {
        let seconds = Duration::from_secs(5);
        assert_eq!(window(Some(10), Some(9), seconds).some(), None);
        assert_eq!(window(None, Some(9), seconds).some(), None);
        assert_eq!(window(Some(9), None, seconds).some(), None);
        assert_eq!(window(Some(0), Some(1), Duration::from_millis(500)).some(), None);
        let mut failed = window(Some(0), Some(1), seconds);
        failed.push(None);
        assert_eq!((failed.some(), failed.moved()), (None, true));
    }

    #[test]
    fn a_held_value_has_not_moved() {
        let mut held = window(Some(0), Some(7), Duration::from_secs(5));
        assert!(held.moved());
        let at = held.last.unwrap().at;
        held.hold(at + Duration::from_secs(5));
        assert_eq!((held.moved(), held.some()), (false, Some(0.0)));
    }

    proptest! {
        #[test]
        fn every_share_is_a_number_from_0_to_1(before: u64, after: u64, millis in 0u64..100_000) {
            let share = window(Some(before), Some(after), Duration::from_millis(millis)).some();
            prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
