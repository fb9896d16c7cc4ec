//! From the score to the Node: which values to write, when, and how. Pure except for `publisher`.

pub mod level;
pub mod marker;
pub mod node_patch;
pub mod plan;
pub mod publisher;
mod score;

pub use score::PublishedScore;
