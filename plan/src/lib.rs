//! Proposes moves of VMs: which VM, from which node, to which other. The input is what the agents of all
//! nodes publish, and which VMs may move where. Pure; `docs/plan.md` explains it.
#![warn(missing_docs)]

pub mod brake;
pub mod cluster;
mod constraints;
mod fit;
mod moves;
mod nodes;
pub mod planner;
mod proposal;
mod vms;
mod waiting;

pub use psi_agent_contract as contract;

pub use moves::{Movable, Move, Node, Rules, plan};
pub use proposal::{LeftOut, Load, Proposal, ProposedMove, propose};
