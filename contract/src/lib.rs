#![doc = include_str!("../README.md")]
// This is the public API for schedulers and deschedulers: each item documents its unit, and what
// its absence means.
#![warn(missing_docs)]

mod annotations;
mod demand;
mod keys;
mod level;
mod pressure;

pub use annotations::ContractError;
pub use demand::{Candidate, MOST_CANDIDATES, NodeDemand};
pub use keys::{Key, NotASubdomain, Prefix, is_subdomain};
pub use level::{Level, NotThresholds, Thresholds};
pub use pressure::{Basis, Freshness, NodePressure, STALE_AFTER};
