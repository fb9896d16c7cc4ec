//! The command line and its environment twins, to what the program needs. The only reader of
//! either.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use crate::collector::{Groups, Selection};
use crate::contract::{Level, Prefix, Thresholds};
use crate::export::families::FamilyGroup;
use crate::kernel::cgroup_dir::Resource;
use crate::publish::node_patch::Outputs;
use crate::sample::CpuSource;
use crate::score::Counted;
pub use access::{Access, Auth};
pub use bridge::Bridge;
pub use command::Command;
use command::TypedCommand;
pub use error::ConfigError;
use flags::{Flags, LogFormat, LogLevel};
pub use pods::PodSource;
pub use publish::Publish;
pub use scope::Scope;

mod access;
mod age;
mod bridge;
mod command;
mod error;
mod flags;
mod pods;
mod publish;
mod scope;

/// What was typed.
#[derive(Debug, Parser)]
#[command(
    name = "psi-agent",
    version,
    about = "Exports the pressure (PSI) of this node and its cgroups to Prometheus.",
    after_help = "Exit codes: 0 all well; 1 something on this host does not let it run, said in \
                  one line; 64 the command line is wrong.\n\
                  Without a command it runs; every flag can also be set by its environment variable."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<TypedCommand>,
    #[command(flatten)]
    flags: Flags,
}

/// How to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// The least severe level that is logged.
    pub level: tracing::Level,
    /// JSON or text; `None` where the terminal decides.
    pub json: Option<bool>,
}

impl LogConfig {
    fn of(level: LogLevel, format: LogFormat) -> Self {
        let level = match level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Trace => tracing::Level::TRACE,
        };
        let json = match format {
            LogFormat::Auto => None,
            LogFormat::Text => Some(false),
            LogFormat::Json => Some(true),
        };
        Self { level, json }
    }
}

/// What the program needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// What to do.
    pub command: Command,
    /// Where to listen.
    pub listen_address: SocketAddr,
    /// TLS, authentication, and the page.
    pub access: Access,
    /// The host's `/proc`.
    pub proc_root: PathBuf,
    /// Source of CPU wait time; `None` is `auto`.
    pub cpu_source: Option<CpuSource>,
    /// The top of the cgroup2 tree, where one was named.
    pub cgroup_root: Option<PathBuf>,
    /// Who tells of pods.
    pub pods: PodSource,
    /// How people reach the API server, if not by kubectl's rules.
    pub kubeconfig: Option<PathBuf>,
    /// What keys on Nodes begin with.
    pub prefix: Prefix,
    /// Which cgroups.
    pub selection: Selection,
    /// Which metrics.
    pub families: Vec<FamilyGroup>,
    /// Which resources make up the score.
    pub counted: Counted,
    /// Where the score's levels begin.
    pub thresholds: Thresholds,
    /// What happens to the score.
    pub publish: Publish,
    /// What is written on the Node besides annotations.
    pub outputs: Outputs,
    /// How to log.
    pub log: LogConfig,
}

impl Config {
    /// Which groups of files the metrics need.
    #[must_use]
    pub fn groups(&self) -> Groups {
        let has = |group| self.families.contains(&group);
        Groups {
            cpu: has(FamilyGroup::Cpu),
            memory: has(FamilyGroup::Memory),
            io: has(FamilyGroup::Io),
            processes: has(FamilyGroup::Processes),
            // Throttling is only exported where a quota is set.
            spec: has(FamilyGroup::Spec) || has(FamilyGroup::Cpu),
        }
    }
}

impl TryFrom<CommandLine> for Config {
    type Error = ConfigError;

    fn try_from(CommandLine { command, flags }: CommandLine) -> Result<Self, ConfigError> {
        let Flags {
            node_name,
            kubeconfig,
            prefix,
            pods_file,
            listen_address,
            tls_cert_file,
            tls_private_key_file,
            auth,
            page,
            proc_root,
            cpu_source,
            cgroup_root,
            scope,
            cgroup_levels,
            families,
            levels,
            score_resources,
            publish,
            label,
            taint_levels,
            log_level,
            log_format,
        } = flags;
        // What every pod has, and client libraries go by.
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let command = command.map_or(Command::Run, Command::from);
        let pods = match &command {
            Command::Nodes | Command::Reap(_) | Command::Bridge(_) => PodSource::Nobody,
            Command::Run | Command::Once | Command::Top | Command::Check => {
                PodSource::of(pods_file, kubeconfig.clone(), node_name, in_cluster)?
            }
        };
        let scope = Scope::of(scope, &pods)?;
        let publish = Publish::of(publish, &pods, &command)?;
        let access = Access::new(tls_cert_file, tls_private_key_file, auth, page.into())?;
        auth.check(&pods, access.certificate.is_some(), &command)?;
        Ok(Config {
            pods,
            kubeconfig,
            prefix,
            listen_address: listen_address.unwrap_or_else(|| command.default_address()),
            command,
            access,
            proc_root,
            cpu_source: cpu_source.into(),
            cgroup_root,
            selection: scope.selection(&cgroup_levels),
            families,
            counted: score_resources.into_iter().map(Resource::from).collect(),
            thresholds: levels,
            publish,
            outputs: Outputs { label, taints: taint_levels.into_iter().map(Level::from).collect() },
            log: LogConfig::of(log_level, log_format),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::serve::authorization::{AccessRules, Page};
    use clap::CommandFactory;

    fn config(line: &str) -> Config {
        CommandLine::try_parse_from(line.split(' ')).unwrap().try_into().unwrap()
    }

    #[test]
    fn the_scope_follows_from_who_tells_of_pods() {
        assert!(config("psi-agent").selection.everything);
        assert!(config("psi-agent --pods-file pods.json").selection.vms_only);
        assert!(!config("psi-agent --pods-file pods.json --scope pods").selection.vms_only);
        let alone = CommandLine::try_parse_from(["psi-agent", "--scope", "virt-launcher"]).unwrap();
        assert_eq!(Config::try_from(alone).unwrap_err(), ConfigError::ScopeWithoutPods);
    }

    #[test]
    fn what_is_published_follows_from_there_being_a_node() {
        assert_eq!(config("psi-agent").publish, Publish::DryRun);
        assert_eq!(config("psi-agent --publish off").publish, Publish::Off);
        let node = "psi-agent --kubeconfig c --node-name n";
        assert_eq!(config(node).publish, Publish::On);
        let line = format!("{node} --publish dry-run --label --taint-levels medium,high");
        let config = config(&line);
        assert_eq!(config.publish, Publish::DryRun);
        assert!(config.outputs.label);
        assert_eq!(config.outputs.taints, [Level::Medium, Level::High].into());
        let alone = CommandLine::try_parse_from(["psi-agent", "--publish", "on"]).unwrap();
        assert_eq!(Config::try_from(alone).unwrap_err(), ConfigError::PublishWithoutCluster);
    }

    #[test]
    fn tokens_need_a_cluster_and_tls_and_tls_needs_both_files() {
        let error = |line: &str| {
            let typed = CommandLine::try_parse_from(line.split(' ')).unwrap();
            Config::try_from(typed).unwrap_err()
        };
        let half = "psi-agent --tls-cert-file c";
        assert_eq!(error(half), ConfigError::HalfACertificate);
        assert_eq!(error("psi-agent --tls-private-key-file k"), ConfigError::HalfACertificate);
        let tls = format!("{half} --tls-private-key-file k");
        let tokens = format!("{tls} --auth kubernetes");
        assert_eq!(error(&tokens), ConfigError::AuthWithoutCluster);
        let cluster = "--kubeconfig c --node-name n";
        let clear = format!("psi-agent --auth kubernetes {cluster}");
        assert_eq!(error(&clear), ConfigError::AuthWithoutTls);

        let rules = config(&format!("{tokens} {cluster} --page anywhere")).access.rules();
        assert_eq!(rules, AccessRules { tls: true, tokens: true, page: Page::Anywhere });
        assert_eq!(
            config(&tls).access.rules(),
            AccessRules { tls: true, ..AccessRules::default() }
        );
        assert_eq!(config("psi-agent").access.rules(), AccessRules::default());
        // The same environment stands around `psi-agent top` in the agent's pod.
        assert_eq!(config("psi-agent top --auth kubernetes").access.auth, Auth::Kubernetes);
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_cluster_needs_a_node_and_a_node_a_cluster() {
        let of = |kubeconfig: Option<&str>, node: Option<&str>, in_cluster| {
            PodSource::of(None, kubeconfig.map(Into::into), node.map(Into::into), in_cluster)
        };
        assert_eq!(of(None, None, true), Err(ConfigError::ClusterWithoutNode));
        assert_eq!(of(Some("c"), None, false), Err(ConfigError::ClusterWithoutNode));
        assert_eq!(of(None, Some("n"), false), Err(ConfigError::NodeWithoutCluster));
        let cluster = |kubeconfig| Cluster { kubeconfig, node_name: "n".into() };
        assert_eq!(of(None, Some("n"), true), Ok(PodSource::Cluster(cluster(None))));
        let outside = PodSource::Cluster(cluster(Some("c".into())));
        assert_eq!(of(Some("c"), Some("n"), true), Ok(outside));
        assert_eq!(of(None, None, false), Ok(PodSource::Nobody));
    }

    #[test]
    fn flags_stand_before_or_after_the_command() {
        assert!(!config("psi-agent --scope pods once").selection.everything);
        let after = config("psi-agent once --scope pods --families pressure,node");
        assert!(!after.selection.everything);
        assert_eq!(after.command, Command::Once);
        assert_eq!(after.families, [FamilyGroup::Pressure, FamilyGroup::Node]);
        assert_eq!(after.groups(), Groups::default());
    }

    #[test]
    fn every_flag_has_an_environment_variable_of_its_name() {
        for argument in CommandLine::command().get_arguments() {
            let id = argument.get_id().as_str();
            if id == "help" || id == "version" {
                continue;
            }
            let expected = format!("PSI_AGENT_{}", id.to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(&*expected));
        }
    }
}
