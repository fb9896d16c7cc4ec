#![doc = include_str!("../README.md")]

mod keys;
mod level;
mod pressure;

pub use keys::{Key, NotASubdomain, Prefix};
pub use level::{Level, NotThresholds, Thresholds};
pub use pressure::{Basis, ContractError, Freshness, NodePressure, STALE_AFTER};
