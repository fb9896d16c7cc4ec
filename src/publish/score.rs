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
    /// The score in steps; `None` where there is no score. What `last` has as 0 stays so until it differs by a
    /// step: else a heartbeat would change a value of about half a step, and the next tick change it back. A
    /// node at the level `low` has no candidates.
    pub fn of(
        score: &NodeScore,
        level: Level,
        demand: Option<NodeDemand>,
        last: Option<&NodePressure>,
    ) -> Option<Self> {
        let demand = demand.map(|mut demand| {
            demand.candidates.retain(|_| level >= Level::Medium);
            demand
        });
        let contention = score.contention;
        let pressure = NodePressure {
            score: quantised(score.score?, last.map(|last| last.score)),
            cpu: contention.cpu.map(|cpu| quantised(cpu, last.and_then(|last| last.cpu))),
            memory: contention.memory.map(|it| quantised(it, last.and_then(|last| last.memory))),
            io: contention.io.map(|io| quantised(io, last.and_then(|last| last.io))),
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
fn quantised(ratio: Ratio, last: Option<u8>) -> u8 {
    let points = points(ratio);
    if last == Some(0) && points < STEP { 0 } else { ((points / STEP).round() * STEP) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_0_stays_until_the_value_differs_by_a_step() {
        let after = |last, share| quantised(Ratio::of(share, 1.0).unwrap(), last);
        assert_eq!([0.024, 0.026, 0.07].map(|share| after(None, share)), [0, 5, 5]);
        assert_eq!([0.024, 0.049, 0.07].map(|share| after(Some(0), share)), [0, 0, 5]);
        assert_eq!(after(Some(5), 0.026), 5);
    }
}
