//! A counter or a pressure over a window of time. Pure.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::kernel::cgroup_dir::Resource;
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::sample::PressureReading;

/// Shortest window of a rate. A shorter one contains too few of the kernel's own averaging windows.
const MIN_WINDOW: Duration = Duration::from_millis(900);

/// A finite number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// `part / whole`, clamped to the range 0 to 1, since windows of the kernel and of the agent
    /// differ by microseconds. `None` if it is not a finite number.
    pub fn of(part: f64, whole: f64) -> Option<Self> {
        let ratio = part / whole;
        ratio.is_finite().then(|| Self(ratio.clamp(0.0, 1.0)))
    }

    pub const ZERO: Self = Self(0.0);

    pub fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Ratio {
    /// To four decimals: more would be noise.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.0 * 10_000.0).round() / 10_000.0)
    }
}

/// Shares of the window in which tasks waited for one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WaitShares {
    /// At least one task waited.
    pub some: Option<Ratio>,
    /// All tasks waited at once.
    pub full: Option<Ratio>,
}

/// Shares for the three resources.
pub type PressureRates = PerResource<WaitShares>;

/// Amount per second; `None` in a window that is too short.
pub(super) fn per_second(amount: f64, window: Duration) -> Option<f64> {
    (window >= MIN_WINDOW).then(|| amount / window.as_secs_f64())
}

pub(super) fn pressure_rates(before: &PressureReading, after: &PressureReading) -> PressureRates {
    let window = after.at.saturating_duration_since(before.at);
    if window < MIN_WINDOW {
        return PressureRates::default();
    }
    let shares = |resource| {
        let before = before.pressures.of(resource).unwrap_or_default();
        let after = after.pressures.of(resource).unwrap_or_default();
        let share = |total: fn(Pressure) -> Option<u64>| {
            let stalled_us = increase(total(before)?, total(after)?)?;
            Ratio::of(stalled_us, window.as_secs_f64() * 1e6)
        };
        WaitShares {
            some: share(|pressure| pressure.some_us),
            full: share(|pressure| pressure.full_us),
        }
    };
    PressureRates {
        cpu: shares(Resource::Cpu),
        memory: shares(Resource::Memory),
        io: shares(Resource::Io),
    }
}

/// Increase of a counter; `None` after a reset.
#[allow(clippy::cast_precision_loss, reason = "an increase within one window is far below 2^52")]
pub(super) fn increase(before: u64, after: u64) -> Option<f64> {
    after.checked_sub(before).map(|increase| increase as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Pressures;
    use proptest::prelude::*;
    use std::time::Instant;

    fn reading(at: Instant, some_us: Option<u64>) -> PressureReading {
        let cpu = Some(Pressure { some_us, full_us: None });
        PressureReading { at, pressures: Pressures { cpu, ..Pressures::default() } }
    }

    fn cpu_some(before: Option<u64>, after: Option<u64>, window: Duration) -> Option<f64> {
        let start = crate::clock::now().at;
        let rates = pressure_rates(&reading(start, before), &reading(start + window, after));
        rates.cpu.some.map(Ratio::get)
    }

    #[test]
    fn a_share_is_waiting_time_over_the_readings_own_window() {
        let window = Duration::from_secs(5);
        assert_eq!(cpu_some(Some(1_000_000), Some(3_500_000), window), Some(0.5));
        assert_eq!(cpu_some(Some(5), Some(5), window), Some(0.0));
    }

    #[test]
    fn no_rate_across_a_reset_an_absence_or_a_short_window() {
        let window = Duration::from_secs(5);
        assert_eq!(cpu_some(Some(10), Some(9), window), None);
        assert_eq!(cpu_some(None, Some(9), window), None);
        assert_eq!(cpu_some(Some(9), None, window), None);
        assert_eq!(cpu_some(Some(0), Some(1), Duration::from_millis(500)), None);
        assert_eq!(cpu_some(Some(0), Some(1), Duration::ZERO), None);
    }

    proptest! {
        #[test]
        fn every_share_is_a_number_from_0_to_1(before: u64, after: u64, millis in 0u64..100_000) {
            let share = cpu_some(Some(before), Some(after), Duration::from_millis(millis));
            prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
