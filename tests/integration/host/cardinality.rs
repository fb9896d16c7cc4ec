//! Counts series in real scrapes of replayed nodes, and compares them with docs/operations.md.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::exposition::{OWN_SERIES_OF_THE_MANIFEST, own_series, parse};
use crate::support::fake_node::FakeNode;
use crate::support::project::text;
use crate::support::staged_node::{container_id, launcher};
use crate::support::wait_for;

const DOCUMENT: &str = "docs/operations.md";

/// Series of the agent itself that only an agent which publishes has.
const OF_PUBLISHING: usize = 3;

/// Time until the first score, without which its series are absent.
const FIRST_SCORE: Duration = Duration::from_secs(90);

const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";

/// Writes the files of a cgroup with all controllers and one disk; `quota` is `cpu.max`.
fn write_cgroup(folder: &Path, quota: &str) {
    fs::create_dir_all(folder).unwrap();
    for (file, text) in [
        ("cpu.pressure", PRESSURE),
        ("memory.pressure", PRESSURE),
        ("io.pressure", PRESSURE),
        (
            "cpu.stat",
            "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 1\nnr_throttled 0\n\
             throttled_usec 0\n",
        ),
        ("cpu.max", quota),
        ("cpu.weight", "100\n"),
        ("memory.current", "9000\n"),
        ("memory.swap.current", "0\n"),
        ("memory.max", "max\n"),
        ("memory.stat", "anon 10\nfile 20\ninactive_file 5\n"),
        ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"),
        ("io.stat", "259:0 rbytes=1 wbytes=1 rios=1 wios=1 dbytes=0 dios=0\n"),
        ("cgroup.procs", "7\n"),
        ("pids.current", "1\n"),
    ] {
        fs::write(folder.join(file), text).unwrap();
    }
}

/// The files of a node with VMs, each a pod with KubeVirt's two containers.
struct Replay(FakeNode);

impl Replay {
    fn new(name: &str, vms: u32) -> Self {
        let node = FakeNode::with_pressure(name);
        node.write("proc/pressure/irq", "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n");
        let proc = node.0.join("proc");
        // They move on, as those of a node do, or nothing would be told of its CPUs.
        for file in ["stat", "vmstat", "meminfo", "diskstats"] {
            symlink(Path::new("/proc").join(file), proc.join(file)).unwrap();
        }
        let root = node.0.join("cgroup");
        write_cgroup(&root, "max 100000\n");
        // The real root cgroup has none of these.
        for file in ["cpu.max", "cpu.weight", "memory.current", "memory.max"].into_iter().chain([
            "memory.swap.current",
            "memory.events",
            "pids.current",
        ]) {
            fs::remove_file(root.join(file)).unwrap();
        }
        let pods: Vec<Value> = (0..vms).map(|vm| Self::add_vm(&root, vm)).collect();
        node.write("pods.json", &json!({ "items": pods }).to_string());
        Self(node)
    }

    /// The cgroups of a VM's pod; answers what the API server says of it.
    fn add_vm(root: &Path, vm: u32) -> Value {
        let mut pod = launcher(&format!("vm-{vm}"), "node-a");
        pod["metadata"]["uid"] = json!(format!("{vm:08x}-0000-0000-0000-000000000000"));
        let uid = pod["metadata"]["uid"].as_str().unwrap().replace('-', "_");
        let folder = root.join(format!("kubepods.slice/kubepods-pod{uid}.slice"));
        write_cgroup(&folder, "max 100000\n");
        let quotas = [("compute", "max 100000\n"), ("guest-console-log", "1500 100000\n")];
        let statuses = quotas.iter().zip(0..).map(|((name, quota), number)| {
            let id = container_id(vm * 2 + number);
            write_cgroup(&folder.join(format!("cri-containerd-{id}.scope")), quota);
            json!({"name": name, "image": "launcher:v1", "containerID": format!("containerd://{id}"),
                   "state": {"running": {}}})
        });
        let statuses: Vec<Value> = statuses.collect();
        pod["status"] = json!({"phase": "Running", "containerStatuses": statuses});
        pod
    }

    fn start(&self, families: &[&str]) -> Agent {
        let (roots, pods) = (self.0.flags(), self.0.path("pods.json"));
        let roots = roots.each_ref().map(String::as_str);
        Agent::start(&[&roots, &["--pods-file", &pods][..], families].concat())
    }
}

/// The number of series in a scrape with a score, and how many of them are the agent's own.
fn series(agent: &Agent) -> (usize, usize) {
    let series = wait_for("a score", FIRST_SCORE, || {
        let series = parse(&agent.get("/metrics"));
        series.iter().any(|series| series.name == "psi_agent_node_score_ratio").then_some(series)
    });
    (series.len(), own_series(&series).len())
}

/// A number in the format of the document, such as `1,234`.
fn in_groups(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<&str> = groups.map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

#[test]
#[ignore = "takes 30 s: a score needs a history"]
fn the_documented_numbers_of_series_match_real_scrapes() {
    let document = text(DOCUMENT);
    let (one, four) = (Replay::new("one-vm", 1), Replay::new("four-vms", 4));
    let pressure = ["--families", "pressure"];
    let agents = [&pressure[..], &[]].map(|flags| [one.start(flags), four.start(flags)]);
    let counted = agents.map(|pair| pair.map(|agent| series(&agent)));
    for (families, [(of_one, own), (of_four, own_of_four)]) in
        ["`--families=pressure`", "all"].into_iter().zip(counted)
    {
        assert_eq!(own, own_of_four, "what the agent says of itself does not grow with its VMs");
        let (vm, odd) = ((of_four - of_one) / 3, (of_four - of_one) % 3);
        assert_eq!(odd, 0, "each VM has as many series as any other");
        let node = of_one - vm - own;
        // The replay publishes nothing.
        assert_eq!(own + OF_PUBLISHING, OWN_SERIES_OF_THE_MANIFEST);
        let own = OWN_SERIES_OF_THE_MANIFEST;
        let whole = 100 * (own + node + 50 * vm);
        let row = format!("| {families} | {vm} | {node} | {own} | {} |", in_groups(whole));
        assert!(document.contains(&row), "{DOCUMENT} should have {row}");
    }
}
