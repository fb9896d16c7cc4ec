//! The code that the agent and the kubectl plugin share: calls to the API server, and the commands
//! that show or remove published scores. Runs on any system, since it reads no kernel file.

pub mod cluster;
pub mod flags;
pub mod json;
pub mod nodes;
pub mod output;
pub mod plan;
pub mod pod;
pub mod reap;
pub mod resource;
pub mod snapshot;
pub mod top;

pub use psi_agent_contract as contract;
