//! The commands as typed, with their help.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Args, Subcommand};

use super::bridge::{Bridge, parse_age};
use crate::reap::Reap;

/// A command, with its own flags.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Serve metrics until stopped (the default command)
    Run,
    /// Read twice, 2 s apart, print the metrics and exit
    Once,
    /// Show this node and its VMs by contention, live in a terminal
    ///
    /// Queries the agent at --listen-address every 2 s, or, without an agent there, reads the kernel
    /// every 5 s. Press q, Esc or Ctrl-C to quit. If stdout is not a terminal, top reads twice, 2 s
    /// apart, prints one table and exits with 0.
    ///
    /// CONTENTION: share of its demand that a VM waited for because of the node. CPU, MEMORY, IO:
    /// share of time in which some task waited. LIMIT: part of CPU that the VM's own limit explains.
    /// NODE: CPU ready, the share of time that each of its CPUs waited because of the node. CPUS:
    /// CPUs used. A dash is an unknown value; most are unknown in the first table.
    Top,
    /// Check the agent's requirements on this host, and print a remedy for each that is not met
    Check,
    /// List the cluster's nodes by their published scores, with the age of each
    Nodes(NodesFlags),
    /// Remove stale published scores from Nodes
    Reap(ReapFlags),
    /// Serve the published scores of all Nodes in the APIs that deschedulers and schedulers poll
    ///
    /// GET and POST /api/v1/query respond to the queries slow-score and
    /// instance:psi_agent_node_score:avg10m_neutral as a Prometheus does: each Node's slow score, for
    /// the descheduler. GET /watcher responds as a load-watcher does, for Trimaran. POST /prioritize is
    /// an extender of kube-scheduler. A Node without a fresh score gets the average of the others.
    Bridge(Bridge),
}

/// The flags of `nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct NodesFlags {
    /// Age from which a score is marked as stale: twice the agents' --heartbeat-interval
    #[arg(
        long,
        env = "PSI_AGENT_STALE_AFTER",
        value_name = "AGE",
        value_parser = parse_age,
        default_value = "10m"
    )]
    pub stale_after: Duration,
}

/// The flags of `reap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct ReapFlags {
    /// Age from which a score is stale, such as 15m
    #[arg(long, group = "what", value_name = "AGE", value_parser = parse_age)]
    older_than: Option<Duration>,
    /// All keys with the prefix, to uninstall
    #[arg(long, group = "what")]
    all: bool,
    /// Removal even if more than half of the nodes are stale, which suggests an outage
    #[arg(long, conflicts_with = "all")]
    force: bool,
}

impl ReapFlags {
    pub fn selection(self) -> Reap {
        match self.older_than {
            Some(age) => Reap::OlderThan { age, force: self.force },
            None => Reap::All,
        }
    }
}

impl Command {
    pub(super) fn default_address(&self) -> SocketAddr {
        let port = if matches!(self, Command::Bridge(_)) { 9943 } else { 9942 };
        (Ipv4Addr::LOCALHOST, port).into()
    }
}
