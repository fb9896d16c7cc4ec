#![doc = include_str!("../README.md")]
// Schedulers and deschedulers build on this surface: each item documents its unit and absence.
#![warn(missing_docs)]

mod keys;
mod level;
mod pressure;

pub use keys::{Key, NotASubdomain, Prefix};
pub use level::{Level, NotThresholds, Thresholds};
pub use pressure::{Basis, ContractError, Freshness, NodePressure, STALE_AFTER};
