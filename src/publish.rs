//! The score's way onto the Node: what is written, when, and what comes of it. All but the
//! publisher itself is pure.

pub mod level;
pub mod node_patch;
pub mod plan;
pub mod publisher;

use crate::contract::Level;
use crate::score::{NodeScore, PerResource};

/// Published values are multiples of this.
const STEP: f64 = 5.0;

/// What is said on a Node: whole points from 0 to 100, in steps of 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// The score.
    pub score: u8,
    /// Each resource's contention; `None` where it cannot be told.
    pub each: PerResource<Option<u8>>,
    /// The level.
    pub level: Level,
    /// When it was so, milliseconds since the epoch.
    pub observed_at_ms: u64,
}

impl Statement {
    /// What a score amounts to; `None` where there is none.
    #[must_use]
    pub fn of(score: &NodeScore, level: Level) -> Option<Self> {
        let step = |points: f64| quantised(points);
        Some(Self {
            score: step(points(score.score?)),
            each: score.contention.map(|ratio| ratio.map(|ratio| step(points(ratio)))),
            level,
            observed_at_ms: score.moment.unix_ms,
        })
    }
}

fn points(ratio: crate::rates::Ratio) -> f64 {
    ratio.get() * 100.0
}

/// The nearest multiple of [`STEP`].
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio is within 0 and 1, so this is within 0 and 100"
)]
fn quantised(points: f64) -> u8 {
    ((points / STEP).round() * STEP) as u8
}
