//! The average of one Node's values over the last minutes, weighted by time. Pure. Values that have
//! left the window are dropped.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::{Basis, NodePressure};

/// Changes that are kept, so that memory is limited. Agents publish 60 times an hour at most.
const MOST_CHANGES: usize = 512;

/// Averages are rounded to 1/10,000 point. Otherwise a rounding error of the sum could cost one
/// point in a client that truncates to whole points.
const FINE: f64 = 10_000.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// The length of the window. Values must be known for at least half of it.
    pub window: Duration,
    /// How long a value is valid without being renewed.
    pub stale_after: Duration,
}

/// A value over the window, in points from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    pub mean: f64,
    pub deviation: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowNode {
    pub score: Slow,
    /// CPU; `None` if it is known for less than half of the window.
    pub cpu: Option<Slow>,
    /// Memory; `None` as for CPU.
    pub memory: Option<Slow>,
    /// Class of the headroom, from the last value; `None` without one.
    pub headroom: Option<u32>,
}

/// The changes of one Node within the window, the oldest first: the value, `None` without a usable one, and since when.
#[derive(Debug, Default)]
pub struct Window(VecDeque<(Timestamp, Option<NodePressure>)>);

impl Window {
    /// Adds a value. It counts from its own date, but not from before the value that it replaces.
    /// An unusable value (`None`) counts from now.
    pub fn change(&mut self, value: Option<NodePressure>, now: Timestamp, reach: Reach) {
        let dated = value.as_ref().map_or(now, |value| value.observed_at.min(now));
        let from = self.0.back().map_or(dated, |(last, _)| dated.max(*last));
        self.0.push_back((from, value));
        let left = |next: Timestamp| age_s(next, now) >= reach.window.as_secs_f64();
        while self.0.len() > MOST_CHANGES || self.0.get(1).is_some_and(|(next, _)| left(*next)) {
            self.0.pop_front();
        }
    }

    /// The averages of values with this basis over the window that ends now; `None` if the score is
    /// known for less than half of it.
    pub fn slow(&self, now: Timestamp, reach: Reach, basis: Basis) -> Option<SlowNode> {
        let least_s = reach.window.as_secs_f64() / 2.0;
        let spans: Vec<(f64, &NodePressure)> = self.spans(now, reach, basis).collect();
        let slow = |of: fn(&NodePressure) -> Option<u8>| {
            let known =
                spans.iter().filter_map(|(span_s, value)| Some((*span_s, of(value)?.into())));
            average(&known.collect::<Vec<_>>(), least_s)
        };
        Some(SlowNode {
            score: slow(|value| Some(value.score))?,
            cpu: slow(|value| value.cpu),
            memory: slow(|value| value.memory),
            headroom: None,
        })
    }

    /// The seconds of the window in which each value was valid: until the next value, or until it
    /// was stale.
    fn spans(
        &self,
        now: Timestamp,
        Reach { window, stale_after }: Reach,
        basis: Basis,
    ) -> impl Iterator<Item = (f64, &NodePressure)> {
        let ends = self.0.iter().skip(1).map(move |(next, _)| age_s(*next, now)).chain([0.0]);
        self.0.iter().zip(ends).filter_map(move |((from, value), end_age_s)| {
            let value = value.as_ref().filter(|value| value.basis == basis)?;
            let begin_age_s = age_s(*from, now).min(window.as_secs_f64());
            let stale_age_s = age_s(value.observed_at, now) - stale_after.as_secs_f64();
            let span_s = begin_age_s - end_age_s.max(stale_age_s).max(0.0);
            (span_s > 0.0).then_some((span_s, value))
        })
    }
}

fn age_s(then: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(then).as_secs_f64()
}

/// The average of points, each weighted by seconds; `None` below `least_s` seconds in all.
fn average(spans: &[(f64, f64)], least_s: f64) -> Option<Slow> {
    let known_s: f64 = spans.iter().map(|(span_s, _)| span_s).sum();
    if known_s <= 0.0 || known_s < least_s {
        return None;
    }
    let of = |value: &dyn Fn(f64) -> f64| {
        spans.iter().map(|(span_s, points)| span_s * value(*points)).sum::<f64>() / known_s
    };
    let mean = of(&|points| points);
    let deviation = of(&|points| (points - mean).powi(2)).sqrt();
    let fine = |points: f64| (points.clamp(0.0, 100.0) * FINE).round() / FINE;
    Some(Slow { mean: fine(mean), deviation: fine(deviation) })
}

#[cfg(test)]
pub(super) mod tests;
