//! Nodes that cannot be scored: without cgroup v2, or without PSI. The agent stays up, says so once,
//! and leaves its Node alone, where a 0 would say that all is well.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cluster::Cluster;
use crate::support::exposition::{Series, parse};
use crate::support::folder::Folder;
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::wait_for;

/// A score has its history after 30 s, and one that was taken over is held for 60 s.
const LONG_ENOUGH: Duration = Duration::from_secs(75);

/// The cgroup mounts of a node with the old hierarchies, in which a pod runs.
fn cgroup1_files() -> Folder {
    let container = format!("memory/kubepods/burstable/pod1/{:064x}/cgroup.procs", 1);
    let pids = format!("pids/kubepods/burstable/pod1/{:064x}/pids.current", 1);
    let folder = Folder::new("cgroup1");
    for (file, text) in [(&*container, "7\n"), (&pids, "1\n"), ("cpu/cpu.stat", "nr_periods 0\n")] {
        folder.write(file, text);
    }
    folder
}

/// `/proc` of a kernel that tells no pressure.
fn proc_without_pressure() -> Folder {
    let folder = Folder::new("psi-off");
    for name in ["stat", "vmstat", "meminfo", "diskstats"] {
        folder.write(name, &fs::read_to_string(format!("/proc/{name}")).unwrap());
    }
    folder
}

/// The agent in a mount namespace of its own, from which cgroup2 was taken away.
fn without_cgroup2() -> Command {
    let script = "umount --all --types cgroup2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh", BINARY]);
    command
}

struct Idle {
    node: &'static str,
    agent: Agent,
    remedy: &'static str,
    has_cgroup2: f64,
}

fn values<'a>(series: &'a [Series], name: &str) -> Vec<&'a Series> {
    series.iter().filter(|series| series.name == name).collect()
}

impl Idle {
    fn check(&mut self) {
        let Self { node, agent, .. } = self;
        assert!(agent.child.try_wait().unwrap().is_none(), "{node}: the agent ended");
        assert_eq!((agent.get("/livez"), agent.get("/readyz")), ("ok\n".into(), "ok\n".into()));
        let series = parse(&agent.get("/metrics"));
        assert_eq!(values(&series, "psi_agent_cgroup_v2")[0].value, self.has_cgroup2, "{node}");
        assert_eq!(values(&series, "psi_agent_build_info").len(), 1);
        assert_eq!(values(&series, "psi_agent_pressure_supported").len(), 3);
        for absent in ["psi_agent_node_score_ratio", "psi_agent_node_contention_ratio"] {
            assert!(values(&series, absent).is_empty(), "{node}: {absent}");
        }
        if self.has_cgroup2 == 0.0 {
            let of_cgroups = series.iter().filter(|series| series.name.starts_with("container_"));
            assert_eq!(of_cgroups.count(), 0, "{node}");
            assert_eq!(values(&series, "psi_agent_cgroups")[0].value, 0.0, "{node}");
        }
        let log = agent.log();
        let is_problem = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        let problems: Vec<&str> = log.lines().filter(is_problem).collect();
        assert_eq!(problems.len(), 1, "{node}: {log}");
        assert!(problems[0].contains(self.remedy), "{node}: {log}");
    }
}

/// What another agent wrote on a Node a minute ago.
fn leave_a_value(cluster: &Cluster, node: &str) {
    let date = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() - 60).unwrap();
    let annotations = json!({
        "psi-agent.io/score": "40", "psi-agent.io/cpu": "40", "psi-agent.io/memory": "0",
        "psi-agent.io/io": "0", "psi-agent.io/basis": "psi/10",
        "psi-agent.io/observed-at": date.to_string(),
    });
    let patch = json!({"metadata": {"annotations": annotations}}).to_string();
    cluster.kubectl(&["patch", "node", node, "--type=merge", "-p", &patch], "");
}

#[test]
#[ignore = "needs root, a cgroup2 mount, and a control plane (tests/kubernetes/build); takes 80 s"]
fn a_node_that_cannot_be_scored_gets_no_value_and_its_agent_stays() {
    let cluster = Cluster::start("idling");
    cluster.apply_folder("daemonset/base");
    let start = |node: &str, command: Command, flags: &[&str]| {
        cluster.add_node(node);
        leave_a_value(&cluster, node);
        let pod = format!("psi-agent-{node}");
        cluster.apply(&[agent_pod(&pod, node)]);
        let kubeconfig = cluster.agent_kubeconfig(&pod);
        let fixed = ["--node-name", node, "--kubeconfig", kubeconfig.to_str().unwrap()];
        Agent::start_by(command, &[&fixed, flags].concat())
    };
    let plain = || Command::new(BINARY);
    let (cgroup1, empty, proc) = (cgroup1_files(), Folder::new("empty"), proc_without_pressure());
    let own = OwnCgroup::new("idling");
    let boot = "boot with systemd.unified_cgroup_hierarchy=1";
    let old = start("node-old", plain(), &["--cgroup-root", cgroup1.text(), "--scope", "all"]);
    let bare = start("node-empty", plain(), &["--cgroup-root", empty.text()]);
    let unmounted = start("node-unmounted", without_cgroup2(), &[]);
    let root = own.path.to_str().unwrap();
    let psi_off =
        start("node-psi-off", plain(), &["--cgroup-root", root, "--proc-root", proc.text()]);
    let mut idle = [
        Idle { node: "node-old", agent: old, remedy: boot, has_cgroup2: 0.0 },
        Idle { node: "node-empty", agent: bare, remedy: boot, has_cgroup2: 0.0 },
        Idle { node: "node-unmounted", agent: unmounted, remedy: boot, has_cgroup2: 0.0 },
        Idle { node: "node-psi-off", agent: psi_off, remedy: "boot with psi=1", has_cgroup2: 1.0 },
    ];
    // Beside them one that can be scored, or the silence of the others would prove nothing.
    let started = Instant::now();
    let well = StagedNode::new("idling", "node-well");
    cluster.add_node(well.name);
    cluster.apply(&[agent_pod("psi-agent-node-well", well.name)]);
    let _well = well.start_agent(&cluster, "psi-agent-node-well", &[]);
    while started.elapsed() < LONG_ENOUGH {
        std::thread::sleep(Duration::from_secs(5));
        idle.iter_mut().for_each(Idle::check);
    }
    let writes = || cluster.audited().into_iter().filter(|event| event.verb == "patch");
    wait_for("the node that can be scored is", LONG_ENOUGH, || {
        writes().any(|write| write.node == well.name && write.code == 200).then_some(())
    });
    for Idle { node, .. } in idle {
        assert!(cluster.audited().iter().any(|event| event.node == node), "{node} was looked at");
        assert_eq!(writes().filter(|write| write.node == node).count(), 0, "{node}");
        let annotations = &cluster.get(&["node", node])["metadata"]["annotations"];
        assert_eq!(annotations["psi-agent.io/score"], "40", "what was left stays, dated");
    }
}
