//! From the score to the Node: which values to write, when, and how. `publisher` and `marker` make the
//! requests; the other modules are pure.

pub mod demand;
pub mod level;
mod marker;
pub mod node_patch;
pub mod plan;
pub mod publisher;
mod score;

pub use score::PublishedScore;
