//! Levels with hysteresis and dwell. Pure: time is an argument.

use std::time::{Duration, Instant};

use crate::contract::{Level, Thresholds};

/// A level is entered or left when its condition has held for this long.
const DWELL: Duration = Duration::from_secs(30);

/// The current level, and since when the conditions of another level have held.
#[derive(Debug, Clone, Copy)]
pub struct LevelTracker([Threshold; 2]);

impl LevelTracker {
    pub fn new(thresholds: Thresholds) -> Self {
        let (medium, high) = (f64::from(thresholds.medium()), f64::from(thresholds.high()));
        Self([
            Threshold::new(Level::Medium, medium, medium / 2.0),
            Threshold::new(Level::High, high, high * 2.0 / 3.0),
        ])
    }

    /// Continues from this level. It changes only when the agent's own scores have met the conditions of
    /// another level for the dwell.
    pub fn adopt(&mut self, level: Level) {
        for threshold in &mut self.0 {
            threshold.is_exceeded = level >= threshold.level;
        }
    }

    /// Adds the contention in points that counts for the levels medium and high.
    pub fn advance(&mut self, now: Instant, contention: [f64; 2]) -> Level {
        for (threshold, contention) in self.0.iter_mut().zip(contention) {
            threshold.advance(now, contention);
        }
        self.level()
    }

    /// Ends the dwell of a change: nothing is known of the time without a score.
    pub fn interrupt(&mut self) {
        self.0.iter_mut().for_each(|threshold| threshold.changing_since = None);
    }

    /// The level after the last score.
    pub fn level(&self) -> Level {
        let exceeded = self.0.iter().filter(|threshold| threshold.is_exceeded);
        exceeded.map(|threshold| threshold.level).max().unwrap_or(Level::Low)
    }
}

#[derive(Debug, Clone, Copy)]
struct Threshold {
    level: Level,
    enter: f64,
    leave: f64,
    is_exceeded: bool,
    /// Since when the condition of the other state has held.
    changing_since: Option<Instant>,
}

impl Threshold {
    fn new(level: Level, enter: f64, leave: f64) -> Self {
        Self { level, enter, leave, is_exceeded: false, changing_since: None }
    }

    fn advance(&mut self, now: Instant, contention: f64) {
        let is_exceeded = contention >= if self.is_exceeded { self.leave } else { self.enter };
        if is_exceeded == self.is_exceeded {
            self.changing_since = None;
            return;
        }
        let since = *self.changing_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= DWELL {
            self.is_exceeded = is_exceeded;
            self.changing_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{High, Low, Medium};
    use super::*;

    /// Levels at ticks of 5 s with these contentions.
    fn levels(contentions: impl IntoIterator<Item = f64>) -> Vec<Level> {
        let mut tracker = LevelTracker::new(Thresholds::default());
        let (start, mut seconds) = (crate::clock::now().at, 0);
        let mut next = |contention| {
            seconds += 5;
            tracker.advance(start + Duration::from_secs(seconds), [contention; 2])
        };
        contentions.into_iter().map(&mut next).collect()
    }

    #[test]
    fn a_level_is_entered_and_left_after_30_s_beyond_its_threshold() {
        let up = levels(std::iter::repeat_n(30.0, 8));
        assert_eq!(up, [Low, Low, Low, Low, Low, Low, High, High]);
        let down: Vec<f64> = [30.0; 7].into_iter().chain([19.0; 7]).chain([4.0; 7]).collect();
        let down = levels(down);
        assert_eq!(down[7..], [vec![High; 6], vec![Medium; 7], vec![Low]].concat());
    }

    #[test]
    fn a_dwell_does_not_go_on_across_time_without_a_score() {
        let mut tracker = LevelTracker::new(Thresholds::default());
        let start = crate::clock::now().at;
        let mut at = |seconds| tracker.advance(start + Duration::from_secs(seconds), [30.0; 2]);
        assert_eq!([0, 20].map(&mut at), [Low, Low]);
        tracker.interrupt();
        let mut at = |seconds| tracker.advance(start + Duration::from_secs(seconds), [30.0; 2]);
        assert_eq!([40, 65, 70].map(&mut at), [Low, Low, High]);
    }

    #[test]
    fn a_sawtooth_around_a_threshold_changes_no_level() {
        let sawtooth = (0..1000).map(|tick| if tick % 6 < 3 { 12.0 } else { 8.0 });
        assert!(levels(sawtooth).iter().all(|level| *level == Low));
        // Once entered, a level that stays above half of its threshold is never left.
        let entered = [15.0; 7].into_iter();
        let hovering = entered.chain((0..1000).map(|tick| f64::from(tick % 10) + 5.0));
        assert!(levels(hovering).iter().skip(7).all(|level| *level == Medium));
    }

    #[test]
    fn each_level_has_its_own_contention() {
        let mut tracker = LevelTracker::new(Thresholds::default());
        let start = crate::clock::now().at;
        let mut at =
            |seconds, contention| tracker.advance(start + Duration::from_secs(seconds), contention);
        assert_eq!([at(0, [9.0, 40.0]), at(30, [9.0, 40.0])], [Low, High]);
        assert_eq!([at(35, [40.0, 29.0]), at(65, [40.0, 19.0])], [High, High]);
        assert_eq!(at(95, [40.0, 19.0]), Medium);
    }
}
