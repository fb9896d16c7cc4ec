//! The flags of `bridge`.

use std::time::Duration;

use clap::Args;

use super::flags::{LogConfig, ServerFlags};
use super::values::parse_window;
use crate::client::flags::{ApiFlags, StaleAfter};

/// The bridge's own settings.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("listen_address", |address| {
    address.help("Address of the HTTP server").default_value("127.0.0.1:9943")
}))]
pub struct Bridge {
    #[command(flatten)]
    pub(super) server: ServerFlags,

    #[command(flatten)]
    pub(super) api: ApiFlags,

    /// Label selector of Nodes, in kubectl's syntax; empty for all Nodes
    #[arg(
        long,
        env = "PSI_AGENT_NODE_SELECTOR",
        value_name = "SELECTOR",
        default_value = "kubevirt.io/schedulable=true",
        help_heading = "Nodes"
    )]
    pub node_selector: String,

    /// Window over which each node's score is averaged, 10s to 1h
    #[arg(long, env = "PSI_AGENT_WINDOW", value_name = "DURATION", value_parser = parse_window,
          default_value = "10m", help_heading = "Nodes")]
    pub window: Duration,

    #[command(flatten)]
    pub stale: StaleAfter,

    #[command(flatten)]
    pub(super) log: LogConfig,
}
