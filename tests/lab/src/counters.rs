//! The counters of one moment, read from the kernel's files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::load::is_vcpu;
use crate::taskstats::{Delays, Taskstats};

/// The counters of one moment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since the start.
    pub at: f64,
    /// The time of day, seconds since 1970.
    #[serde(default)]
    pub clock: f64,
    /// With KVM guests: how long each emulated CPU has run on the machine that emulates it, seconds.
    #[serde(default)]
    pub emulated: Vec<f64>,
    pub node: Node,
    /// By pod.
    pub pods: BTreeMap<String, PodCounters>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Node {
    pub pressure: Pressures,
    /// `/proc/stat`: busy and all time of all CPUs, ticks.
    pub busy: u64,
    pub total: u64,
    /// `/proc/schedstat`: run delay of all CPUs, nanoseconds.
    pub run_delay_ns: Option<u64>,
    /// Of kubepods.
    pub kubepods: Pressures,
    /// CPU time of all cgroups below the root, microseconds; in real time.
    #[serde(default)]
    pub usage_us: Option<u64>,
    /// The whole node's; in real time.
    #[serde(default)]
    pub memory_io: Option<MemoryIo>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct PodCounters {
    pub pod: Cgroup,
    /// The VM's, or the only one.
    pub container: Cgroup,
    /// Threads of the container's processes but for the emulator's, by id: run time and run delay,
    /// nanoseconds.
    pub threads: BTreeMap<u32, (u64, u64)>,
    /// The same of the emulator's threads of KVM guests, by name and id.
    #[serde(default)]
    pub emulator: BTreeMap<String, (u64, u64)>,
    /// The container's; in real time.
    #[serde(default)]
    pub memory_io: Option<MemoryIo>,
    /// Of the same threads, in real time.
    #[serde(default)]
    pub delays: BTreeMap<u32, Delays>,
}

/// Counters of disks, and of pages that came back from them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MemoryIo {
    /// Page faults for which a page was read, and pages from swap that had been in use; a container's.
    #[serde(default)]
    pub major_faults: u64,
    #[serde(default)]
    pub restored: u64,
    /// Counters of `memory.stat`; of the node, of `/proc/vmstat`.
    #[serde(default)]
    pub pages: BTreeMap<String, u64>,
    /// `memory.current` and `memory.swap.current`, bytes; a container's.
    #[serde(default)]
    pub current: u64,
    #[serde(default)]
    pub swapped: u64,
    /// Operations by disk.
    pub operations: BTreeMap<String, u64>,
    /// Of the node: how long each disk had something to do, milliseconds.
    #[serde(default)]
    pub busy_ms: BTreeMap<String, u64>,
    /// All counters of `/proc/diskstats`; of a container, those of `io.stat` in the kernel's order.
    #[serde(default)]
    pub disks: BTreeMap<String, Vec<u64>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cgroup {
    pub pressure: Pressures,
    pub usage_us: u64,
    pub throttled_us: u64,
    pub nr_periods: u64,
    pub nr_throttled: u64,
    /// `cpu.stat.local`, since Linux 6.6.
    pub throttled_here_or_above_us: Option<u64>,
}

/// Totals of `some` and `full`, microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Pressures {
    pub cpu: (u64, u64),
    pub memory: (u64, u64),
    pub io: (u64, u64),
}

impl Pressures {
    /// `file` names the files: `{resource}.pressure` of a cgroup, or `/proc/pressure/{resource}`. Without
    /// `all` only CPU is read, since each file is a load on an emulated CPU.
    fn read(all: bool, file: impl Fn(&str) -> PathBuf) -> Self {
        let of = |resource| pressure(&text(&file(resource)));
        let other = |resource| if all { of(resource) } else { (0, 0) };
        Self { cpu: of("cpu"), memory: other("memory"), io: other("io") }
    }
}

impl Node {
    pub fn read(kubepods: &Path, all: bool) -> Self {
        let stat = text(Path::new("/proc/stat"));
        let ticks: Vec<u64> =
            stat.lines().next().unwrap_or("").split(' ').filter_map(|n| n.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; the guest's are in user.
        let total = ticks.iter().take(8).sum();
        let idle = ticks.iter().skip(3).take(2).sum::<u64>();
        let schedstat = text(Path::new("/proc/schedstat"));
        let delays = schedstat.lines().filter(|line| line.starts_with("cpu")).map(|line| {
            let delay = line.split(' ').nth(8).and_then(|n| n.parse::<u64>().ok());
            delay.unwrap_or_default()
        });
        Self {
            pressure: Pressures::read(all, |resource| Path::new("/proc/pressure").join(resource)),
            busy: total - idle,
            total,
            run_delay_ns: (!schedstat.is_empty()).then(|| delays.sum()),
            kubepods: Pressures::read(all, |resource| {
                kubepods.join(format!("{resource}.pressure"))
            }),
            usage_us: all.then(|| usage_below(kubepods.parent().unwrap_or(kubepods))),
            memory_io: None,
        }
    }
}

impl Cgroup {
    /// One without a CPU limit, whose usage is that of its threads: each read of `cpu.stat` is a load on
    /// an emulated CPU.
    pub fn read_unlimited(path: &Path, threads: &BTreeMap<u32, (u64, u64)>) -> Self {
        let ran: u64 = threads.values().map(|(ran, _)| ran).sum();
        Self {
            pressure: Pressures::read(false, |resource| path.join(format!("{resource}.pressure"))),
            usage_us: ran / 1000,
            ..Self::default()
        }
    }

    pub fn read(path: &Path, all: bool) -> Self {
        let (stat, local) = (text(&path.join("cpu.stat")), text(&path.join("cpu.stat.local")));
        let (stat, local) = (keyed(&stat), keyed(&local));
        let of = |key| stat.get(key).copied().unwrap_or_default();
        Self {
            pressure: Pressures::read(all, |resource| path.join(format!("{resource}.pressure"))),
            usage_us: of("usage_usec"),
            throttled_us: of("throttled_usec"),
            nr_periods: of("nr_periods"),
            nr_throttled: of("nr_throttled"),
            throttled_here_or_above_us: local.get("throttled_usec").copied(),
        }
    }
}

impl MemoryIo {
    /// The node's.
    pub fn of_node(kubepods: &Path) -> Self {
        let root = kubepods.parent().unwrap_or(kubepods);
        let diskstats = text(Path::new("/proc/diskstats"));
        Self {
            pages: pages(&text(Path::new("/proc/vmstat"))),
            operations: operations(root),
            busy_ms: busy(&diskstats),
            disks: diskstats.lines().filter_map(disk_counters).collect(),
            ..Self::default()
        }
    }

    /// A container's.
    pub fn of_container(container: &Path) -> Self {
        let pages = pages(&text(&container.join("memory.stat")));
        let of = |key| pages.get(key).copied().unwrap_or_default();
        let bytes = |name| text(&container.join(name)).trim().parse().unwrap_or_default();
        let io_stat = text(&container.join("io.stat"));
        Self {
            major_faults: of("pgmajfault"),
            restored: of("workingset_restore_anon"),
            pages,
            current: bytes("memory.current"),
            swapped: bytes("memory.swap.current"),
            operations: operations(container),
            disks: io_stat.lines().filter_map(cgroup_disk_counters).collect(),
            ..Self::default()
        }
    }
}

/// CPU time of the cgroups in one. The root's own counts ticks, of which an emulator loses some.
fn usage_below(cgroup: &Path) -> u64 {
    let children = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let usage = children.filter_map(|child| {
        keyed(&text(&child.path().join("cpu.stat"))).get("usage_usec").copied()
    });
    usage.sum()
}

/// Delay accounting of threads.
pub fn delays<'a>(
    threads: impl Iterator<Item = &'a u32>,
    taskstats: &Taskstats,
) -> anyhow::Result<BTreeMap<u32, Delays>> {
    let one = |thread: &u32| Ok(taskstats.of(*thread)?.map(|delays| (*thread, delays)));
    threads.filter_map(|thread| one(thread).transpose()).collect()
}

fn operations(cgroup: &Path) -> BTreeMap<String, u64> {
    let stat = text(&cgroup.join("io.stat"));
    let disk = |line: &str| {
        let (disk, counters) = line.split_once(' ')?;
        let of =
            |key| counters.split(' ').find_map(|counter| counter.strip_prefix(key)?.parse().ok());
        Some((disk.to_owned(), of("rios=").unwrap_or(0) + of("wios=").unwrap_or(0)))
    };
    stat.lines().filter_map(disk).collect()
}

/// The counters that estimators of memory contention may use.
fn pages(stat: &str) -> BTreeMap<String, u64> {
    let wanted = ["pgmajfault", "workingset_", "pswp", "pgscan", "pgsteal", "anon", "file"];
    let counters = keyed(stat).into_iter();
    let counters = counters.filter(|(key, _)| wanted.iter().any(|start| key.starts_with(start)));
    counters.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn disk_counters(line: &str) -> Option<(String, Vec<u64>)> {
    let mut words = line.split_whitespace();
    let disk = format!("{}:{}", words.next()?, words.next()?);
    Some((disk, words.skip(1).filter_map(|word| word.parse().ok()).collect()))
}

fn cgroup_disk_counters(line: &str) -> Option<(String, Vec<u64>)> {
    let (disk, counters) = line.split_once(' ')?;
    let values = counters.split(' ').filter_map(|counter| counter.split_once('=')?.1.parse().ok());
    Some((disk.to_owned(), values.collect()))
}

fn busy(diskstats: &str) -> BTreeMap<String, u64> {
    let disk = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = (words.next()?, words.next()?);
        // The name, and nine counters before it.
        Some((format!("{major}:{minor}"), words.nth(10)?.parse().ok()?))
    };
    diskstats.lines().filter_map(disk).collect()
}

/// Run time and run delay of each thread of a cgroup's processes. Without `emulator`, there are no
/// threads of the emulator among them to leave out.
pub fn threads(cgroup: &Path, emulator: bool) -> BTreeMap<u32, (u64, u64)> {
    let tasks = text(&cgroup.join("cgroup.threads"));
    let all = tasks.lines().filter(|thread| !emulator || is_vcpu(&name(thread)));
    all.filter_map(|thread| Some((thread.parse().ok()?, schedstat(thread)?))).collect()
}

/// The same of the emulator's threads, by name and id.
pub fn emulator_threads(cgroup: &Path) -> BTreeMap<String, (u64, u64)> {
    let tasks = text(&cgroup.join("cgroup.threads"));
    let named = tasks.lines().map(|thread| (name(thread), thread));
    let all = named.filter(|(name, _)| !is_vcpu(name));
    all.filter_map(|(name, thread)| Some((format!("{} {thread}", name.trim()), schedstat(thread)?)))
        .collect()
}

fn name(thread: &str) -> String {
    text(&Path::new("/proc").join(thread).join("comm"))
}

fn schedstat(thread: &str) -> Option<(u64, u64)> {
    let schedstat = text(&Path::new("/proc").join(thread).join("schedstat"));
    let mut numbers = schedstat.split_whitespace().map(str::parse::<u64>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn pressure(text: &str) -> (u64, u64) {
    let total = |line: &str| line.rsplit_once("total=").and_then(|(_, n)| n.trim().parse().ok());
    let of = |kind| text.lines().find(|line| line.starts_with(kind)).and_then(total);
    (of("some").unwrap_or_default(), of("full").unwrap_or_default())
}

fn keyed(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(key, value)| Some((key, value.parse().ok()?)))
        .collect()
}

/// A file that is gone counts as empty.
pub fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
