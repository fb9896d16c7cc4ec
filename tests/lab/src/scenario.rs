//! A scenario: who runs on the node, with how much to do, and held back by what. One TOML file each.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Loads run for so long where nothing else is said; the last two thirds are judged.
const SECONDS: f64 = 30.0;
pub const JUDGED_FROM: f64 = 10.0;
/// Between two looks at everything, and between two of the agent's.
pub const WINDOW: f64 = 5.0;

/// What runs on a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of its file.
    #[serde(default)]
    pub name: String,
    /// What it is to show, in a sentence.
    pub about: String,
    /// CPUs of the node.
    pub vcpus: u32,
    /// For how long. What runs longer than most tells of the agent's reaction to what comes and goes.
    #[serde(default = "seconds")]
    pub seconds: f64,
    /// Memory or I/O is at work: it takes real time and the disks, and the second table is its own.
    #[serde(default)]
    pub real_time: bool,
    /// Whether the node swaps, to a disk of its own.
    #[serde(default)]
    pub swap: bool,
    /// Only own limits and disks that nobody else uses are at work: the score must be calm.
    #[serde(default)]
    pub nobody_short: bool,
    /// `memory.max` of kubepods, MiB: what the node has for pods.
    pub kubepods_mib: Option<u32>,
    /// Where the score is known to be further off than it should be, and why.
    #[serde(default)]
    pub beyond: Vec<Beyond>,
    /// Pods.
    #[serde(default, rename = "pod")]
    pub pods: Vec<Pod>,
    /// What runs outside pods, as system daemons do.
    #[serde(default, rename = "daemon")]
    pub daemons: Vec<Daemon>,
}

/// A bound that is out of the score's reach in a scenario, on some kernels; another one is kept in its
/// place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beyond {
    /// As they begin: `6.12`.
    pub kernels: Vec<String>,
    pub column: Column,
    /// How far off it may be instead, either way.
    pub error: Option<f64>,
    /// Of what the bound holds, if not of the score and truth.
    pub instead: Option<Instead>,
    /// In a sentence; the argument is in docs/lab.md.
    pub why: String,
}

/// Of what a bound holds where it does not hold of the score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Instead {
    /// CPU: of all VMs together. A quartile at an edge is another VM's value in each window.
    AllTogether,
    /// I/O: of what VMs slept, where they wait in other ways as well.
    Sleep,
}

/// A score of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// CPU, by pressure.
    Psi,
    /// CPU, by run delay.
    RunDelay,
    Memory,
    Io,
}

/// A pod, or several that are alike.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    pub name: String,
    /// Whether it runs a VM, in a container `compute` beside a console log of 15 thousandths of a
    /// CPU; otherwise it has one container, `app`.
    #[serde(default = "yes")]
    pub vm: bool,
    #[serde(default = "one")]
    pub copies: u32,
    #[serde(flatten)]
    pub load: Load,
    /// CPUs that the container may use.
    pub container_cpus: Option<f64>,
    /// CPUs that the pod may use.
    pub pod_cpus: Option<f64>,
    /// What memory the container may use.
    pub container_memory: Option<MemoryLimit>,
    /// What memory the pod may use.
    pub pod_memory: Option<MemoryLimit>,
    /// What the container may do on a disk.
    pub io_max: Option<IoLimit>,
    /// `cpu.weight` of the pod.
    pub weight: Option<u64>,
    /// The pod's own CPUs, as `0-1`.
    pub cpus: Option<String>,
    /// The console log's container writes all the time.
    #[serde(default)]
    pub busy_console: bool,
    /// When it starts, seconds.
    #[serde(default)]
    pub from: f64,
    /// When it ends, seconds; without it, with the scenario.
    pub to: Option<f64>,
    /// A live migration made it, and its VM does not run here yet.
    #[serde(default)]
    pub arriving: bool,
}

/// A process outside pods.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    pub name: String,
    #[serde(flatten)]
    pub load: Load,
}

/// What a process does: each thread wants to run for `duty` of the time, `burst_ms` at a time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Load {
    #[serde(default)]
    pub threads: u32,
    #[serde(default = "whole")]
    pub duty: f64,
    #[serde(default = "ten")]
    pub burst_ms: f64,
    /// Each thread touches memory instead.
    pub memory: Option<Memory>,
    /// Each thread does I/O instead.
    pub io: Option<Io>,
}

/// A working set that each thread has of its own and touches again and again, in random order.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub mib: u32,
    /// Page cache of the fast disk, read; otherwise anonymous and written.
    #[serde(default)]
    pub file: bool,
    /// How much of it is touched in a second, where nothing holds the thread back.
    pub mib_per_second: f64,
}

/// Blocks at random places of a disk, one after the other and as fast as they go.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Io {
    pub disk: Disk,
    pub how: How,
    #[serde(default = "page")]
    pub block_kib: u32,
    /// Operations at once, with native AIO.
    #[serde(default = "one")]
    pub depth: u32,
    /// At most so many operations of each thread in a second.
    pub per_second: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Past the page cache; the thread sleeps until it is done.
    Read,
    Write,
    /// To the page cache; the kernel writes it back.
    BufferedWrite,
    /// Past the page cache with `io_submit`; the thread sleeps in `io_getevents`.
    NativeAio,
}

/// The disks of a node in real time; `machine` says how fast they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disk {
    Fast,
    Slow,
}

/// MiB.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimit {
    pub max: Option<u32>,
    pub high: Option<u32>,
}

/// Reads in a second, and as many writes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoLimit {
    pub disk: Disk,
    pub per_second: u32,
}

fn yes() -> bool {
    true
}
fn one() -> u32 {
    1
}
fn whole() -> f64 {
    1.0
}
fn page() -> u32 {
    4
}
fn ten() -> f64 {
    10.0
}
fn seconds() -> f64 {
    SECONDS
}

impl Scenario {
    /// Reads one file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut scenario: Scenario =
            toml::from_str(&text).with_context(|| path.display().to_string())?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for load in scenario.loads() {
            ensure!(
                load.duty > 0.0 && load.duty <= 1.0 && load.burst_ms > 0.0,
                "{}: duty is a share of time, burst_ms a time",
                path.display()
            );
            ensure!(
                load.memory.is_none() || load.io.is_none(),
                "{}: a load has memory or io, not both",
                path.display()
            );
            ensure!(
                scenario.real_time || load.wants_to_run(),
                "{}: memory and io need real_time = true",
                path.display()
            );
        }
        ensure!(
            !scenario.real_time
                || scenario.pods.iter().all(|pod| pod.from == 0.0 && pod.to.is_none()),
            "{}: in real time pods are there all the time",
            path.display()
        );
        Ok(scenario)
    }

    /// All of a folder, or those named.
    pub fn read_all(folder: &Path, names: &[String]) -> anyhow::Result<Vec<Self>> {
        let mut paths: Vec<_> = if names.is_empty() {
            let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?
        } else {
            names.iter().map(|name| folder.join(format!("{name}.toml"))).collect()
        };
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Whether it is about the agent's reaction, and not about one value.
    pub fn is_long(&self) -> bool {
        self.seconds > SECONDS
    }

    fn loads(&self) -> impl Iterator<Item = Load> + '_ {
        let pods = self.pods.iter().map(|pod| pod.load);
        pods.chain(self.daemons.iter().map(|daemon| daemon.load))
    }
}

impl Load {
    /// Whether CPU time is what it wants, and neither memory nor a disk.
    pub fn wants_to_run(&self) -> bool {
        self.memory.is_none() && self.io.is_none()
    }
}

impl Pod {
    /// When it ends in a scenario, seconds.
    pub fn ends(&self, scenario: &Scenario) -> f64 {
        self.to.unwrap_or(scenario.seconds)
    }

    /// The names of its copies.
    pub fn names(&self) -> Vec<String> {
        match self.copies {
            1 => vec![self.name.clone()],
            copies => (0..copies).map(|copy| format!("{}-{copy}", self.name)).collect(),
        }
    }

    /// CPUs that it may use, by the tighter of its two limits.
    pub fn allowed(&self) -> Option<f64> {
        [self.container_cpus, self.pod_cpus].into_iter().flatten().reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_reads_and_says_why_where_it_excuses() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let all = Scenario::read_all(&folder, &[]).unwrap();
        assert!(all.iter().filter(|scenario| !scenario.real_time).count() >= 40);
        for scenario in &all {
            assert!([2, 4, 8].contains(&scenario.vcpus), "{}", scenario.name);
            for Beyond { column, error, instead, why, .. } in &scenario.beyond {
                assert!(!why.is_empty(), "{}", scenario.name);
                assert!(error.is_some() || instead.is_some(), "{}", scenario.name);
                assert!(error.is_none_or(|error| error <= 0.3), "{}", scenario.name);
                let of_cpu = matches!(column, Column::Psi | Column::RunDelay);
                let fits = |instead: &Instead| of_cpu == (*instead == Instead::AllTogether);
                assert!(instead.as_ref().is_none_or(fits), "{}", scenario.name);
            }
        }
    }
}
