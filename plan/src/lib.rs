//! Proposes moves of VMs: which VM, from which node, to which other. The input is what the agents of all
//! nodes publish, and which VMs may move where. Pure; `docs/plan.md` explains it.
#![warn(missing_docs)]

mod moves;
mod waiting;

pub use moves::{Movable, Move, Node, Rules, plan};
