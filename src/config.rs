//! The command line and its environment variables, as a checked [`Config`]. No other module reads
//! either, except that `top` reads `COLUMNS`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};

use crate::client::flags::ApiFlags;
use crate::contract::{Prefix, Thresholds};
use crate::export::families::FamilyGroup;
use crate::identity::selection::Selection;
use crate::kernel::cgroup_dir::Resource;
use crate::publish::node_patch::Outputs;
use crate::sample::Groups;
use crate::waiting::CpuSource;
pub use access::{Access, Auth};
pub use bridge::Bridge;
use cluster::CgroupLevel;
pub use cluster::{PodSource, Publish, Scope};
use command::RunFlags;
pub use command::{Command, NodesFlags, ReapCommand};
pub use error::ConfigError;
use flags::{DEFAULT_ADDRESS, ScoreFlags, ServerFlags, SourceFlags};
pub use flags::{LogConfig, LogFormat};
pub use generated::{write_completions, write_manual};
use values::HEARTBEATS;

mod access;
mod bridge;
mod cluster;
mod command;
mod error;
mod flags;
mod generated;
#[cfg(test)]
mod tests;
mod values;

/// The command line as typed.
#[derive(Debug, Parser)]
#[command(
    name = "psi-agent",
    version,
    max_term_width = 100,
    about = "Exports the pressure (PSI) of this node and its cgroups, and scores the contention of its VMs.",
    after_help = "The default command is run: `psi-agent --scope all` is `psi-agent run --scope all`.\n\
                  `psi-agent COMMAND -h` lists the flags of a command, `--help` explains them.\n\
                  Flags have environment variables: PSI_AGENT_SCOPE for --scope, and so on.\n\n\
                  Exit codes: 0 success; 1 this host does not meet a requirement, explained in one \
                  line; 64 invalid command line."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

impl CommandLine {
    /// Parses the arguments, the first of which is the program's name. Without a command, they are
    /// those of `run`.
    pub fn parse_arguments(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let own = ["-h", "--help", "-V", "--version"];
        let first = arguments.get(1).and_then(|first| first.to_str());
        if first.is_none_or(|first| first.starts_with('-') && !own.contains(&first)) {
            arguments.insert(arguments.len().min(1), "run".into());
        }
        // The short help has no environment variables, so that most flags have a single line.
        let is_short = arguments.iter().any(|argument| argument == "-h");
        let command = Self::command()
            .mut_subcommands(|command| command.mut_args(|argument| argument.hide_env(is_short)));
        Self::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }
}

/// The settings of one run of the program. Settings without a flag of the command have their
/// defaults.
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
    /// Kubeconfig of the commands that follow kubectl's rules; `None` for kubectl's default.
    pub kubeconfig: Option<PathBuf>,
    pub prefix: Prefix,
    pub selection: Selection,
    pub families: Vec<FamilyGroup>,
    /// Resources that the score includes.
    pub counted: Vec<Resource>,
    pub thresholds: Thresholds,
    /// Whether the score is published on the Node.
    pub publish: Publish,
    /// Time after which unchanged values on the Node are renewed.
    pub heartbeat_interval: Duration,
    /// Label and taints, beside the annotations.
    pub outputs: Outputs,
    /// Time for which a VM is not named as the one to move first after it arrived or started.
    pub candidate_min_age: Duration,
    /// Whether the pod of the VM to move first gets a label.
    pub mark_candidate: bool,
    pub log: LogConfig,
}

impl Config {
    fn new(command: Command, log: LogConfig) -> Self {
        Self {
            command,
            listen_address: DEFAULT_ADDRESS,
            probe_address: None,
            access: Access::default(),
            proc_root: "/proc".into(),
            cpu_source: None,
            cgroup_root: None,
            pods: PodSource::Standalone,
            kubeconfig: None,
            prefix: Prefix::default(),
            selection: Scope::All.selection(CgroupLevel::value_variants()),
            families: FamilyGroup::value_variants().to_vec(),
            counted: vec![Resource::Cpu, Resource::Memory],
            thresholds: Thresholds::default(),
            publish: Publish::DryRun,
            heartbeat_interval: *HEARTBEATS.start(),
            outputs: Outputs::default(),
            candidate_min_age: Duration::ZERO,
            mark_candidate: false,
            log,
        }
    }

    fn set_server(&mut self, flags: ServerFlags) -> Result<(), ConfigError> {
        self.listen_address = flags.listen.listen_address;
        self.probe_address = flags.probe_address;
        self.access.certificate = flags.tls.certificate()?;
        Ok(())
    }

    fn set_source(
        &mut self,
        flags: SourceFlags,
        levels: &[CgroupLevel],
    ) -> Result<(), ConfigError> {
        // Every pod has this variable; Kubernetes' client libraries rely on it too.
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let kubeconfig = flags.kubeconfig.kubeconfig;
        self.pods = PodSource::new(flags.pods_file, kubeconfig, flags.node_name, in_cluster)?;
        self.prefix = flags.prefix.prefix;
        self.selection = Scope::new(flags.scope, &self.pods)?.selection(levels);
        self.proc_root = flags.proc_root;
        self.cpu_source = flags.cpu_source.into();
        self.cgroup_root = flags.cgroup_root;
        Ok(())
    }

    fn set_score(&mut self, flags: ScoreFlags) {
        self.counted = flags.score_resources;
        self.thresholds = flags.levels;
    }

    fn set_api(&mut self, flags: ApiFlags) {
        self.kubeconfig = flags.kubeconfig.kubeconfig;
        self.prefix = flags.prefix.prefix;
    }

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

    fn try_from(CommandLine { command }: CommandLine) -> Result<Self, ConfigError> {
        let mut config = Config::new(command.clone(), command.log());
        let all_levels = CgroupLevel::value_variants();
        match command {
            Command::Run(flags) => {
                let RunFlags { access, publishing, export, .. } = *flags;
                config.set_server(flags.server)?;
                config.set_source(flags.source, &export.cgroup_levels)?;
                config.families = export.families;
                config.set_score(flags.score);
                config.publish = Publish::new(flags.publish.publish, &config.pods);
                config.publish.check(&config.pods)?;
                config.heartbeat_interval = publishing.heartbeat_interval;
                let taints = publishing.taint_levels.into_iter().collect();
                config.outputs = Outputs { label: publishing.label, taints };
                config.candidate_min_age = publishing.candidate_min_age;
                config.mark_candidate = publishing.mark_candidate;
                config.access = Access { auth: access.auth, page: access.page, ..config.access };
                config.access.check(&config.pods)?;
            }
            Command::Once(flags) => {
                config.set_source(flags.source, &flags.export.cgroup_levels)?;
                config.families = flags.export.families;
                config.set_score(flags.score);
            }
            Command::Top(flags) => {
                config.listen_address = flags.listen.listen_address;
                config.set_source(flags.source, all_levels)?;
                config.set_score(flags.score);
            }
            Command::Check(flags) => {
                config.access.certificate = flags.tls.certificate()?;
                config.set_source(flags.source, all_levels)?;
                config.publish = Publish::new(flags.publish.publish, &config.pods);
            }
            Command::Nodes(flags) => config.set_api(flags.api),
            Command::Reap(flags) => config.set_api(flags.api),
            Command::Bridge(flags) => {
                config.set_server(flags.server)?;
                config.set_api(flags.api);
            }
            Command::Completions { .. } | Command::Man { .. } => {}
        }
        Ok(config)
    }
}
