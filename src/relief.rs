//! What a move would change: the contention of a node without one of its VMs, and how many busy
//! vCPUs it can take. In: what each workload of a node wants. Out: predictions. Pure;
//! `docs/relief.md` has the formulas.

mod assessment;
mod candidate;
mod node;
mod sharing;

pub use crate::kernel::limits::CpuSet;
pub use assessment::{Assessment, Assessor, Relief};
pub use candidate::{NoCandidate, choose};
pub use node::{Contention, Demand, Node};
