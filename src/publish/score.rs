//! The values on a Node, computed from a score.

use crate::contract::Level;
use crate::score::{NodeScore, PerResource};
use crate::waiting::Ratio;

/// Published values are multiples of this, in points.
pub(super) const STEP: f64 = 5.0;

/// The values on a Node: points from 0 to 100, in steps of 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedScore {
    pub score: u8,
    /// Contention by resource; `None` where it is unknown.
    pub each: PerResource<Option<u8>>,
    pub level: Level,
    /// Time of the measurement, milliseconds since the epoch.
    pub observed_at_ms: u64,
}

impl PublishedScore {
    /// The score in steps; `None` where there is no score.
    pub fn of(score: &NodeScore, level: Level) -> Option<Self> {
        let quantised = |ratio| quantised(points(ratio));
        Some(Self {
            score: quantised(score.score?),
            each: score.contention.map(|ratio| ratio.map(quantised)),
            level,
            observed_at_ms: score.moment.unix_ms,
        })
    }
}

pub(super) fn points(ratio: Ratio) -> f64 {
    ratio.get() * 100.0
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio is within 0 and 1, so this is within 0 and 100"
)]
fn quantised(points: f64) -> u8 {
    ((points / STEP).round() * STEP) as u8
}
