//! Predicts the effect of a move: the contention of a node without one of its VMs, and how many
//! busy vCPUs can be added. The input is the demand of each workload of the node. Pure;
//! `docs/relief.md` has the formulas.

mod assessment;
mod candidate;
mod departure;
mod node;
mod sharing;
mod slow_demand;

pub use assessment::{Assessment, Assessor, Relief, SlowAssessment};
pub use candidate::{Candidate, NoCandidate, candidates, first};
