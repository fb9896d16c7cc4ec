//! Parses the command, runs it, and turns the outcome into an exit code.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::Context;
use clap_mangen::Man;
use psi_agent::client::cluster::block_on;
use psi_agent::client::output::{WRONG_USAGE, print};
use psi_agent::client::{nodes, plan, reap};
use psi_agent::config::{ClusterCommand, Command};
use psi_agent::{agent, bridge, check, clock, demo, log, once, planner, top};

fn main() -> ExitCode {
    let (command, log) = match Command::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
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
    let is_shown = !matches!(command, Command::Top(_)) || !stderr().is_terminal();
    let log = log.filter(|_| is_shown).map(log::start);
    let outcome = execute(&command);
    // Writes the queued log lines, so that the error comes last.
    drop(log);
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(stderr(), "psi-agent: {error:#}");
        ExitCode::FAILURE
    })
}

fn execute(command: &Command) -> anyhow::Result<ExitCode> {
    let (out, now) = (&mut stdout(), || clock::now().timestamp());
    match command {
        Command::Run(config) => agent::run(config)?,
        Command::Once(config) => once::once(config, out)?,
        Command::Top(config) => top::top(config)?,
        Command::Check(config) => return check::check(config, out),
        Command::Nodes(ClusterCommand { api, flags }) => block_on(async {
            nodes::nodes(&api.connect().await?, &api.prefix, flags, now, out).await
        })?,
        Command::Reap(ClusterCommand { api, flags }) => block_on(async {
            reap::reap(&api.connect().await?, &api.prefix, flags, now, out).await
        })?,
        Command::Plan(ClusterCommand { api, flags }) => block_on(async {
            plan::plan(&api.connect().await?, &api.prefix, flags, now, out).await
        })?,
        Command::Planner(config) => planner::planner(config)?,
        Command::Bridge(config) => bridge::bridge(config)?,
        Command::Demo(config) => demo::demo(config)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Command::program(), "psi-agent", &mut script);
            print(script, out).context("cannot write the completions")?;
        }
        Command::Man { dir: None } => {
            let mut page = Vec::new();
            let rendered = Man::new(Command::program()).render(&mut page);
            let written = rendered.and_then(|()| print(page, out));
            written.context("cannot write the manual to stdout")?;
        }
        Command::Man { dir: Some(dir) } => clap_mangen::generate_to(Command::program(), dir)
            .with_context(|| format!("cannot write the manual to {}", dir.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The message of an error, without the usage that clap prints below it.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let parts = what.trim_start_matches("error:").split("\n\n");
    let parts = parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    format!("{}; try --help", parts.collect::<Vec<_>>().join("; "))
}
