//! Load processes, and their reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::Context;

use crate::scenario::Load;
use crate::tree;

/// Starts a load in a cgroup; it counts between two moments of the monotonic clock. `number` tells it
/// from the other loads of the node.
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

/// The file of a pod's report.
pub fn report_of(pod: &str) -> PathBuf {
    Path::new("/tmp").join(format!("{pod}.report"))
}

/// The work of a load of memory or I/O. One that sleeps too long to report, as above `memory.high`,
/// counts as 0.
pub fn work_of(pod: &str) -> anyhow::Result<f64> {
    let report = fs::read_to_string(report_of(pod)).unwrap_or_default();
    if report.is_empty() { Ok(0.0) } else { report.parse().context(report) }
}

/// Ends a process and its cgroup.
pub fn finish(mut child: Child, cgroup: &Path) -> anyhow::Result<()> {
    tree::remove(cgroup)?;
    child.wait()?;
    Ok(())
}
