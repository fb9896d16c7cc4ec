//! The commands as typed, with their help.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::Shell;

use super::bridge::Bridge;
use super::flags::{
    AccessFlags, ExportFlags, ListenAddress, LogConfig, PublishFlag, PublishingFlags, ScoreFlags,
    ServerFlags, SourceFlags, TlsFlags,
};
use crate::client::flags::{ApiFlags, ReapFlags, StaleAfter};

/// A command, with its own flags.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Serve metrics and publish the score until stopped (the default command)
    Run(Box<RunFlags>),
    /// Read twice, 2 s apart, print the metrics and exit
    Once(OnceFlags),
    /// Show this node and its VMs by contention, live in a terminal
    ///
    /// Queries the agent at --listen-address every 2 s, or, without an agent there, reads the kernel
    /// every 5 s. Press c, u or m to sort by contention, CPUs used or memory pressure, ? for help, and q,
    /// Esc or Ctrl-C to quit. If stdout is not a terminal, top reads twice, 2 s apart, prints one table and
    /// exits with 0. That table has at most 120 columns, or as many as the environment variable COLUMNS.
    ///
    /// CONTENTION: share of its demand that a VM waited for because of the node. CPU, MEMORY, IO:
    /// share of time in which some task waited. LIMIT: part of CPU that the VM's own limit explains.
    /// NODE: CPU ready, the share of time that each of its CPUs waited because of the node. CPUS:
    /// CPUs used. RELIEF: CPUs' worth of waiting that would end if the VM left the node. A dash is an
    /// unknown value; most are unknown in the first table.
    Top(TopFlags),
    /// Check the agent's requirements on this host, and print a remedy for each that is not met
    Check(CheckFlags),
    /// List the cluster's nodes by their published scores, with the age of each
    Nodes(NodesFlags),
    /// Remove stale published scores from Nodes
    Reap(ReapCommand),
    /// Serve the published scores of all Nodes in the APIs that deschedulers and schedulers poll
    ///
    /// /api/v1/query responds to the descheduler as Prometheus does, with the slow score of each Node.
    /// /watcher responds to Trimaran as load-watcher does. /prioritize is an extender of
    /// kube-scheduler. A Node without a fresh score gets the average of the others.
    Bridge(Bridge),
    /// Print the completion script of a shell
    ///
    /// For bash, in the current shell: source <(psi-agent completions bash)
    Completions { shell: Shell },
    /// Print the manual page, or write the pages of all commands to a directory
    Man {
        /// Existing directory for the pages, such as /usr/local/share/man/man1
        dir: Option<PathBuf>,
    },
}

/// The flags of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunFlags {
    #[command(flatten)]
    pub(super) server: ServerFlags,
    #[command(flatten)]
    pub(super) access: AccessFlags,
    #[command(flatten)]
    pub(super) source: SourceFlags,
    #[command(flatten)]
    pub(super) export: ExportFlags,
    #[command(flatten)]
    pub(super) score: ScoreFlags,
    #[command(flatten)]
    pub(super) publish: PublishFlag,
    #[command(flatten)]
    pub(super) publishing: PublishingFlags,
    #[command(flatten)]
    pub(super) log: LogConfig,
}

/// The flags of `once`.
#[derive(Debug, Clone, Args)]
pub struct OnceFlags {
    #[command(flatten)]
    pub(super) source: SourceFlags,
    #[command(flatten)]
    pub(super) export: ExportFlags,
    #[command(flatten)]
    pub(super) score: ScoreFlags,
    #[command(flatten)]
    pub(super) log: LogConfig,
}

/// The flags of `top`.
#[derive(Debug, Clone, Args)]
pub struct TopFlags {
    #[command(flatten)]
    pub(super) listen: ListenAddress,
    #[command(flatten)]
    pub(super) source: SourceFlags,
    #[command(flatten)]
    pub(super) score: ScoreFlags,
    #[command(flatten)]
    pub(super) log: LogConfig,
}

/// The flags of `check`.
#[derive(Debug, Clone, Args)]
pub struct CheckFlags {
    #[command(flatten)]
    pub(super) tls: TlsFlags,
    #[command(flatten)]
    pub(super) source: SourceFlags,
    #[command(flatten)]
    pub(super) publish: PublishFlag,
    #[command(flatten)]
    pub(super) log: LogConfig,
}

/// The flags of `nodes`.
#[derive(Debug, Clone, Args)]
pub struct NodesFlags {
    #[command(flatten)]
    pub(super) api: ApiFlags,
    #[command(flatten)]
    pub stale: StaleAfter,
    #[command(flatten)]
    pub(super) log: LogConfig,
}

/// The flags of `reap`.
#[derive(Debug, Clone, Args)]
pub struct ReapCommand {
    #[command(flatten)]
    pub(super) api: ApiFlags,
    #[command(flatten)]
    pub flags: ReapFlags,
    #[command(flatten)]
    pub(super) log: LogConfig,
}

impl Command {
    pub(super) fn log(&self) -> LogConfig {
        match self {
            Command::Run(flags) => flags.log,
            Command::Once(flags) => flags.log,
            Command::Top(flags) => flags.log,
            Command::Check(flags) => flags.log,
            Command::Nodes(flags) => flags.log,
            Command::Reap(flags) => flags.log,
            Command::Bridge(flags) => flags.log,
            Command::Completions { .. } | Command::Man { .. } => LogConfig::default(),
        }
    }
}
