//! The values on a Node, computed from a score.

use crate::contract::{Level, NodeDemand, NodePressure};
use crate::score::NodeScore;
use crate::waiting::Ratio;

/// Published values are multiples of this, in points.
pub(super) const STEP: f64 = 5.0;

/// The values on a Node: contention in steps of 5, the level, and the demand.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedScore {
    pub pressure: NodePressure,
    pub level: Level,
    /// `None` if it is unknown, or not published where units are scored.
    pub demand: Option<NodeDemand>,
}

impl PublishedScore {
    /// The score in steps; `None` where there is no score. A node at the level `low` has no candidates.
    pub fn of(score: &NodeScore, level: Level, demand: Option<NodeDemand>) -> Option<Self> {
        let demand = demand.map(|mut demand| {
            demand.candidates.retain(|_| level >= Level::Medium);
            demand
        });
        let pressure = NodePressure {
            score: quantised(score.score?),
            cpu: score.contention.cpu.map(quantised),
            memory: score.contention.memory.map(quantised),
            io: score.contention.io.map(quantised),
            observed_at: score.moment.timestamp(),
            basis: score.basis,
        };
        Some(Self { pressure, level, demand })
    }
}

pub(super) fn points(ratio: Ratio) -> f64 {
    ratio.get() * 100.0
}

#[allow(clippy::cast_possible_truncation, reason = "a ratio is within 0 and 1")]
fn quantised(ratio: Ratio) -> u8 {
    ((points(ratio) / STEP).round() * STEP) as u8
}
