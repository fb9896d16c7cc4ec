//! The API server: one client with the calls that the agent and the commands make.

pub mod call;
mod client;
mod lease;
pub mod list_items;
mod migrations;
mod nodes;
mod reviews;
mod streamed_list;
mod watch;

pub use client::{ApiClient, OwnNode, block_on};
pub use kube::api::ListParams;
pub use lease::{LEASE, Lease};
pub use migrations::{PodName, migrations};
pub use nodes::{NodeKeys, NodeMetadata};
pub use reviews::Decision;
pub use watch::{Identity, WatchEvent};
