//! The commands, as they are typed and as the program runs them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Subcommand;

use super::age::parse_age;
use super::bridge::Bridge;
use crate::reap::Reap;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Serve until stopped.
    Run,
    /// Read twice, print, exit.
    Once,
    /// Show the node and its VMs.
    Top,
    /// Say what the host has.
    Check,
    /// List the cluster's nodes.
    Nodes,
    /// Clear nodes.
    Reap(Reap),
    /// Serve what the cluster's nodes say.
    Bridge(Bridge),
}

impl Command {
    /// Where it listens, or asks, unless it is told.
    pub(super) fn default_address(&self) -> SocketAddr {
        let port = match self {
            Command::Bridge(_) => 9943,
            Command::Run
            | Command::Once
            | Command::Top
            | Command::Check
            | Command::Nodes
            | Command::Reap(_) => 9942,
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum TypedCommand {
    /// Serve metrics until stopped (what happens without a command)
    Run,
    /// Read twice, 2 s apart, print the metrics and exit
    Once,
    /// Show this node and its VMs by contention, live; where stdout is no terminal, print one table
    ///
    /// The agent that serves at --listen-address is asked every 2 s; where nobody does, the kernel
    /// itself is read every 5 s. q, Esc and Ctrl-C quit. Where stdout is no terminal, it looks
    /// twice, 2 s apart, prints one table and exits with 0.
    ///
    /// CONTENTION is the share of what a VM wanted that it had to wait for because of the node. CPU,
    /// MEMORY and IO are the shares of time in which some task waited; LIMIT is the part of CPU that
    /// its own limit explains, NODE the share of time in which it waited for each CPU of the node
    /// that it wanted; CPUS how many it uses. A dash is what is not known, as most is at the first look.
    Top,
    /// Say whether this host has what the agent needs, and what to do where it does not
    Check,
    /// List the cluster's nodes by what agents wrote on them, with its age
    Nodes,
    /// Take away what agents left on nodes and nobody renews
    #[command(group = clap::ArgGroup::new("what").required(true))]
    Reap {
        /// Values that were not renewed for this long, such as 15m
        #[arg(long, group = "what", value_name = "AGE", value_parser = parse_age)]
        older_than: Option<Duration>,
        /// Everything that has the prefix: the uninstall
        #[arg(long, group = "what")]
        all: bool,
        /// Clear even when more than half of the nodes are stale, which looks like an outage
        #[arg(long, conflicts_with = "all")]
        force: bool,
    },
    /// Serve what agents wrote on Nodes in the forms that deschedulers and schedulers poll: one for a
    /// cluster
    ///
    /// GET and POST /api/v1/query answer the queries slow-score and
    /// instance:psi_agent_node_score:avg10m_neutral as a Prometheus does: each Node's slow score, for
    /// the descheduler. GET /watcher answers as a load-watcher does, for Trimaran.
    /// POST /prioritize is an extender of kube-scheduler's. A Node of which nothing is known gets the
    /// average of the others.
    Bridge(Bridge),
}

impl From<TypedCommand> for Command {
    fn from(typed: TypedCommand) -> Self {
        match typed {
            TypedCommand::Run => Command::Run,
            TypedCommand::Once => Command::Once,
            TypedCommand::Top => Command::Top,
            TypedCommand::Check => Command::Check,
            TypedCommand::Nodes => Command::Nodes,
            TypedCommand::Reap { older_than: Some(age), force, .. } => {
                Command::Reap(Reap::OlderThan { age, force })
            }
            TypedCommand::Reap { older_than: None, .. } => Command::Reap(Reap::All),
            TypedCommand::Bridge(bridge) => Command::Bridge(bridge),
        }
    }
}
