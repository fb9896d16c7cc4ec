//! Parses, runs, and turns the outcome into an exit code; nothing else.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::{Display, Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use psi_agent::client::cluster::{ApiClient, block_on};
use psi_agent::client::{nodes, reap};
use psi_agent::config::{Command, CommandLine, Config, write_completions, write_manual};
use psi_agent::{agent, bridge, check, clock, log, once, top};

/// EX_USAGE of sysexits.h.
const WRONG_USAGE: u8 = 64;

fn main() -> ExitCode {
    let config = match CommandLine::parse_arguments(std::env::args_os()) {
        Ok(command_line) => match Config::try_from(command_line) {
            Ok(config) => config,
            Err(error) => {
                let _ = writeln!(stderr(), "psi-agent: {error}; try --help");
                return WRONG_USAGE.into();
            }
        },
        Err(error) if error.use_stderr() => {
            let _ = writeln!(stderr(), "psi-agent: {}", one_line(&error));
            return WRONG_USAGE.into();
        }
        Err(help_or_version) => {
            // An error of a closed pipe can't be shown anywhere.
            let _ = help_or_version.print();
            return ExitCode::SUCCESS;
        }
    };
    // Log lines on the same terminal would overwrite the table of `top`.
    let is_shown = !matches!(config.command, Command::Top(_)) || !stderr().is_terminal();
    let log = is_shown.then(|| log::start(config.log));
    let outcome = match &config.command {
        Command::Run(_) => agent::run(&config).map(|()| ExitCode::SUCCESS),
        Command::Once(_) => once::once(&config, &mut stdout().lock()).map(|()| ExitCode::SUCCESS),
        Command::Top(_) => top::top(&config).map(|()| ExitCode::SUCCESS),
        Command::Check(_) => check::check(&config, &mut stdout().lock()),
        Command::Nodes(flags) => with_api(&config, async |api| {
            let (now, width) = (clock::now().timestamp(), nodes::terminal_width());
            let (prefix, stale_after) = (&config.prefix, flags.stale.stale_after);
            nodes::nodes(&api, prefix, now, stale_after, width, &mut stdout().lock()).await
        }),
        Command::Reap(command) => with_api(&config, async |api| {
            let (now, keys) = (clock::now().timestamp(), command.flags.selection());
            let candidates = command.flags.candidates;
            reap::reap(&api, &config.prefix, keys, candidates, now, &mut stdout().lock()).await
        }),
        Command::Bridge(settings) => bridge::bridge(&config, settings).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => {
            write_completions(CommandLine::command(), *shell, &mut stdout())
                .context("cannot write the completions")
                .map(|()| ExitCode::SUCCESS)
        }
        Command::Man { dir } => write_manual(CommandLine::command(), dir.as_deref(), &mut stdout())
            .with_context(|| format!("cannot write the manual to {}", place(dir.as_ref())))
            .map(|()| ExitCode::SUCCESS),
    };
    // Writes the queued log lines, so that the error comes last.
    drop(log);
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(stderr(), "psi-agent: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs a command that needs the API server.
fn with_api(
    config: &Config,
    command: impl AsyncFnOnce(ApiClient) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    block_on(async {
        command(ApiClient::connect_as_kubectl(config.kubeconfig.as_ref(), None).await?).await
    })?;
    Ok(ExitCode::SUCCESS)
}

fn place(directory: Option<&PathBuf>) -> Display<'_> {
    directory.map_or(Path::new("stdout"), PathBuf::as_path).display()
}

/// The message of an error, without the usage that clap prints below it.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let words: Vec<&str> = what.trim_start_matches("error:").split_whitespace().collect();
    format!("{}; try --help", words.join(" "))
}
