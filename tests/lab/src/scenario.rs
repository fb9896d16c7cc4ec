//! A scenario: the pods on the node, their loads and their limits. One TOML file each.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

pub use load::{Disk, How, Io, Load, Memory, Phases};

mod load;
mod variants;

/// Default duration, seconds. The time from `JUDGED_FROM` on is judged.
const SECONDS: f64 = 30.0;
pub const JUDGED_FROM: f64 = 10.0;
/// Long enough that an agent, which has a score after 30 s, predicts what a move would change, seconds.
const PREDICTED: f64 = 45.0;
/// Between two readings of all counters, seconds; also the agent's tick.
pub const WINDOW: f64 = 5.0;

/// A node and its load.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of its file.
    #[serde(default)]
    pub name: String,
    /// What the scenario shows, in one sentence.
    pub about: String,
    /// CPUs of the node.
    pub vcpus: u32,
    /// Duration in seconds. Scenarios of several minutes measure the agent's reaction to VMs that start and end.
    #[serde(default = "seconds")]
    pub seconds: f64,
    /// Whether the scenario needs real time and disks, as those of memory and I/O do.
    #[serde(default)]
    pub real_time: bool,
    /// Whether the node has swap.
    #[serde(default)]
    pub swap: bool,
    /// Whether only own limits and unshared disks slow the VMs down: the score must be near 0.
    #[serde(default)]
    pub no_contention: bool,
    /// Whether the record has the agent's answers, for `psi-agent demo`. The agent reads and exports all of
    /// the node then, with the controllers memory and io.
    #[serde(default)]
    pub answers: bool,
    /// Another device for swap than the disk of that name.
    pub swap_on: Option<Swap>,
    /// `memory.max` of kubepods, MiB.
    pub kubepods_mib: Option<u32>,
    /// With KVM guests: `memory.max` of kubepods beside the neighbours, MiB less than what is in use.
    pub short_mib: Option<u32>,
    /// With KVM guests: the shortage is over before the judged time, and the guests that were paused
    /// meanwhile go on after so many seconds.
    pub paused_s: Option<f64>,
    /// Error bounds that differ from the lab's own in this scenario.
    #[serde(default, rename = "exemption")]
    pub exemptions: Vec<Exemption>,
    /// Pods.
    #[serde(default, rename = "pod")]
    pub pods: Vec<Pod>,
    /// Processes outside pods, such as system daemons.
    #[serde(default, rename = "daemon")]
    pub daemons: Vec<Daemon>,
}

/// Another error bound for one score, on some kernels. It never applies to the side of a threshold.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exemption {
    /// Kernel series, such as `6.12`.
    pub kernels: Vec<String>,
    pub score: Resource,
    /// The largest error, either way.
    pub error: f64,
    /// The reason, in one or two sentences; docs/lab.md explains it.
    pub why: String,
}

/// A resource that threads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    Memory,
    Io,
}

/// A pod, or several that are alike.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    pub name: String,
    /// Whether it runs a VM, in a container `compute`. Otherwise its container is `app`.
    #[serde(default = "yes")]
    pub vm: bool,
    #[serde(default = "one")]
    pub copies: u32,
    #[serde(flatten)]
    pub load: Load,
    /// The VM is a KVM guest, and the load runs in it.
    pub guest: Option<Guest>,
    /// With a KVM guest: `memory.max` of the pod, MiB less than the booted guest has in use.
    pub short_mib: Option<u32>,
    /// CPU request of the container, in CPUs.
    pub cpu_request: Option<f64>,
    /// CPU limit of the container, in CPUs.
    pub container_cpus: Option<f64>,
    /// CPU limit of the pod, in CPUs.
    pub pod_cpus: Option<f64>,
    /// Memory limit of the container.
    pub container_memory: Option<MemoryLimit>,
    /// Memory limit of the pod.
    pub pod_memory: Option<MemoryLimit>,
    /// I/O limit of the container on one disk.
    pub io_max: Option<IoLimit>,
    /// `cpu.weight` of the pod.
    pub weight: Option<u64>,
    /// `cpuset.cpus` of the pod, such as `0-1`.
    pub cpus: Option<String>,
    /// Whether it has a console log's container, limited to 15 thousandths of a CPU, that is at its limit all
    /// the time.
    #[serde(default)]
    pub busy_console: bool,
    /// Start, seconds.
    #[serde(default)]
    pub from: f64,
    /// End, seconds; without it, the end of the scenario.
    pub to: Option<f64>,
    /// Whether a live migration made the pod and the handover is still to come.
    #[serde(default)]
    pub arriving: bool,
}

/// A KVM guest, as virt-launcher starts it. It has a vCPU for each thread of its load.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Its memory.
    pub mib: u32,
    /// How QEMU does the I/O of its disk, the one that its load uses.
    pub aio: Option<AsyncIo>,
    /// Whether a thread of its own does so, and not the emulator's main thread.
    #[serde(default)]
    pub iothread: bool,
}

/// QEMU's ways to do I/O without waiting for it, by the names of `-blockdev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AsyncIo {
    #[serde(rename = "native")]
    Native,
    #[serde(rename = "io_uring")]
    IoUring,
    #[serde(rename = "threads")]
    Threads,
}

/// A device for swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Swap {
    /// A disk of 1,000 operations in a second.
    SlowDisk,
    /// One of 100: each takes longer than the CPU time that a page fault of a guest needs in the emulator.
    HardDisk,
    /// Compressed memory.
    Zram,
}

/// A process outside pods.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    pub name: String,
    #[serde(flatten)]
    pub load: Load,
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
            load.check(scenario.real_time).with_context(|| path.display().to_string())?;
        }
        ensure!(
            scenario.real_time || !scenario.has_guests(),
            "{}: KVM guests need real_time = true",
            path.display()
        );
        ensure!(
            !scenario.real_time
                || scenario.pods.iter().all(|pod| pod.from == 0.0 && pod.to.is_none()),
            "{}: with real_time pods run all the time",
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

    /// Whether it measures the agent's reaction, and not one value.
    pub fn is_long(&self) -> bool {
        self.seconds > PREDICTED
    }

    /// Whether its VMs are KVM guests.
    pub fn has_guests(&self) -> bool {
        self.pods.iter().any(|pod| pod.guest.is_some())
    }

    pub fn is_long_enough_to_predict(&self) -> bool {
        self.seconds >= PREDICTED
    }

    /// Whether a pod has CPUs on which no other pod, and no daemon, may run, and a CPU for each thread or as many as
    /// it requested: what it waits for there is its own.
    pub fn has_own_cpus(&self, pod: &Pod) -> bool {
        let cpus = listed(pod.cpus.as_deref(), self.vcpus);
        let others = self.pods.iter().filter(|other| other.name != pod.name);
        let others = others.map(|other| listed(other.cpus.as_deref(), self.vcpus));
        let is_free = |others: Vec<u32>| !cpus.iter().any(|cpu| others.contains(cpu));
        let has_one_each = cpus.len() >= pod.load.threads as usize;
        let is_pinned = pod.copies == 1 && pod.cpus.is_some();
        let is_own = has_one_each || pod.cpu_request == Some(cpus.len() as f64);
        is_pinned && is_own && self.daemons.is_empty() && { others }.all(is_free)
    }

    fn loads(&self) -> impl Iterator<Item = Load> + '_ {
        let pods = self.pods.iter().map(|pod| pod.load);
        pods.chain(self.daemons.iter().map(|daemon| daemon.load))
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

    /// The number of CPUs on which it may run, of a node that has so many.
    pub fn allowed_cpus(&self, node: u32) -> u32 {
        listed(self.cpus.as_deref(), node).len() as u32
    }

    /// The tighter of its two CPU limits, in CPUs.
    pub fn cpu_limit(&self) -> Option<f64> {
        [self.container_cpus, self.pod_cpus].into_iter().flatten().reduce(f64::min)
    }
}

/// The CPUs of a list such as `0-1,4`, or all of a node.
fn listed(cpus: Option<&str>, node: u32) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    match cpus {
        Some(cpus) => cpus.split(',').filter_map(range).flatten().collect(),
        None => (0..node).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_valid_and_gives_a_reason_for_each_exemption() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let all = Scenario::read_all(&folder, &[]).unwrap();
        let cpu = || all.iter().filter(|scenario| !scenario.real_time);
        assert!(cpu().count() >= 100);
        assert!(cpu().filter(|scenario| scenario.vcpus >= 16).count() >= 6);
        for scenario in &all {
            // Guests do not hang an emulated node of one CPU.
            let least = if scenario.has_guests() { 1 } else { 2 };
            assert!([least, 2, 4, 8, 16].contains(&scenario.vcpus), "{}", scenario.name);
            for Exemption { error, why, .. } in &scenario.exemptions {
                assert!(!why.is_empty(), "{}", scenario.name);
                assert!(*error <= 0.3, "{}", scenario.name);
            }
        }
    }
}
