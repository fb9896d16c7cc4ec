//! Measures how much a node's contention slows its virtual machines down: the library behind the
//! command `psi-agent`.
//!
//! Data flows in one direction, and no module imports one that comes later in the flow.
//! `docs/architecture.md` has a picture of it, and follows a value from a file to an annotation.
//!
//! - [`contract`]: a Node's pressure, for schedulers and deschedulers too
//! - [`clock`]: the current time
//! - [`kernel`]: kernel files to typed values; no other module opens them
//! - [`cgroup_path`]: a path to pod and container (pure)
//! - [`identity`]: the pod, container and VM of a cgroup; [`cluster`]: the API client
//! - [`sample`]: types of one reading; [`collector`]: reads samples in two passes, tick and scrape
//! - [`rates`]: two samples to shares of time (pure)
//! - [`score`]: contention of the node and of each VM, with causes (pure)
//! - [`publish`]: the score to the Node's annotations, label and taints
//! - [`sampler`]: the sampling thread
//! - [`serve`]: connections, TLS, authentication and limits, for agent and bridge
//! - [`health`]: own metrics of agent and bridge
//! - [`snapshot`]: the state as JSON; [`export`]: metrics text, page and snapshot over HTTP
//! - [`config`]: flags and environment; [`host`]: the opened roots; [`pod_source`]: the list of pods
//! - [`agent`], [`bridge`], [`once`], [`top`], [`check`], [`nodes`], [`reap`]: the commands

pub mod agent;
pub mod bridge;
pub mod cgroup_path;
pub mod check;
pub mod clock;
pub mod cluster;
pub mod collector;
pub mod config;
pub mod export;
pub mod health;
pub mod host;
pub mod identity;
pub mod kernel;
pub mod nodes;
pub mod once;
pub mod pod_source;
pub mod publish;
pub mod rates;
pub mod reap;
pub mod sample;
pub mod sampler;
pub mod score;
pub mod serve;
pub mod snapshot;
pub mod top;

pub use psi_agent_contract as contract;
