//! Levels with hysteresis: each is entered and left only after the score was there for a while.

use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::contract::Level;

/// A level is entered or left after the score was beyond its threshold for this long.
const DWELL: Duration = Duration::from_secs(30);

/// Where levels begin, in points of the score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    medium: u8,
    high: u8,
}

/// Thresholds that are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("levels are two numbers from 1 to 100, the smaller first, such as 10,30")]
pub struct NotThresholds;

impl Default for Thresholds {
    fn default() -> Self {
        Self { medium: 10, high: 30 }
    }
}

impl FromStr for Thresholds {
    type Err = NotThresholds;

    fn from_str(text: &str) -> Result<Self, NotThresholds> {
        let (medium, high) = text.split_once(',').ok_or(NotThresholds)?;
        let points = |text: &str| text.trim().parse::<u8>().ok().filter(|n| (1..=100).contains(n));
        match (points(medium), points(high)) {
            (Some(medium), Some(high)) if medium < high => Ok(Self { medium, high }),
            _ => Err(NotThresholds),
        }
    }
}

impl std::fmt::Display for Thresholds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", self.medium, self.high)
    }
}

/// The level as it was last, and how long the score has been pulling it elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct LevelTracker {
    medium: Gate,
    high: Gate,
}

impl LevelTracker {
    /// At [`Level::Low`].
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        let (medium, high) = (f64::from(thresholds.medium), f64::from(thresholds.high));
        // Medium is left below a half, high below two thirds of where it begins.
        Self { medium: Gate::new(medium, medium / 2.0), high: Gate::new(high, high * 2.0 / 3.0) }
    }

    /// Takes over a level.
    pub fn adopt(&mut self, level: Level) {
        self.medium.is_open = level >= Level::Medium;
        self.high.is_open = level == Level::High;
    }

    /// The level that a score of so many points stands for by itself.
    #[must_use]
    pub fn level_of(&self, points: f64) -> Level {
        if points >= self.high.enter {
            Level::High
        } else if points >= self.medium.enter {
            Level::Medium
        } else {
            Level::Low
        }
    }

    /// The level after the score was seen at so many points.
    pub fn advance(&mut self, now: Instant, points: f64) -> Level {
        self.medium.advance(now, points);
        self.high.advance(now, points);
        if self.high.is_open {
            Level::High
        } else if self.medium.is_open {
            Level::Medium
        } else {
            Level::Low
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Gate {
    enter: f64,
    leave: f64,
    is_open: bool,
    pulled_since: Option<Instant>,
}

impl Gate {
    fn new(enter: f64, leave: f64) -> Self {
        Self { enter, leave, is_open: false, pulled_since: None }
    }

    fn advance(&mut self, now: Instant, points: f64) {
        let is_pulled = if self.is_open { points < self.leave } else { points >= self.enter };
        if !is_pulled {
            self.pulled_since = None;
            return;
        }
        let since = *self.pulled_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= DWELL {
            self.is_open = !self.is_open;
            self.pulled_since = None;
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
mod tests {
    use super::*;

    /// Levels at ticks of 5 s while the score takes these values.
    fn levels(values: impl IntoIterator<Item = f64>) -> Vec<Level> {
        let mut tracker = LevelTracker::new(Thresholds::default());
        let (start, mut seconds) = (Instant::now(), 0);
        let mut next = |points| {
            seconds += 5;
            tracker.advance(start + Duration::from_secs(seconds), points)
        };
        values.into_iter().map(&mut next).collect()
    }

    #[test]
    fn a_level_is_entered_and_left_after_30_s_beyond_its_threshold() {
        use Level::{High, Low, Medium};
        let up = levels(std::iter::repeat_n(30.0, 8));
        assert_eq!(up, [Low, Low, Low, Low, Low, Low, High, High]);
        let down: Vec<f64> = [30.0; 7].into_iter().chain([19.0; 7]).chain([4.0; 7]).collect();
        let down = levels(down);
        assert_eq!(down[7..], [vec![High; 6], vec![Medium; 7], vec![Low]].concat());
    }

    #[test]
    fn a_sawtooth_around_a_threshold_flips_nothing() {
        let sawtooth = (0..1000).map(|tick| if tick % 6 < 3 { 12.0 } else { 8.0 });
        assert!(levels(sawtooth).iter().all(|level| *level == Level::Low));
        // Having entered it, one that does not go below the half never leaves it.
        let entered = [15.0; 7].into_iter();
        let hovering = entered.chain((0..1000).map(|tick| f64::from(tick % 10) + 5.0));
        assert!(levels(hovering).iter().skip(7).all(|level| *level == Level::Medium));
    }

    #[test]
    fn thresholds_are_two_rising_numbers() {
        assert_eq!("10,30".parse(), Ok(Thresholds::default()));
        assert_eq!(Thresholds::default().to_string(), "10,30");
        for wrong in ["", "10", "30,10", "10,10", "0,5", "10,101", "a,b", "10,30,50", "-1,5"] {
            assert_eq!(wrong.parse::<Thresholds>(), Err(NotThresholds), "{wrong}");
        }
    }
}
