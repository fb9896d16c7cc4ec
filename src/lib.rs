//! How much a node's shortage holds its virtual machines back: the library behind `psi-agent`.
//!
//! Files are named for the data that they produce, and data flows one way; `docs/architecture.md`
//! has the picture and the rules. Start reading at [`agent`], then follow a sample:
//!
//! - [`config`]: the command line; [`host`]: the roots that it names, opened
//! - [`kernel`]: the only room that opens kernel files; parsers are pure functions over bytes
//! - [`cgroup_path`]: what a path says of pods and containers (pure)
//! - [`identity`]: whose a cgroup is; [`pod_source`]: who tells; [`cluster`]: the API server
//! - [`sample`]: raw counters of one pass; [`collector`]: reads them; [`sampler`]: when
//! - [`rates`]: two samples to shares of time (pure)
//! - [`score`]: how much the node holds its VMs back, and why (pure)
//! - [`publish`]: the score's way onto the Node
//! - [`serve`]: connections, TLS, authentication and response bodies, for agent and bridge
//! - [`health`]: the agent's own metrics
//! - [`snapshot`]: the state as JSON; [`export`]: the metrics, the page
//! - [`clock`]: the one place that reads the clocks
//! - [`agent`], [`once`], [`top`], [`check`], [`nodes`], [`reap`], [`bridge`]: the commands
//!
//! For schedulers and deschedulers: [`contract`], what a Node object says of its pressure.

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
