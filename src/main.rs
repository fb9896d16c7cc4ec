//! Parses, runs, and turns the outcome into an exit code; nothing else.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use clap::Parser;
use psi_agent::cluster::{ApiClient, block_on};
use psi_agent::config::{Command, CommandLine, Config, LogConfig, LogFormat};
use psi_agent::{agent, bridge, check, clock, nodes, once, reap, top};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

/// EX_USAGE of sysexits.h.
const WRONG_USAGE: u8 = 64;

fn main() -> ExitCode {
    let config = match CommandLine::try_parse() {
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
    // On the terminal that the table is on, a log would be written over it.
    if config.command != Command::Top || !stderr().is_terminal() {
        start_logging(config.log);
    }
    let outcome = match &config.command {
        Command::Run => agent::run(&config).map(|()| ExitCode::SUCCESS),
        Command::Once => once::once(&config, &mut stdout().lock()).map(|()| ExitCode::SUCCESS),
        Command::Top => top::top(&config).map(|()| ExitCode::SUCCESS),
        Command::Check => check::check(&config, &mut stdout().lock()),
        Command::Nodes => with_api(&config, async |api| {
            let (now, width) = (clock::now().timestamp(), nodes::terminal_width());
            nodes::nodes(&api, &config.prefix, now, width, &mut stdout().lock()).await
        }),
        Command::Reap(flags) => with_api(&config, async |api| {
            let (now, keys) = (clock::now().timestamp(), flags.selection());
            reap::reap(&api, &config.prefix, keys, now, &mut stdout().lock()).await
        }),
        Command::Bridge(settings) => bridge::bridge(&config, settings).map(|()| ExitCode::SUCCESS),
    };
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
        command(ApiClient::connect_as_kubectl(config.kubeconfig.as_ref()).await?).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What is wrong, without the usage that clap shows below it.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let words: Vec<&str> = what.trim_start_matches("error:").split_whitespace().collect();
    format!("{}; try --help", words.join(" "))
}

fn start_logging(config: LogConfig) {
    let terminal = stderr().is_terminal();
    let log = fmt::layer().with_writer(stderr).with_target(false).with_ansi(terminal);
    // Libraries log each failed request, the agent logs an error once.
    let quiet =
        Targets::new().with_default(LevelFilter::OFF).with_target("psi_agent", config.level);
    match config.format {
        LogFormat::Auto if terminal => registry().with(log.with_filter(quiet)).init(),
        LogFormat::Text => registry().with(log.with_filter(quiet)).init(),
        LogFormat::Auto | LogFormat::Json => registry().with(log.json().with_filter(quiet)).init(),
    }
}
