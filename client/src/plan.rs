//! `psi-agent plan`: which VM to move from which node to which, and what stands in the way of others.

mod objects;
pub mod planner;
mod report;

use std::io::{IsTerminal, Write, stderr, stdin};

use anyhow::{Context, bail};
use jiff::Timestamp;
use psi_agent_plan::{ProposedMove, propose};
use serde::de::IgnoredAny;
use serde_json::json;

use crate::cluster::{ApiClient, migrations};
use crate::contract::Prefix;
use crate::flags::{PlanFlags, PlanOutput};
use crate::output::print;

const CANNOT_WRITE: &str = "cannot write the outcome";

/// Prints a plan, and creates its migrations if that is wanted; or resumes a planner.
pub async fn plan(
    api: &ApiClient,
    prefix: &Prefix,
    flags: &PlanFlags,
    now: impl Fn() -> Timestamp,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if flags.resume {
        return planner::resume(api, prefix, &flags.rules.lease_namespace, out).await;
    }
    let proposal = async || {
        let cluster = objects::read(api, prefix).await?;
        anyhow::Ok(propose(&cluster, &flags.rules.rules(), now()))
    };
    let shown = proposal().await?;
    let text = match flags.output {
        PlanOutput::Table => report::table(&shown),
        PlanOutput::Json => format!("{:#}\n", json!(shown)),
        PlanOutput::Yaml => report::manifests(&shown, prefix, now()),
    };
    print(text, out).context("cannot write the plan")?;
    let moves = if flags.apply { &shown.moves[..] } else { &[] };
    if !moves.is_empty() && !flags.yes {
        if !stdin().is_terminal() {
            bail!("--apply asks before it creates migrations: run it in a terminal, or set --yes");
        }
        // Not among the plan, which may go to a file.
        let question = format!("Create migrations of {} VMs? [y/N] ", moves.len());
        print(question, &mut stderr()).context("cannot write the question")?;
        let mut answer = String::new();
        stdin().read_line(&mut answer).context("cannot read the answer")?;
        if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            return print("No migration created\n", &mut stderr()).context(CANNOT_WRITE);
        }
        // The answer may have taken its time.
        let current = proposal().await?.moves;
        let place = |one: &ProposedMove| (one.uid.clone(), one.target.clone());
        if !moves.iter().all(|one| current.iter().any(|other| place(one) == place(other))) {
            bail!("the plan has changed since the question: run it again");
        }
    }
    for one in moves {
        let migration = report::manifest(one, prefix, now());
        let created = api.create::<IgnoredAny>(&migrations(&one.namespace), &migration).await;
        created.with_context(|| format!("cannot create a migration of VM {}", one.full_name()))?;
        let line = format!("{}: migration to {} created\n", one.full_name(), one.target);
        // After JSON or YAML, which other programs read, it would be a part of it.
        match flags.output {
            PlanOutput::Table => print(line, out),
            PlanOutput::Json | PlanOutput::Yaml => print(line, &mut stderr()),
        }
        .context(CANNOT_WRITE)?;
    }
    Ok(())
}
