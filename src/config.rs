//! The command line and its environment variables, as a checked [`Config`]. No other module reads
//! either.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::contract::{Prefix, Thresholds};
use crate::export::families::FamilyGroup;
use crate::identity::selection::Selection;
use crate::kernel::cgroup_dir::Resource;
use crate::publish::node_patch::Outputs;
use crate::sample::{CpuSource, Groups};
pub use access::{Access, Auth};
pub use bridge::Bridge;
pub use cluster::{PodSource, Publish, Scope};
pub use command::{Command, NodesFlags, ReapFlags};
pub use error::ConfigError;
use flags::Flags;
pub use flags::{LogConfig, LogFormat};

mod access;
mod bridge;
mod cluster;
mod command;
mod error;
mod flags;
#[cfg(test)]
mod tests;

/// The command line as typed.
#[derive(Debug, Parser)]
#[command(
    name = "psi-agent",
    version,
    about = "Exports the pressure (PSI) of this node and its cgroups, and scores the contention of its VMs.",
    after_help = "Exit codes: 0 success; 1 this host does not meet a requirement, explained in one \
                  line; 64 invalid command line.\n\
                  The default command is run. Every flag has an environment variable."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

/// The settings of one run of the program.
#[derive(Debug, Clone)]
pub struct Config {
    pub command: Command,
    /// Address to listen on; for `top`, the agent's.
    pub listen_address: SocketAddr,
    /// Address of a server for probes alone; `None` if the HTTP server is probed.
    pub probe_address: Option<SocketAddr>,
    pub access: Access,
    pub proc_root: PathBuf,
    /// Source of CPU wait time; `None` is `auto`.
    pub cpu_source: Option<CpuSource>,
    /// Root of the cgroup v2 hierarchy; `None` to search for it.
    pub cgroup_root: Option<PathBuf>,
    pub pods: PodSource,
    /// Kubeconfig of the commands that kubectl's rules apply to; `None` for those rules' default.
    pub kubeconfig: Option<PathBuf>,
    pub prefix: Prefix,
    pub selection: Selection,
    pub families: Vec<FamilyGroup>,
    /// Resources that the score includes.
    pub counted: Vec<Resource>,
    pub thresholds: Thresholds,
    /// Where the score goes, besides the metrics.
    pub publish: Publish,
    /// Time after which unchanged values on the Node are renewed.
    pub heartbeat_interval: Duration,
    /// Label and taints, beside the annotations.
    pub outputs: Outputs,
    pub log: LogConfig,
}

impl Config {
    /// Groups of kernel files that the exported families need.
    pub fn groups(&self) -> Groups {
        let has = |group| self.families.contains(&group);
        Groups {
            cpu: has(FamilyGroup::Cpu),
            memory: has(FamilyGroup::Memory),
            io: has(FamilyGroup::Io),
            processes: has(FamilyGroup::Processes),
            // Throttling is exported only where a quota is set, and `cpu.max` is in this group.
            spec: has(FamilyGroup::Spec) || has(FamilyGroup::Cpu),
        }
    }
}

impl TryFrom<CommandLine> for Config {
    type Error = ConfigError;

    fn try_from(CommandLine { command, flags }: CommandLine) -> Result<Self, ConfigError> {
        // Every pod has this variable; Kubernetes' client libraries rely on it too.
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let command = command.unwrap_or(Command::Run);
        let pods = match &command {
            Command::Nodes(_) | Command::Reap(_) | Command::Bridge(_) => PodSource::Standalone,
            Command::Run | Command::Once | Command::Top | Command::Check => PodSource::new(
                flags.pods_file,
                flags.kubeconfig.clone(),
                flags.node_name,
                in_cluster,
            )?,
        };
        let scope = Scope::new(flags.scope, &pods)?;
        let publish = Publish::new(flags.publish, &pods, &command)?;
        let access =
            Access::new(flags.tls_cert_file, flags.tls_private_key_file, flags.auth, flags.page)?;
        flags.auth.check(&pods, access.certificate.is_some(), &command)?;
        let taints = flags.taint_levels.into_iter().collect();
        Ok(Config {
            pods,
            kubeconfig: flags.kubeconfig,
            prefix: flags.prefix,
            listen_address: flags.listen_address.unwrap_or_else(|| command.default_address()),
            command,
            probe_address: flags.probe_address,
            access,
            proc_root: flags.proc_root,
            cpu_source: flags.cpu_source.into(),
            cgroup_root: flags.cgroup_root,
            selection: scope.selection(&flags.cgroup_levels),
            families: flags.families,
            counted: flags.score_resources,
            thresholds: flags.levels,
            publish,
            heartbeat_interval: flags.heartbeat_interval,
            outputs: Outputs { label: flags.label, taints },
            log: flags.log,
        })
    }
}
