//! Demand averaged over 30 min, for decisions about moves and room: a VM that is busy for some minutes
//! is not worth a migration, and leaves no room when it is idle for some.

use std::time::Duration;

use super::node::Demand;
use crate::score::{ContainerScore, MovingAverage};
use crate::waiting::{Measurement, Ratio};

/// Time after which an average has followed a change by 63 %. Migrations take minutes and their VMs
/// stay for hours, and an average over less would follow each burst. It is chosen. In simulated clusters of
/// 300 VMs, over 15 min the planner loses .13 points less work than over 30 (ten seeds), but needs .26 moves per
/// VM and day instead of .19, and 10 % of them hurt instead of 7. Over 60 min it loses .39 points more by .12
/// moves (five seeds).
const AVERAGED_OVER: Duration = Duration::from_secs(30 * 60);

/// Averages of what a workload uses, would use and waits for, in CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct DemandAverages {
    used: MovingAverage,
    undelayed: MovingAverage,
    variance: MovingAverage,
    waiting: MovingAverage,
    memory_waiting: MovingAverage,
    /// Its memory, which is read only while a task of the node waits for memory.
    memory: Option<f64>,
}

/// A slow average without history.
pub(super) fn average() -> MovingAverage {
    MovingAverage::over(AVERAGED_OVER)
}

impl DemandAverages {
    /// Averages without history over 30 s and over 30 min.
    pub(super) fn fast_and_slow() -> [Self; 2] {
        [MovingAverage::default(), average()].map(|average| Self {
            used: average,
            undelayed: average,
            variance: average,
            waiting: average,
            memory_waiting: average,
            memory: None,
        })
    }

    /// The averages after one more window.
    pub(super) fn advanced(mut self, measured: &Measurement, window: Duration) -> Self {
        let waits = measured.waits.map(|wait| wait.ok().map(|wait| wait.cpus));
        self.used.advance(measured.used, window);
        self.undelayed.advance(measured.undelayed, window);
        self.variance.advance(measured.variance, window);
        self.waiting.advance(waits.cpu, window);
        self.memory_waiting.advance(waits.memory, window);
        self.memory = measured.memory.or(self.memory);
        self
    }

    /// Whether its history is at least as long as this.
    pub(super) fn covers(&self, history: Duration) -> bool {
        [self.used, self.undelayed, self.waiting].iter().all(|average| average.covers(history))
    }

    /// Whether it could not be read for more than a minute.
    pub(super) fn is_unknown(&self) -> bool {
        [self.used, self.undelayed, self.waiting].iter().any(MovingAverage::is_unknown)
    }

    /// CPUs that it would use if it did not wait.
    pub(super) fn undelayed(&self) -> f64 {
        self.undelayed.mean().unwrap_or(0.0)
    }

    /// CPUs' worth of time that it waits for CPUs and for memory.
    pub(super) fn all_waiting(&self) -> f64 {
        [self.waiting, self.memory_waiting].iter().filter_map(MovingAverage::mean).sum()
    }

    /// The demand of a scored container by these averages of it.
    pub(super) fn demand(&self, container: &ContainerScore) -> Demand {
        let mean = |average: MovingAverage| average.mean().unwrap_or(0.0);
        Demand {
            is_scored: true,
            used: mean(self.used),
            waiting: mean(self.waiting),
            variance: mean(self.variance),
            memory: self.memory,
            memory_waiting: mean(self.memory_waiting),
            memory_contention: container.contention.memory.map_or(0.0, Ratio::get),
            ..Demand::with_limits(&container.measured)
        }
    }
}
