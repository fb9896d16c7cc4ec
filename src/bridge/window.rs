//! What one Node said over the last minutes: dated values in, their average over time out. Pure.
//! What has left the window is forgotten: this is the state of one view, and no history.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::{Basis, NodePressure};

/// Agents change a value 60 times an hour at most: who changes it more often has less of the past
/// known, and the memory that it takes stays bounded.
const MOST_CHANGES: usize = 512;

/// Digits of a point that are kept: sums of parts of a window miss the last ones, and whoever cuts
/// to whole points would lose one.
const FINE: f64 = 10_000.0;

/// How far back the view reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Over how long the average goes. Half of it must be known.
    pub window: Duration,
    /// How long a value holds that nobody renews.
    pub stale_after: Duration,
}

/// A quantity over the window, in points from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    /// Its average, weighted by time.
    pub mean: f64,
    /// Its standard deviation, weighted by time.
    pub deviation: f64,
}

/// A Node's slow view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowNode {
    /// The score.
    pub score: Slow,
    /// CPU; `None` where its agent could not tell for half of the window.
    pub cpu: Option<Slow>,
    /// Memory; `None` likewise.
    pub memory: Option<Slow>,
}

/// What a Node said, and from when on it held.
#[derive(Debug)]
struct Change {
    from: Timestamp,
    /// `None`: nothing that can be used.
    value: Option<NodePressure>,
}

/// The changes of one Node that are still to be seen in the window, the oldest first.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Change>);

impl Window {
    /// Takes in what the Node says since the value's own date, or since now if that is nothing that
    /// can be used. No value holds from before the one that it replaces.
    pub fn change(&mut self, value: Option<NodePressure>, now: Timestamp, reach: Reach) {
        let dated = value.as_ref().map_or(now, |value| value.observed_at.min(now));
        let from = self.0.back().map_or(dated, |last| dated.max(last.from));
        self.0.push_back(Change { from, value });
        let left = |next: &Change| age_s(next.from, now) >= reach.window.as_secs_f64();
        while self.0.len() > MOST_CHANGES || self.0.get(1).is_some_and(left) {
            self.0.pop_front();
        }
    }

    /// The averages over the window that ends now, of values of this basis; `None` where the score
    /// is not known for half of it.
    #[must_use]
    pub fn slow(&self, now: Timestamp, reach: Reach, basis: Basis) -> Option<SlowNode> {
        let least_s = reach.window.as_secs_f64() / 2.0;
        let spans: Vec<(f64, &NodePressure)> = self.spans(now, reach, basis).collect();
        let slow = |of: fn(&NodePressure) -> Option<u8>| {
            let told =
                spans.iter().filter_map(|(span_s, value)| Some((*span_s, of(value)?.into())));
            average(&told.collect::<Vec<_>>(), least_s)
        };
        Some(SlowNode {
            score: slow(|value| Some(value.score))?,
            cpu: slow(|value| value.cpu),
            memory: slow(|value| value.memory),
        })
    }

    /// For how many seconds of the window each value held, until the next one, or until it was
    /// stale.
    fn spans(
        &self,
        now: Timestamp,
        Reach { window, stale_after }: Reach,
        basis: Basis,
    ) -> impl Iterator<Item = (f64, &NodePressure)> {
        let ends = self.0.iter().skip(1).map(move |next| age_s(next.from, now)).chain([0.0]);
        self.0.iter().zip(ends).filter_map(move |(change, end_age_s)| {
            let value = change.value.as_ref().filter(|value| value.basis == basis)?;
            let begin_age_s = age_s(change.from, now).min(window.as_secs_f64());
            let stale_age_s = age_s(value.observed_at, now) - stale_after.as_secs_f64();
            let span_s = begin_age_s - end_age_s.max(stale_age_s).max(0.0);
            (span_s > 0.0).then_some((span_s, value))
        })
    }
}

/// Seconds from then to now, less than 0 for what is to come.
fn age_s(then: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(then).as_secs_f64()
}

/// The average of points that each held for some seconds; `None` where that is not enough.
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
mod tests;
