//! The commands with their flags, which are their configuration.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, value_parser};
use clap_complete::Shell;
use strum::VariantNames;

use super::flags::{
    Auth, ListenAddress, PublishFlag, PublishingFlags, ScoreFlags, ServerFlags, duration_within,
};
use super::source::{ExportFlags, SourceFlags};
use crate::client::flags::{
    ApiFlags, ColorFlag, NodesFlags, PlanFlags, PlannerFlags, ReapFlags, StaleAfter,
};
use crate::serve::authorization::Page;
use crate::serve::tls::CertificateFiles;

/// A command, with its configuration.
#[derive(Debug, Parser)]
#[command(
    name = "psi-agent",
    version,
    max_term_width = 100,
    about = "Exports the pressure (PSI) of this node and its cgroups, and scores the contention of its \
             VMs, containers or units.",
    after_help = "The default command is run: `psi-agent --scope all` is `psi-agent run --scope all`.\n\
                  `psi-agent run -h` lists its flags, `psi-agent COMMAND -h` those of a command, and \
                  `--help` explains them.\n\
                  Flags have environment variables: PSI_AGENT_SCOPE for --scope, and so on.\n\n\
                  Exit codes: 0 success; 1 this host does not meet a requirement, explained in one \
                  line; 64 invalid command line."
)]
pub enum Command {
    /// Serve metrics and publish the score until stopped (the default command)
    Run(Box<RunConfig>),
    /// Read twice, 2 s apart, print the metrics and exit
    ///
    /// The score is that of these 2 s, not smoothed.
    Once(OnceConfig),
    /// Show this node and its VMs, containers or units by contention, live in a terminal
    ///
    /// Queries the agent at --listen-address every 2 s, or, without an agent there, reads the kernel
    /// every 5 s. Press / to filter by name, ? for the keys that sort and scroll, and q, Esc or Ctrl-C to
    /// quit. If stdout is not a terminal, top reads twice, 2 s apart, prints one table and exits with 0.
    /// That table has at most 120 columns, or as many as the environment variable COLUMNS.
    ///
    /// CONTENTION: share of its demand that the VM, container or unit waited for because of the node.
    /// CPUS: CPUs used. CPU-WAIT, MEM-WAIT, IO-WAIT: share of time in which some task waited. NODE: part
    /// of CPU-WAIT because of the node (CPU ready). LIMIT: part that own limits explain. RELIEF: CPUs'
    /// worth of waiting that would end if the VM left the node. A dash is an unknown value; most are
    /// unknown in the first table. A live table omits columns of dashes.
    Top(TopConfig),
    /// Check the agent's requirements on this host, and print a remedy for each that is not met
    Check(CheckConfig),
    /// List the cluster's nodes by their published scores, with the age of each
    ///
    /// LEVEL: the label of the node, or else the level of its score by the default of --levels. HEADROOM:
    /// busy vCPUs that can be added before the level is medium. CANDIDATE: UID of the pod of the VM with
    /// the most relief. DEMAND, WAITING: CPUs, averaged over 30 min.
    Nodes(ClusterCommand<NodesFlags>),
    /// Remove stale published scores from Nodes
    Reap(ClusterCommand<ReapFlags>),
    /// Propose moves of VMs from contended nodes to nodes with headroom
    ///
    /// Reads Nodes, pods, and KubeVirt's VMs and migrations. Creates migrations only with --apply.
    /// GAIN: CPUs' worth of waiting that would end on both nodes together. DEMAND: CPUs that the VM, or
    /// all of the node, would use without waiting, averaged over 30 min, before and after the move.
    Plan(ClusterCommand<PlanFlags>),
    /// Plan again and again, and create the migrations of the plans with --apply
    ///
    /// Runs once in a cluster. Its Lease, psi-agent-planner, keeps what has to survive a restart. Three
    /// failed or cancelled migrations in a row stop it until `plan --resume`.
    Planner(PlannerConfig),
    /// Serve the published scores of all Nodes in the APIs that deschedulers and schedulers poll
    ///
    /// /api/v1/query responds to the descheduler as Prometheus does, with the slow score of each Node.
    /// /watcher responds to Trimaran as load-watcher does. /prioritize is an extender of
    /// kube-scheduler. A Node without a fresh score gets the average of the others.
    Bridge(BridgeConfig),
    /// Serve the page, metrics and snapshot of a recorded node, in a loop
    ///
    /// A node with three VMs, one of which its own limit throttles, beside a batch job. It needs no cluster
    /// and no load: open the address that it logs, or run `psi-agent top`.
    Demo(ListenAddress),
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

#[derive(Debug, Args)]
pub struct RunConfig {
    #[command(flatten)]
    pub server: ServerFlags,
    /// Authentication for /metrics
    ///
    /// kubernetes requires TLS, and a cluster whose API server reviews the tokens.
    #[arg(long, env, value_enum, default_value_t = Auth::None, help_heading = "Server",
          requires_if("kubernetes", "tls_cert_file"))]
    pub auth: Auth,
    /// Clients that may open the page and /snapshot.json
    ///
    /// loopback: clients on this host or in this pod, `kubectl port-forward` included. anywhere: all
    /// clients that may read the metrics. off: none.
    #[arg(long, env, default_value = "loopback", help_heading = "Server",
          value_parser = PossibleValuesParser::new(Page::VARIANTS).try_map(|word| word.parse::<Page>()))]
    pub page: Page,
    #[command(flatten)]
    pub source: SourceFlags,
    #[command(flatten)]
    pub export: ExportFlags,
    #[command(flatten)]
    pub score: ScoreFlags,
    #[command(flatten)]
    pub publishing: PublishingFlags,
}

#[derive(Debug, Args)]
pub struct OnceConfig {
    #[command(flatten)]
    pub source: SourceFlags,
    #[command(flatten)]
    pub export: ExportFlags,
    #[command(flatten)]
    pub score: ScoreFlags,
}

#[derive(Debug, Args)]
pub struct TopConfig {
    #[command(flatten)]
    pub listen: ListenAddress,
    #[command(flatten)]
    pub source: SourceFlags,
    #[command(flatten)]
    pub score: ScoreFlags,
    #[command(flatten)]
    pub color: ColorFlag,
}

#[derive(Debug, Args)]
pub struct CheckConfig {
    #[command(flatten)]
    pub certificate: Option<CertificateFiles>,
    #[command(flatten)]
    pub source: SourceFlags,
    #[command(flatten)]
    pub publish: PublishFlag,
    /// Score from 0 to 100 above which the check fails, for scripts
    #[arg(long, env, value_name = "SCORE", value_parser = value_parser!(u8).range(..=100),
          help_heading = "Score")]
    pub max_score: Option<u8>,
}

// A command that needs only the API server. No doc comment: it would become the description of each.
#[derive(Debug, Args)]
pub struct ClusterCommand<F: Args> {
    #[command(flatten)]
    pub api: ApiFlags,
    #[command(flatten)]
    pub flags: F,
}

#[derive(Debug, Args)]
#[command(mut_arg("listen_address", |address| {
    address.help("Address of the HTTP server").default_value("127.0.0.1:9943")
}))]
#[command(next_help_heading = "Nodes")]
pub struct BridgeConfig {
    #[command(flatten)]
    pub server: ServerFlags,

    #[command(flatten)]
    pub api: ApiFlags,

    /// Label selector of Nodes, in kubectl's syntax; empty for all Nodes
    #[arg(long, env, value_name = "SELECTOR", default_value = "kubevirt.io/schedulable=true")]
    pub node_selector: String,

    /// Window over which each node's score is averaged, 10s to 1h
    // A shorter one follows every burst; with a longer one, a node's score stays high for hours.
    #[arg(long, env, value_name = "DURATION", default_value = "10m",
          value_parser = duration_within([10, 3_600], "a window is 10s to 1h long"))]
    pub window: Duration,

    #[command(flatten)]
    pub stale: StaleAfter,
}

#[derive(Debug, Args)]
#[command(mut_arg("listen_address", |address| {
    address.help("Address of the HTTP server").default_value("127.0.0.1:9945")
}))]
pub struct PlannerConfig {
    #[command(flatten)]
    pub listen: ListenAddress,

    #[command(flatten)]
    pub api: ApiFlags,

    #[command(flatten)]
    pub flags: PlannerFlags,
}
