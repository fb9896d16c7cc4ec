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

    pub fn adopt(&mut self, level: Level) {
        for threshold in &mut self.0 {
            threshold.is_exceeded = level >= threshold.level;
        }
    }

    /// Adds a score in points. `other_than_cpu` is the largest contention of the counted resources
    /// other than CPU, in points, of which CPU ready says nothing. CPU ready is from 0 to 1; where it is unknown,
    /// the score alone decides.
    pub fn advance(
        &mut self,
        now: Instant,
        score: f64,
        other_than_cpu: f64,
        cpu_ready: Option<f64>,
    ) -> Level {
        for threshold in &mut self.0 {
            threshold.advance(now, score, other_than_cpu, cpu_ready);
        }
        self.level()
    }

    /// Ends the dwell of a change: nothing is known of the time without a score.
    pub fn interrupt(&mut self) {
        self.0.iter_mut().for_each(|threshold| threshold.changing_since = None);
    }

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

    fn advance(&mut self, now: Instant, score: f64, other_than_cpu: f64, cpu_ready: Option<f64>) {
        let ready = self.level.least_cpu_ready();
        let (points, ready) =
            if self.is_exceeded { (self.leave, ready / 2.0) } else { (self.enter, ready) };
        let by_cpu = score >= points && cpu_ready.is_none_or(|share| share >= ready);
        let is_exceeded = other_than_cpu >= points || by_cpu;
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

    /// Levels at ticks of 5 s with these inputs: score, other than CPU, CPU ready.
    fn levels_of(inputs: impl IntoIterator<Item = (f64, f64, Option<f64>)>) -> Vec<Level> {
        let mut tracker = LevelTracker::new(Thresholds::default());
        let (start, mut seconds) = (crate::clock::now().at, 0);
        let mut next = |(score, other_than_cpu, ready)| {
            seconds += 5;
            tracker.advance(start + Duration::from_secs(seconds), score, other_than_cpu, ready)
        };
        inputs.into_iter().map(&mut next).collect()
    }

    fn levels(scores: impl IntoIterator<Item = f64>) -> Vec<Level> {
        levels_of(scores.into_iter().map(|score| (score, 0.0, None)))
    }

    /// The level at the end of each phase of 35 s, with these inputs: score, other than CPU, CPU
    /// ready.
    fn last_levels(inputs: &[(f64, f64, f64)]) -> Vec<Level> {
        let input = |&(score, other_than_cpu, ready)| (score, other_than_cpu, Some(ready));
        let repeated = inputs.iter().flat_map(|one| std::iter::repeat_n(input(one), 7));
        levels_of(repeated).chunks(7).map(|chunk| chunk[6]).collect()
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
        let mut at =
            |seconds| tracker.advance(start + Duration::from_secs(seconds), 30.0, 0.0, None);
        assert_eq!([0, 20].map(&mut at), [Low, Low]);
        tracker.interrupt();
        let mut at =
            |seconds| tracker.advance(start + Duration::from_secs(seconds), 30.0, 0.0, None);
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
    fn cpu_contention_reaches_a_level_only_where_vms_wait_for_enough_of_their_time() {
        assert_eq!(last_levels(&[(60.0, 0.0, 0.006)]), [Low]);
        assert_eq!(last_levels(&[(60.0, 0.0, 0.05), (60.0, 0.0, 0.1)]), [Medium, High]);
        // Each level is left where CPU ready is below half of what it needs.
        let left = [(60.0, 0.0, 0.1), (60.0, 0.0, 0.05), (60.0, 0.0, 0.049), (60.0, 0.0, 0.024)];
        assert_eq!(last_levels(&left), [High, High, Medium, Low]);
    }

    #[test]
    fn memory_contention_reaches_a_level_whatever_cpu_ready_is() {
        assert_eq!(last_levels(&[(60.0, 60.0, 0.0)]), [High]);
        assert_eq!(last_levels(&[(60.0, 15.0, 0.0), (60.0, 0.0, 0.0)]), [Medium, Low]);
    }
}
