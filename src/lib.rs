//! Measures how much a node's contention slows its virtual machines down: the library behind the
//! command `psi-agent`.
//!
//! Data flows in one direction, and no module imports one that comes later in the flow.
//! `docs/architecture.md` has a diagram of it, lists the input and output of each module, and
//! follows a value from a file to an annotation.

pub mod agent;
pub mod bridge;
pub mod cgroup_path;
pub mod check;
pub mod clock;
pub mod collector;
pub mod config;
pub mod demo;
pub mod export;
pub mod host;
pub mod identity;
pub mod kernel;
pub mod log;
pub mod once;
pub mod own_metrics;
pub mod planner;
pub mod pod_source;
pub mod publish;
pub mod relief;
pub mod sample;
pub mod sampler;
pub mod score;
pub mod serve;
pub mod snapshot;
pub mod text_format;
pub mod top;
pub mod waiting;

pub use psi_agent_client as client;
pub use psi_agent_contract as contract;

// `measured_vms` names the crate as tests outside of it do.
#[cfg(test)]
extern crate self as psi_agent;
#[cfg(test)]
#[path = "../tests/integration/support/measured_vms.rs"]
mod measured_vms;
