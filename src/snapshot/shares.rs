//! Shares and pressures, as `/snapshot.json` has them.

use crate::client::snapshot::Pressure;
use crate::waiting::Ratio;
use crate::waiting::series::PressureShares;

/// To four decimals: more would be noise.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

pub(super) fn share(ratio: Ratio) -> f64 {
    rounded(ratio.get())
}

pub(super) fn pressure(shares: PressureShares) -> Pressure {
    Pressure { some: shares.some.map(share), full: shares.full.map(share) }
}
