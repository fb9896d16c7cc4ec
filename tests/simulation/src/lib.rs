//! Simulates clusters of VMs with rebalancers, in virtual time. `docs/benefit.md` has its assumptions
//! and results. Data flows from `trace` through `node` and `agent` to `consumers`, and from there back
//! to `cluster`.

pub mod agent;
pub mod arm;
pub mod backlog;
pub mod cluster;
pub mod consumers;
pub mod extract;
pub mod judge;
pub mod lab;
pub mod load;
#[path = "../../integration/support/measured_vms.rs"]
mod measured_vms;
pub mod node;
pub mod planetlab;
pub mod plot;
pub mod population;
pub mod random;
pub mod report;
pub mod series;
pub mod simulation;
pub mod suite;
pub mod trace;
