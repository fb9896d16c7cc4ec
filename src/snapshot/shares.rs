//! Shares and pressures, as `/snapshot.json` has them.

use crate::client::snapshot::{ByResource, Pressure};
use crate::score::PerResource;
use crate::waiting::Ratio;
use crate::waiting::series::PressureShares;

/// A value of each resource, as the snapshot has it.
pub(super) fn by_resource<T, U>(
    values: PerResource<T>,
    shown: impl FnMut(T) -> U,
) -> ByResource<U> {
    let PerResource { cpu, memory, io } = values.map(shown);
    ByResource { cpu, memory, io }
}

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
