//! The command line and its environment variables. The flags of a command are its configuration, which
//! `rules.rs` checks. No other module reads either, except that `top` reads `COLUMNS`, `NO_COLOR` and `TERM`.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches};

pub use command::{
    BridgeConfig, CheckConfig, Command, OnceConfig, PlannerConfig, RunConfig, TopConfig,
};
pub use flags::{
    Auth, ListenAddress, LogConfig, LogFormat, OutputFlags, Publish, PublishingFlags, ScoreFlags,
};
pub use source::{CpuSourceFlag, ExportFlags, PodSource, SourceFlags};

mod command;
mod flags;
mod rules;
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
            if logs { LogConfig::augment_args(command) } else { command }
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
        let checked = rules::check(&command, in_cluster);
        checked.map_err(|error| clap::Error::raw(ErrorKind::ArgumentConflict, error))?;
        Ok((command, log))
    }
}
