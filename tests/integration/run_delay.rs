//! The threads of containers below a host's `/proc`: found by their cgroup, told by their name, and
//! missed where they are not to be seen.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use psi_agent::clock::Moment;
use psi_agent::kernel::cgroup_dir::{CgroupRoot, Resource};
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::rates::{Ratio, rates_between};
use psi_agent::reader::{Groups, Reader, Selection};
use psi_agent::sample::{CpuSource, Depth, Sample};
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

    /// A thread of a process that is in this cgroup.
    fn set_thread(&self, process: u32, cgroup: &str, thread: u32, name: &str, times: &str) {
        self.write(&format!("proc/{process}/cgroup"), &format!("0::{cgroup}\n"));
        self.write(&format!("proc/{process}/task/{thread}/comm"), &format!("{name}\n"));
        self.write(&format!("proc/{process}/task/{thread}/schedstat"), &format!("{times} 1\n"));
    }

    fn reader(&self) -> Reader {
        let proc = ProcRoot::open(&self.0.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.0.join("cgroup")).unwrap();
        let selection = Selection {
            everything: true,
            root: true,
            pods: true,
            containers: true,
            vms_only: false,
        };
        Reader::new(proc, root, true, selection, Groups::default(), 100)
            .with_cpu_source(CpuSource::RunDelay)
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers of the threads that a tick read, and how many containers hide theirs.
fn seen(sample: &Sample) -> (Option<Vec<u32>>, usize) {
    let threads = sample.members.as_ref().unwrap()[0].threads.as_ref();
    let mut ids: Option<Vec<u32>> = threads.map(|all| all.iter().map(|one| one.id).collect());
    ids.iter_mut().for_each(|ids| ids.sort_unstable());
    (ids, sample.hidden_members)
}

#[test]
fn a_containers_threads_are_found_by_its_name_and_vcpus_by_theirs() {
    let node = FakeNode::new("threads");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut tick = |seconds: u64| {
        let moment = Moment { at: start + Duration::from_secs(seconds), unix_ms: 0 };
        let sample = reader.sample(moment, Depth::Score, None);
        assert_eq!(sample.errors, []);
        seen(&sample)
    };
    // There are tasks, and no process.
    assert_eq!(tick(0), (None, 1));
    // What a cgroup namespace shows, and a cgroup that the runtime made below.
    let own = format!("/../../pod1/{ID}/housekeeping");
    node.set_thread(7, &own, 7, "virt-launcher", "10 10");
    node.set_thread(8, "/kubepods/pod2/2222", 8, "CPU 0/KVM", "10 10");
    assert_eq!(tick(5), (Some(vec![7]), 0));
    node.set_thread(9, &own, 9, "qemu-kvm", "10 10");
    node.set_thread(9, &own, 10, "CPU 0/KVM", "10 10");
    node.set_thread(9, &own, 11, "CPU 1/KVM", "10 10");
    assert_eq!(tick(10), (Some(vec![10, 11]), 0));
    // A thread that ends is no error, and one that comes is found.
    fs::remove_dir_all(node.0.join("proc/9/task/11")).unwrap();
    assert_eq!(tick(15), (Some(vec![10]), 0));
    node.set_thread(9, &own, 12, "CPU 2/KVM", "10 10");
    assert_eq!(tick(20), (Some(vec![10, 12]), 0));
    // A minute after it began every half minute is enough.
    assert_eq!(tick(60), (Some(vec![10, 12]), 0));
    node.set_thread(9, &own, 13, "CPU 3/KVM", "10 10");
    assert_eq!(tick(85), (Some(vec![10, 12]), 0));
    assert_eq!(tick(90), (Some(vec![10, 12, 13]), 0));
    // All of it ends.
    fs::remove_dir_all(node.0.join("proc/9")).unwrap();
    fs::remove_dir_all(node.0.join("proc/7")).unwrap();
    node.write(&format!("cgroup/kubepods/pod1/{ID}/cgroup.events"), "populated 0\n");
    assert_eq!(tick(95), (Some(vec![]), 0));
    assert_eq!(tick(100), (Some(vec![]), 0));
}

#[test]
fn times_that_do_not_read_are_not_taken_for_none() {
    let node = FakeNode::new("unreadable");
    node.set_thread(7, &format!("/kubepods/pod1/{ID}"), 7, "sh", "10");
    let moment = Moment { at: Instant::now(), unix_ms: 0 };
    let sample = node.reader().sample(moment, Depth::Score, None);
    assert_eq!(seen(&sample), (None, 0));
    let [error] = &sample.errors[..] else { panic!("{:?}", sample.errors) };
    assert!(error.path.ends_with("proc/7/task/7/schedstat"), "{error}");
}

#[test]
fn a_node_that_tells_no_pressure_has_a_score() {
    let node = FakeNode::new("without-psi");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut tick = |seconds: u64| {
        // It runs for half of the time, and waits for the other.
        let nanos = seconds * 500_000_000;
        let cgroup = format!("/kubepods/pod1/{ID}");
        node.set_thread(7, &cgroup, 7, "CPU 0/KVM", &format!("{nanos} {nanos}"));
        let moment = Moment { at: start + Duration::from_secs(seconds), unix_ms: 0 };
        reader.sample(moment, Depth::Score, None)
    };
    let mut scorer = Scorer::new(vec![Resource::Cpu, Resource::Memory]);
    let mut before = tick(0);
    let mut score = None;
    for window in 1..=8 {
        let sample = tick(window * 5);
        score = Some(scorer.advance(sample.moment, &rates_between(&before, &sample)));
        before = sample;
    }
    let score = score.unwrap();
    assert_eq!(score.basis.to_string(), "run-delay/4");
    assert_eq!((score.contention.cpu, score.contention.memory), (Ratio::of(0.5, 1.0), None));
    assert_eq!(score.score, Ratio::of(0.5, 1.0));
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
    assert_eq!(told["basis"], "run-delay/4");
    let (passes, text) = check(&own, &[]);
    assert!(passes && text.contains("threads of 2 containers are told"), "{text}");

    // In a process namespace of its own, with a `/proc` of its own, no other is to be seen.
    let alone = ["unshare", "--pid", "--fork", "--mount-proc"];
    let (passes, text) = check(&own, &alone);
    assert!(!passes && text.contains("no process of 2 of 2 containers is to be seen"), "{text}");
}
