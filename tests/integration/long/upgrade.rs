//! An upgrade from the last release, of a node that is short of CPU, with both binaries.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use psi_agent::score::basis;
use psi_agent::waiting::CpuSource;
use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::cpu::BusyCpu;
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::{cache_dir, wait_for};

const NODE: &str = "node-a";
const FLAGS: &[&str] = &[
    "--label",
    "--taint-levels",
    "medium,high",
    "--mark-candidate",
    "--candidate-min-age",
    "1s",
    "--publish",
    "on",
];
const LIMIT: Duration = Duration::from_secs(180);
/// The new agent has a score of its own after half of this time.
const AFTER: Duration = Duration::from_secs(90);

/// The agent that tests/upgrade/build builds.
fn last_release() -> PathBuf {
    let binary = cache_dir().join("upgrade-0.2.0/psi-agent");
    assert!(binary.exists(), "tests/upgrade/build builds {}", binary.display());
    binary
}

/// What stands on the Node and on its pods.
#[derive(Debug, PartialEq)]
struct Marks {
    level: Option<String>,
    taints: usize,
    candidates: usize,
    basis: Option<String>,
}

impl Marks {
    fn of(cluster: &Cluster) -> Self {
        let node = cluster.get(&["node", NODE]);
        let text = |kind: &str, key: &str| {
            node["metadata"][kind][&format!("psi-agent.io/{key}")].as_str().map(str::to_owned)
        };
        let own = |taint: &&Value| taint["key"].as_str().unwrap().starts_with("psi-agent.io/");
        let pods = cluster.get(&["pods", "-n", "vms", "-l", "psi-agent.io/migrate-first"]);
        Self {
            level: text("labels", "pressure"),
            taints: node["spec"]["taints"].as_array().into_iter().flatten().filter(own).count(),
            candidates: pods["items"].as_array().unwrap().len(),
            basis: text("annotations", "basis"),
        }
    }

    fn are_of_a_short_node(&self) -> bool {
        self.level.as_deref() == Some("high") && self.taints == 2 && self.candidates == 1
    }
}

#[test]
#[ignore = "needs root, a cgroup2 mount, a control plane and the last release (tests/upgrade/build); takes 5 min"]
fn an_upgrade_under_load_takes_nothing_from_a_node_that_is_short() {
    let cluster = Cluster::start("upgrade-under-load");
    cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&["candidate"]));
    cluster.kubectl(&["create", "namespace", "vms"], "");
    cluster.add_node(NODE);
    cluster.apply(&[agent_pod("old", NODE), agent_pod("new", NODE)]);
    let mut node = StagedNode::new("upgrade-under-load", NODE);
    let cpu = BusyCpu::take();
    for number in 1..=3 {
        let cgroup = node.start_vm(&cluster, &format!("vm-{number}"), number);
        node.own.spawn(&cgroup, &cpu.spin());
    }
    let old = node.start_agent_as(last_release(), &cluster, "old", FLAGS);
    let before = wait_for("the old agent marks the node and a VM", LIMIT, || {
        Some(Marks::of(&cluster)).filter(Marks::are_of_a_short_node)
    });
    eprintln!("before: {before:?}");
    old.signal("TERM");
    drop(old);
    let _new = node.start_agent(&cluster, "new", FLAGS);
    let start = Instant::now();
    let mut last = before;
    while start.elapsed() < AFTER {
        let now = Marks::of(&cluster);
        assert!(now.are_of_a_short_node(), "after {:?}: {now:?}", start.elapsed());
        if now != last {
            eprintln!("after {:?}: {now:?}", start.elapsed());
        }
        last = now;
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(last.basis, Some(basis(CpuSource::Psi).to_string()), "the new agent wrote no score");
}
