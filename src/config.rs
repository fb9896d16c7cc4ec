//! The command line and its environment variables. The flags of a command are its configuration, which
//! [`Command::parse`] checks. No other module reads either, except that `top` reads `COLUMNS`, `NO_COLOR` and `TERM`.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches};

pub use command::{
    BridgeConfig, CheckConfig, ClusterCommand, Command, OnceConfig, PlannerConfig, RunConfig,
    TopConfig,
};
pub use flags::{
    Auth, ListenAddress, LogConfig, LogFormat, OutputFlags, Publish, PublishingFlags, ScoreFlags,
};
pub use source::{CpuSourceFlag, ExportFlags, PodSource, SourceFlags};

use crate::client::flags::with_variable;

mod command;
mod flags;
mod source;
#[cfg(test)]
mod tests;

/// Commands that do not log.
const WITHOUT_LOG: [&str; 2] = ["completions", "man"];

impl Command {
    /// The program with all commands and their flags.
    pub fn program() -> clap::Command {
        Self::command().mut_subcommands(|command| {
            let logs = !WITHOUT_LOG.contains(&command.get_name());
            let command = if logs { LogConfig::augment_args(command) } else { command };
            command.mut_args(with_variable)
        })
    }

    /// Parses and checks the arguments, the first of which is the program's name. Without a command,
    /// they are those of `run`. The log is `None` for commands that do not log.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Option<LogConfig>), clap::Error> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let own = ["-h", "--help", "-V", "--version"];
        let first = arguments.get(1).and_then(|first| first.to_str());
        if first.is_none_or(|first| first.starts_with('-') && !own.contains(&first)) {
            arguments.insert(arguments.len().min(1), "run".into());
        }
        // The short help has no environment variables, so that most flags have a single line.
        let is_short = arguments.iter().any(|argument| argument == "-h");
        let program = Self::program()
            .mut_subcommands(|command| command.mut_args(|argument| argument.hide_env(is_short)));
        let matches = program.try_get_matches_from(arguments)?;
        let command = Self::from_arg_matches(&matches)?;
        let flags = matches.subcommand().filter(|(name, _)| !WITHOUT_LOG.contains(name));
        let log = flags.map(|(_, flags)| LogConfig::from_arg_matches(flags)).transpose()?;
        // Every pod has this variable; Kubernetes' client libraries rely on it too.
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let checked = command.check(in_cluster);
        checked.map_err(|error| clap::Error::raw(ErrorKind::ArgumentConflict, error))?;
        Ok((command, log))
    }

    /// Which flags contradict each other. `in_cluster`: this process has a service account.
    fn check(&self, in_cluster: bool) -> Result<(), String> {
        let (source, publish, auth) = match self {
            Self::Run(config) => {
                let RunConfig { source, publishing, auth, .. } = &**config;
                (source, publishing.publish.mode(source), *auth)
            }
            Self::Check(CheckConfig { source, publish, .. }) => {
                (source, publish.mode(source), Auth::None)
            }
            Self::Once(OnceConfig { source, .. }) | Self::Top(TopConfig { source, .. }) => {
                (source, Publish::Off, Auth::None)
            }
            Self::Bridge(_) | Self::Nodes(_) | Self::Reap(_) | Self::Plan(_) | Self::Planner(_) => {
                return Ok(());
            }
            Self::Demo(_) | Self::Completions { .. } | Self::Man { .. } => return Ok(()),
        };
        let has_cluster = in_cluster || source.api.kubeconfig.is_some();
        // What needs the API server.
        let flag = match (publish, auth) {
            (Publish::On, _) => Some("--publish on"),
            (_, Auth::Kubernetes) => Some("--auth kubernetes"),
            (Publish::DryRun | Publish::Off, Auth::None) => None,
        };
        Err(match (source.pods(), has_cluster, flag) {
            (PodSource::Cluster(_), false, _) => {
                "--node-name needs a cluster: run as a pod with a service account, or set \
                 --kubeconfig"
                    .into()
            }
            (PodSource::Standalone, true, _) => {
                "in a cluster --node-name is required: set it (in a DaemonSet, from spec.nodeName)"
                    .into()
            }
            (PodSource::Standalone, false, _) if source.selection(None).vms_only => {
                "--scope virt-launcher needs a source of pods: set --kubeconfig or --pods-file"
                    .into()
            }
            (PodSource::Standalone, false, Some(flag)) => format!(
                "{flag} needs a cluster: run as a pod with a service account, or set --kubeconfig and \
                 --node-name"
            ),
            (PodSource::File(_), _, Some(flag)) => {
                format!("{flag} needs the API server, which --pods-file replaces: omit one of them")
            }
            (PodSource::Standalone | PodSource::File(_) | PodSource::Cluster(_), ..) => {
                return Ok(());
            }
        })
    }
}
