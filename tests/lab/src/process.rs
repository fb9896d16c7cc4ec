//! Processes that are loads, and what they wrote down.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::Context;

use crate::scenario::Load;
use crate::tree;

/// Starts one in a cgroup; it counts between two moments of the monotonic clock. `number` tells it
/// from others on the node.
pub fn start_load(
    cgroup: &Path,
    load: Load,
    number: u32,
    (from, until): (f64, f64),
    report: Option<&Path>,
) -> anyhow::Result<Child> {
    if let Some(report) = report {
        let _ = fs::remove_file(report);
    }
    let mut command = Command::new("/bin/psi-lab");
    command.arg("load").arg(cgroup).arg("--load").arg(serde_json::to_string(&load)?);
    command.arg("--number").arg(number.to_string());
    command.arg("--from").arg(from.to_string()).arg("--until").arg(until.to_string());
    if let Some(report) = report {
        command.arg("--report").arg(report);
    }
    command.spawn().context("psi-lab load")
}

/// Where a pod's load says what it missed.
pub fn report_of(pod: &str) -> PathBuf {
    Path::new("/tmp").join(format!("{pod}.missed"))
}

/// What a pod's load of memory or a disk did. One that sleeps too deep to say so, as beyond
/// `memory.high`, did nothing.
pub fn work_of(pod: &str) -> anyhow::Result<f64> {
    let said = fs::read_to_string(report_of(pod)).unwrap_or_default();
    if said.is_empty() { Ok(0.0) } else { said.parse().context(said) }
}

/// Ends a process and its cgroup.
pub fn finish(mut child: Child, cgroup: &Path) -> anyhow::Result<()> {
    tree::remove(cgroup)?;
    child.wait()?;
    Ok(())
}
