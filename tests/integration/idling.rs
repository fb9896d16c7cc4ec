//! Nodes that cannot be scored: without cgroup v2, or without PSI. The agent stays up, says so once,
//! and leaves its Node alone, where a 0 would say that all is well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cluster::Cluster;
use crate::support::exposition::{Series, parse};
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::wait_for;

/// A score has its history after 30 s, and one that was taken over is held for 60 s.
const LONG_ENOUGH: Duration = Duration::from_secs(75);

/// A folder of the test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for (file, text) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The cgroup mounts of a node with the old hierarchies, in which a pod runs.
fn cgroup1_files() -> Folder {
    let container = format!("memory/kubepods/burstable/pod1/{:064x}/cgroup.procs", 1);
    let pids = format!("pids/kubepods/burstable/pod1/{:064x}/pids.current", 1);
    Folder::new(
        "cgroup1",
        &[(&container, "7\n"), (&pids, "1\n"), ("cpu/cpu.stat", "nr_periods 0\n")],
    )
}

/// `/proc` of a kernel that tells no pressure.
fn proc_without_pressure() -> Folder {
    let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap();
    let files = ["stat", "vmstat", "meminfo", "diskstats"].map(|name| (name, read(name)));
    Folder::new("psi-off", &files.each_ref().map(|(name, text)| (*name, &**text)))
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
        for absent in ["psi_agent_node_score", "psi_agent_node_contention_ratio"] {
            assert!(values(&series, absent).is_empty(), "{node}: {absent}");
        }
        if self.has_cgroup2 == 0.0 {
            let of_cgroups = series.iter().filter(|series| series.name.starts_with("container_"));
            assert_eq!(of_cgroups.count(), 0, "{node}");
            assert_eq!(values(&series, "psi_agent_cgroups")[0].value, 0.0, "{node}");
        }
        let log = agent.log();
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 1, "{node}: {log}");
        assert!(warnings[0].contains(self.remedy), "{node}: {log}");
    }
}

/// What another agent wrote on a Node a minute ago.
fn leave_a_value(cluster: &Cluster, node: &str) {
    let date = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() - 60).unwrap();
    let annotations = json!({
        "psi-agent.io/score": "40", "psi-agent.io/cpu": "40", "psi-agent.io/memory": "0",
        "psi-agent.io/io": "0", "psi-agent.io/basis": "psi/9",
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
        let token = cluster.bound_token("psi-agent", &pod);
        let kubeconfig = cluster.write_kubeconfig(&pod, &token);
        let fixed = ["--node-name", node, "--kubeconfig", kubeconfig.to_str().unwrap()];
        Agent::start_by(command, &[&fixed, flags].concat())
    };
    let plain = || Command::new(BINARY);
    let (cgroup1, empty, proc) =
        (cgroup1_files(), Folder::new("empty", &[]), proc_without_pressure());
    let own = OwnCgroup::new("idling");
    let boot = "boot it with systemd.unified_cgroup_hierarchy=1";
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

#[test]
fn check_in_a_cluster_says_that_there_is_no_cgroup_v2() {
    let (empty, config) = (Folder::new("check", &[]), Folder::new("check-config", &[]));
    let kubeconfig = config.0.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "test", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    fs::write(&kubeconfig, text.to_string()).unwrap();
    let output = Command::new(BINARY)
        .args(["check", "--node-name", "node-a", "--cgroup-root", empty.text(), "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected =
        format!("FAIL  cgroup v2  {} is not cgroup v2: the agent would run", empty.text());
    assert!(said.contains(&expected) && said.contains("-> boot with systemd.unified"), "{said}");
}

#[test]
#[ignore = "needs root, to mount a hierarchy of cgroup v1 for itself"]
fn outside_a_cluster_cgroup_v1_is_refused_with_its_remedy() {
    let folder = Folder::new("v1", &[]);
    fs::create_dir(folder.0.join("systemd")).unwrap();
    let script = "mount -t cgroup -o none,name=psi-agent-test cgroup \"$0/systemd\" && exec \"$@\"";
    for root in [folder.0.clone(), folder.0.join("systemd")] {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .args([&*folder.0, Path::new(BINARY)])
            .args(["--listen-address", "127.0.0.1:0", "--cgroup-root"])
            .arg(&root)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let expected = format!(
            "{} is cgroup v1: boot with systemd.unified_cgroup_hierarchy=1, or set --cgroup-root \
             to the cgroup2 mount",
            root.display()
        );
        assert!(said.contains(&expected), "{said}");
    }
}
