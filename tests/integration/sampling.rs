//! When files are read: at most once a second for each cgroup, whoever asks, and a refresh never
//! shortens a tick's window.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::reader::{Groups, Reader, Selection};
use psi_agent::sample::{Depth, Moment, Sample};
use psi_agent::sampler::Sampler;

const EVERYTHING: Selection =
    Selection { everything: true, root: true, pods: true, containers: true, vms_only: false };

/// A node of plain files, whose totals the test sets.
struct FakeNode(PathBuf);

impl FakeNode {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("proc/pressure")).unwrap();
        fs::create_dir_all(path.join("cgroup/vm")).unwrap();
        let node = Self(path);
        for resource in ["cpu", "memory", "io"] {
            node.set(&format!("proc/pressure/{resource}"), 0);
            node.set(&format!("cgroup/vm/{resource}.pressure"), 0);
        }
        node
    }

    fn set(&self, file: &str, total: u64) {
        let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        fs::write(self.0.join(file), text).unwrap();
    }

    fn reader(&self) -> Reader {
        let proc = ProcRoot::open(&self.0.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.0.join("cgroup")).unwrap();
        Reader::new(proc, root, EVERYTHING, Groups::default(), 100)
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Totals of cpu and memory of the cgroup `/vm`.
fn totals(sample: &Sample) -> (u64, u64) {
    let vm = sample.cgroups.iter().find(|cgroup| &*cgroup.cgroup.path == "/vm").unwrap();
    let pressures = vm.pressure.pressures;
    (pressures.cpu.unwrap().some_us.unwrap(), pressures.memory.unwrap().some_us.unwrap())
}

fn moment(start: Instant, millis: u64) -> Moment {
    Moment { at: start + Duration::from_millis(millis), unix_ms: millis }
}

#[test]
fn a_cgroup_is_read_at_most_once_a_second_whatever_the_reason() {
    let node = FakeNode::new("once-a-second");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read = |millis, depth| totals(&reader.sample(moment(start, millis), depth, None));
    assert_eq!(read(0, Depth::Exported), (0, 0));
    node.set("cgroup/vm/cpu.pressure", 5);
    assert_eq!(read(500, Depth::Exported), (0, 0));
    assert_eq!(read(999, Depth::Pressure), (0, 0));
    assert_eq!(read(1000, Depth::Pressure), (5, 0));
    node.set("cgroup/vm/cpu.pressure", 9);
    assert_eq!(read(1900, Depth::Exported), (5, 0));
    assert_eq!(read(2000, Depth::Everything), (9, 0));
}

#[test]
fn a_tick_reads_memory_only_after_the_nodes_own_moved_and_a_scrape_always_does() {
    let node = FakeNode::new("standing-still");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read =
        |seconds: u64, depth| totals(&reader.sample(moment(start, seconds * 1000), depth, None));
    assert_eq!(read(0, Depth::Pressure), (0, 0));
    node.set("cgroup/vm/cpu.pressure", 1);
    node.set("cgroup/vm/memory.pressure", 2);
    assert_eq!(read(5, Depth::Pressure), (1, 0));
    node.set("proc/pressure/memory", 2);
    assert_eq!(read(10, Depth::Pressure), (1, 2));
    node.set("cgroup/vm/memory.pressure", 3);
    assert_eq!(read(15, Depth::Pressure), (1, 2));
    assert_eq!(read(20, Depth::Exported), (1, 3));
}

#[test]
fn a_path_that_was_used_again_has_no_rate_across_its_two_lives() {
    let node = FakeNode::new("two-lives");
    let mut reader = node.reader();
    let start = Instant::now();
    let before = reader.sample(moment(start, 0), Depth::Pressure, None);
    fs::rename(node.0.join("cgroup/vm"), node.0.join("cgroup/old")).unwrap();
    fs::create_dir(node.0.join("cgroup/vm")).unwrap();
    node.set("cgroup/vm/cpu.pressure", 100);
    let after = reader.sample(moment(start, 5000), Depth::Pressure, None);
    let rates = psi_agent::rates::rates_between(&before, &after);
    let id_of = |sample: &Sample, path: &str| {
        let mut found = sample.cgroups.iter().filter(|cgroup| &*cgroup.cgroup.path == path);
        found.next().map(|cgroup| cgroup.cgroup.id)
    };
    let new = id_of(&after, "/vm").unwrap();
    assert_ne!(id_of(&before, "/vm"), Some(new));
    assert!(!rates.cgroups.contains_key(&new));
}

#[test]
fn refreshes_do_not_shorten_the_window_of_a_tick() {
    let node = FakeNode::new("windows");
    let tick = Duration::from_millis(1200);
    let mut sampler =
        Sampler::start(node.reader(), tokio::sync::watch::channel(None).1, tick).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        sampler.next_tick().await.unwrap();
        let asking = sampler.clone();
        let asked = tokio::spawn(async move {
            loop {
                asking.refresh(Depth::Exported).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        for _ in 0..3 {
            let ticked = sampler.next_tick().await.unwrap();
            let window = ticked.rates.as_ref().unwrap().window;
            assert!(window >= tick - Duration::from_millis(100), "{window:?}");
        }
        asked.abort();
    });
}
