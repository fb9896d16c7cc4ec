//! The values on a Node, computed from a score.

use crate::contract::{Level, NodePressure};
use crate::score::NodeScore;
use crate::waiting::Ratio;

/// Published values are multiples of this, in points.
pub(super) const STEP: f64 = 5.0;

/// The values on a Node, in steps of 5, and the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedScore {
    pub pressure: NodePressure,
    pub level: Level,
}

impl PublishedScore {
    /// The score in steps; `None` where there is no score.
    pub fn of(score: &NodeScore, level: Level) -> Option<Self> {
        let pressure = NodePressure {
            score: quantised(score.score?),
            cpu: score.contention.cpu.map(quantised),
            memory: score.contention.memory.map(quantised),
            io: score.contention.io.map(quantised),
            observed_at: score.moment.timestamp(),
            basis: score.basis,
        };
        Some(Self { pressure, level })
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
fn quantised(ratio: Ratio) -> u8 {
    ((points(ratio) / STEP).round() * STEP) as u8
}
