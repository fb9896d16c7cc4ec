//! Run delay of containers below a host's `/proc`: their threads are found by cgroup and name, and a
//! container counts only when they could be read in full.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use psi_agent::clock::Moment;
use psi_agent::collector::{Collector, Groups, Handles, Selection};
use psi_agent::kernel::cgroup_dir::{CgroupRoot, Resource};
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::rates::{Ratio, tick_rates};
use psi_agent::sample::{CpuSource, TickSample};
use psi_agent::score::Scorer;

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::wait_for;

const ID: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const MINUTE: Duration = Duration::from_secs(60);
const SPIN: &str = "taskset -c 1 sh -c 'while :; do :; done'";

/// A node of plain files with one container.
struct FakeNode(PathBuf);

impl FakeNode {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("proc")).unwrap();
        let node = Self(path);
        node.write(&format!("cgroup/kubepods/pod1/{ID}/cgroup.events"), "populated 1\n");
        node
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A thread of a process of this cgroup, with its time run and its run delay.
    fn set_thread(&self, process: u32, cgroup: &str, thread: u32, name: &str, times: &str) {
        self.write(&format!("proc/{process}/cgroup"), &format!("0::{cgroup}\n"));
        self.write(&format!("proc/{process}/task/{thread}/comm"), &format!("{name}\n"));
        self.write(&format!("proc/{process}/task/{thread}/schedstat"), &format!("{times} 1\n"));
        self.write(&format!("proc/{process}/task/{thread}/stat"), &format!("1 ({name}) S 1\n"));
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.0.join(path)).unwrap();
    }

    fn collector(&self) -> Collector {
        self.collector_with_handles(100)
    }

    fn collector_with_handles(&self, processes: usize) -> Collector {
        let proc = ProcRoot::open(&self.0.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.0.join("cgroup")).unwrap();
        let selection = Selection {
            everything: true,
            root: true,
            pods: true,
            containers: true,
            vms_only: false,
        };
        let (groups, handles) = (Groups::default(), Handles { cgroups: 100, processes });
        Collector::new(proc, root, selection, groups, CpuSource::RunDelay, handles)
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at(start: Instant, seconds: u64) -> Moment {
    Moment { at: start + Duration::from_secs(seconds), unix_ms: 0 }
}

/// IDs of the threads that a tick read, and the number of hidden containers.
fn seen(sample: &TickSample) -> (Option<Vec<u32>>, usize) {
    let threads = sample.containers.as_ref().unwrap()[0].threads.as_ref();
    let mut ids: Option<Vec<u32>> = threads.map(|all| all.iter().map(|one| one.id).collect());
    ids.iter_mut().for_each(|ids| ids.sort_unstable());
    (ids, sample.hidden_containers)
}

/// The path of the container's cgroup in a cgroup namespace, with a cgroup below it.
fn own() -> String {
    format!("/../../pod1/{ID}/housekeeping")
}

#[test]
fn processes_are_found_by_the_container_and_vcpus_by_their_name() {
    let node = FakeNode::new("threads");
    let mut collector = node.collector();
    let start = Instant::now();
    let mut tick = |seconds: u64| {
        let sample = collector.tick(at(start, seconds), None);
        assert_eq!(sample.report.errors, []);
        seen(&sample)
    };
    // There are tasks, and no process.
    assert_eq!(tick(0), (None, 1));
    let own = own();
    node.set_thread(7, &own, 7, "virt-launcher", "10 10");
    node.set_thread(8, "/kubepods/pod2/2222", 8, "CPU 0/KVM", "10 10");
    assert_eq!(tick(5), (Some(vec![7]), 0));
    node.set_thread(9, &own, 9, "qemu-kvm", "10 10");
    node.set_thread(9, &own, 10, "CPU 0/KVM", "10 10");
    node.set_thread(9, &own, 11, "CPU 1/KVM", "10 10");
    assert_eq!(tick(10), (Some(vec![10, 11]), 0));
    // A thread that ends is no error, and a new one is found.
    node.remove("proc/9/task/11");
    assert_eq!(tick(15), (Some(vec![10]), 0));
    node.set_thread(9, &own, 12, "CPU 2/KVM", "10 10");
    assert_eq!(tick(20), (Some(vec![10, 12]), 0));
    // Of a container older than a minute, every half minute.
    assert_eq!(tick(60), (Some(vec![10, 12]), 0));
    node.set_thread(9, &own, 13, "CPU 3/KVM", "10 10");
    assert_eq!(tick(85), (Some(vec![10, 12]), 0));
    assert_eq!(tick(90), (Some(vec![10, 12, 13]), 0));
    // All of it ends.
    node.remove("proc/9");
    node.remove("proc/7");
    node.write(&format!("cgroup/kubepods/pod1/{ID}/cgroup.events"), "populated 0\n");
    assert_eq!(tick(95), (Some(vec![]), 0));
    assert_eq!(tick(100), (Some(vec![]), 0));
}

#[test]
fn the_launcher_does_not_stand_for_a_qemu_that_could_not_be_read() {
    let node = FakeNode::new("incomplete");
    let mut collector = node.collector();
    let start = Instant::now();
    node.set_thread(7, &own(), 7, "virt-launcher", "10 10");
    node.write("proc/9", "no directory");
    let sample = collector.tick(at(start, 0), None);
    assert_eq!(seen(&sample), (None, 1));
    assert!(sample.report.errors[0].path.ends_with("proc/9"), "{:?}", sample.report.errors);
    fs::remove_file(node.0.join("proc/9")).unwrap();
    node.set_thread(9, &own(), 10, "CPU 0/KVM", "10 10");
    // Another process that can't be read is not this container's once its vCPUs are known.
    node.write("proc/11", "no directory");
    assert_eq!(seen(&collector.tick(at(start, 5), None)), (Some(vec![10]), 0));
}

#[test]
fn a_reused_number_is_another_task() {
    let node = FakeNode::new("reused");
    let mut collector = node.collector();
    let start = Instant::now();
    let mut tick = |seconds| collector.tick(at(start, seconds), None);
    node.set_thread(9, &own(), 10, "CPU 0/KVM", "10 10");
    node.set_thread(9, &own(), 11, "CPU 1/KVM", "10 10");
    assert_eq!(seen(&tick(0)), (Some(vec![10, 11]), 0));
    // A thread ID, for a thread that ran for longer than the one before.
    node.remove("proc/9/task/11");
    node.set_thread(9, &own(), 11, "worker", "90000000000 10");
    assert_eq!(seen(&tick(5)), (Some(vec![10]), 0));
    assert_eq!(seen(&tick(10)), (Some(vec![10]), 0));
    // A process ID, in another container.
    node.remove("proc/9");
    node.set_thread(9, "/kubepods/pod2/2222", 10, "CPU 0/KVM", "90000000000 10");
    assert_eq!(seen(&tick(15)), (None, 1));
}

#[test]
fn a_container_cannot_take_the_processes_of_another_by_the_name_of_its_cgroup() {
    let node = FakeNode::new("nested-name");
    let other = "2".repeat(64);
    node.write(&format!("cgroup/kubepods/pod2/{other}/cgroup.events"), "populated 1\n");
    node.set_thread(7, &format!("/kubepods/pod2/{other}/{ID}"), 7, "CPU 0/KVM", "10 10");
    let sample = node.collector().tick(at(Instant::now(), 0), None);
    let threads =
        sample.containers.unwrap().into_iter().map(|one| one.threads.map(|all| all.len()));
    assert_eq!(threads.collect::<Vec<_>>(), [None, Some(1)]);
}

#[test]
fn a_thread_that_stays_runnable_without_running_is_starved() {
    let node = FakeNode::new("starved");
    let mut collector = node.collector();
    let start = Instant::now();
    node.set_thread(9, &own(), 10, "CPU 0/KVM", "10 10");
    let mut starved = |seconds, state: &str| {
        node.write("proc/9/task/10/stat", &format!("10 (CPU 0/KVM) {state} 1\n"));
        collector.tick(at(start, seconds), None).containers.unwrap()[0].threads.as_ref().unwrap()[0]
            .starved
    };
    assert!(!starved(0, "R"));
    assert!(!starved(5, "R"), "it may have become runnable a moment ago");
    assert!(starved(10, "R"));
    assert!(!starved(15, "S"));
    node.write("proc/9/task/10/schedstat", "20 30 2\n");
    assert!(!starved(20, "R"));
}

#[test]
fn a_container_beyond_the_share_of_descriptors_is_hidden() {
    let node = FakeNode::new("descriptors");
    for thread in 10..20 {
        node.set_thread(9, &own(), thread, &format!("CPU {thread}/KVM"), "10 10");
    }
    let tick = |handles| node.collector_with_handles(handles).tick(at(Instant::now(), 0), None);
    assert_eq!(seen(&tick(10)), (None, 1));
    assert_eq!(seen(&tick(11)), (Some((10..20).collect()), 0));
}

#[test]
fn times_that_do_not_parse_hide_nothing_and_count_nothing() {
    let node = FakeNode::new("unreadable");
    node.set_thread(7, &format!("/kubepods/pod1/{ID}"), 7, "sh", "10");
    let sample = node.collector().tick(at(Instant::now(), 0), None);
    assert_eq!(seen(&sample), (None, 0));
    let [error] = &sample.report.errors[..] else { panic!("{:?}", sample.report.errors) };
    assert!(error.path.ends_with("proc/7/task/7/schedstat"), "{error}");
}

#[test]
fn a_node_without_psi_has_a_score() {
    let node = FakeNode::new("without-psi");
    let mut collector = node.collector();
    let start = Instant::now();
    let mut tick = |seconds: u64| {
        // It runs for half of the time, and waits for the other.
        let nanos = seconds * 500_000_000;
        node.set_thread(7, &own(), 7, "CPU 0/KVM", &format!("{nanos} {nanos}"));
        collector.tick(at(start, seconds), None)
    };
    let mut scorer = Scorer::new(vec![Resource::Cpu, Resource::Memory]);
    let mut before = tick(0);
    let mut score = None;
    for window in 1..=8 {
        let sample = tick(window * 5);
        score = Some(scorer.advance(sample.moment, &tick_rates(&before, &sample)));
        before = sample;
    }
    let score = score.unwrap();
    assert_eq!(score.basis.to_string(), "run-delay/5");
    assert_eq!((score.contention.cpu, score.contention.memory), (Ratio::of(0.5, 1.0), None));
    assert_eq!((score.score, score.cpu_ready), (Ratio::of(0.5, 1.0), Ratio::of(0.5, 1.0)));
}

/// Two containers that wait for one CPU, one beside the other.
fn two_that_wait(name: &str) -> OwnCgroup {
    let mut own = OwnCgroup::new(name);
    for pod in 1..=2 {
        let container = format!("kubepods/pod{pod}/{pod:064}");
        own.make(&container);
        own.spawn(&container, SPIN);
    }
    own
}

fn check(own: &OwnCgroup, launcher: &[&str]) -> (bool, String) {
    let root = own.path.to_str().unwrap();
    let agent = ["check", "--cpu-source", "run-delay", "--cgroup-root", root];
    let line = [launcher, &[BINARY], &agent].concat();
    let output = Command::new(line[0]).args(&line[1..]).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
#[ignore = "needs root and a cgroup2 mount"]
fn waiting_for_a_cpu_is_told_without_any_pressure_and_only_where_processes_are_seen() {
    let own = two_that_wait("run-delay");
    let root = own.path.to_str().unwrap();
    let flags = ["--cpu-source", "run-delay", "--cgroup-root", root, "--families", "pressure"];
    let agent = Agent::start(&flags);
    let told = wait_for("half of what both want is waited for", MINUTE, || {
        let snapshot: serde_json::Value =
            serde_json::from_str(&agent.get("/snapshot.json")).unwrap();
        let latest = snapshot["node"]["latest"]["cpu"].as_f64()?;
        (latest > 0.3).then_some(snapshot)
    });
    assert_eq!(told["basis"], "run-delay/5");
    let (passes, text) = check(&own, &[]);
    assert!(passes && text.contains("threads of 2 containers)"), "{text}");

    // In a process namespace of its own, with a `/proc` of its own, no other is to be seen.
    let alone = ["unshare", "--pid", "--fork", "--mount-proc"];
    let (passes, text) = check(&own, &alone);
    assert!(
        !passes && text.contains("--proc-root shows no process of 2 of 2 containers"),
        "{text}"
    );
}
