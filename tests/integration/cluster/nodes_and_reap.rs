//! `nodes` and `reap` on the Nodes of a real API server.

use std::path::PathBuf;
use std::process::{Command, Output};

use jiff::{SignedDuration, Timestamp};
use psi_agent::cluster::{ClearOutcome, Connection, clear_node, list_nodes};
use psi_agent::contract::Prefix;
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::staged_node::agent_pod;
use crate::support::terminal::Terminal;

/// A Node that an agent wrote on so many minutes ago, in a cluster with keys of others.
fn node(name: &str, score: u8, minutes_ago: i64) -> Value {
    let observed_at = Timestamp::now() - SignedDuration::from_mins(minutes_ago);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {
                "psi-agent.io/score": score.to_string(),
                "psi-agent.io/cpu": score.to_string(),
                "psi-agent.io/memory": "0",
                "psi-agent.io/observed-at": format!("{observed_at:.0}"),
                "psi-agent.io/basis": "psi/1",
                "other.io/score": "7",
            },
            "labels": {"psi-agent.io/pressure": "medium", "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [
            {"key": "psi-agent.io/pressure-medium", "value": "true", "effect": "PreferNoSchedule"},
            {"key": "other.io/taint", "effect": "NoSchedule"},
        ]},
    })
}

fn with_annotation(mut node: Value, key: &str, value: &str) -> Value {
    node["metadata"]["annotations"][key] = json!(value);
    node
}

struct Scene {
    cluster: Cluster,
    kubeconfig: PathBuf,
}

impl Scene {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut agent = Command::new(BINARY);
        agent.args(arguments).arg("--kubeconfig").arg(&self.kubeconfig).output().unwrap()
    }

    /// What a command says when all is well.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Nodes on which the prefix has left something.
    fn marked(&self) -> Vec<String> {
        let nodes: Value =
            serde_json::from_str(&self.cluster.kubectl(&["get", "nodes", "-o", "json"], ""))
                .unwrap();
        let mut marked = Vec::new();
        for node in nodes["items"].as_array().unwrap() {
            let name = node["metadata"]["name"].as_str().unwrap();
            assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux", "{name}");
            assert!(node["spec"]["taints"].to_string().contains("other.io/taint"), "{name}");
            // What kubectl remembers of its own last call is no trace of ours.
            let mut node = node.clone();
            let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            assert_eq!(annotations["other.io/score"], "7", "{name}");
            node["metadata"]["managedFields"].take();
            if node.to_string().contains("psi-agent.io") {
                marked.push(name.to_owned());
            }
        }
        marked
    }
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn nodes_are_listed_by_score_and_what_nobody_renews_is_reaped() {
    let cluster = Cluster::start("reap");
    let kubeconfig = cluster.admin_kubeconfig();
    let scene = Scene { cluster, kubeconfig };
    scene.cluster.apply(&[
        node("calm", 0, 1),
        node("busy", 60, 2),
        node("young", 15, 9),
        node("old", 95, 30),
        with_annotation(node("undated", 5, 1), "psi-agent.io/observed-at", "soon"),
    ]);

    let table = scene.say(&["nodes"]);
    let rows = table.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = rows.map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["NAME", "old", "busy", "young", "calm", "undated"], "{table}");
    assert!(table.contains("95      95    0        -    psi/1   30m (stale)\n"), "{table}");
    assert!(table.contains("\"soon\", expected a time in RFC 3339"), "{table}");

    let said = scene.say(&["reap", "--older-than", "15m"]);
    assert_eq!(said, "old: cleared\nundated: cleared\n2 of 5 nodes with a value cleared\n");
    assert_eq!(scene.marked(), ["busy", "calm", "young"]);
    let again = scene.say(&["reap", "--older-than", "15m"]);
    assert_eq!(again, "0 of 3 nodes with a value cleared\n");

    let refused = scene.run(&["reap", "--older-than", "90s"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("2 of 3 nodes with a value are stale: that looks like an outage"));
    assert_eq!(scene.marked(), ["busy", "calm", "young"]);
    let forced = scene.say(&["reap", "--older-than", "90s", "--force"]);
    assert_eq!(forced, "busy: cleared\nyoung: cleared\n2 of 3 nodes with a value cleared\n");

    let all = scene.say(&["reap", "--all"]);
    assert_eq!(all, "calm: cleared\n1 of 1 nodes with a value cleared\n");
    assert!(scene.marked().is_empty());
    assert_eq!(scene.say(&["reap", "--all"]), "0 of 0 nodes with a value cleared\n");
}

/// The account of the CronJob has the rights that it uses, and no others.
#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn reap_uses_all_of_its_rights() {
    let cluster = Cluster::start("reap-rights");
    cluster.apply_folder("daemonset/base");
    let mut pod = agent_pod("reap", "calm");
    pod["spec"]["serviceAccountName"] = json!("psi-agent-reap");
    cluster.apply(&[node("calm", 0, 1), node("fresh", 5, 1), node("old", 95, 30), pod]);
    let token = cluster.bound_token("psi-agent-reap", "reap");
    let kubeconfig = cluster.write_kubeconfig("reap", &token);
    let scene = Scene { cluster, kubeconfig };
    let job = scene.cluster.get(&["cronjob", "psi-agent-reap", "-n", "psi-agent"]);
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array().unwrap();
    let arguments: Vec<&str> = arguments.iter().map(|word| word.as_str().unwrap()).collect();
    let said = scene.say(&arguments);
    assert_eq!(said, "old: cleared\n1 of 3 nodes with a value cleared\n");

    // A Node that somebody changes between being listed and being cleared is looked at by itself.
    let connection = Connection::open(Some(&scene.kubeconfig)).unwrap();
    let nodes = list_nodes(&connection).unwrap();
    let calm = nodes.iter().find(|node| node.name == "calm").unwrap();
    scene.cluster.kubectl(&["annotate", "node", "calm", "other.io/more=yes"], "");
    let outcome = clear_node(&connection, &Prefix::default(), calm).unwrap();
    let ClearOutcome::Changed(newer) = outcome else { panic!("{outcome:?}") };
    assert_eq!(newer.annotations["other.io/more"], "yes");
    assert_eq!(scene.cluster.used_rights(), scene.cluster.granted_rights("psi-agent-reap"));
}

/// What `psi-agent nodes` says in a terminal so wide.
fn in_terminal(scene: &Scene, columns: u16) -> Vec<String> {
    let kubeconfig = scene.kubeconfig.display();
    let script = format!("{BINARY} nodes --kubeconfig {kubeconfig}; echo ended: $?; exec sleep 60");
    let terminal = Terminal::start_wide(&format!("nodes-{columns}"), columns, &script);
    let mut lines = terminal
        .wait_for("the table", |lines| lines.iter().any(|line| line.starts_with("ended: ")));
    lines.retain(|line| !line.is_empty());
    assert_eq!(lines.pop().as_deref(), Some("ended: 0"), "{lines:#?}");
    lines
}

#[test]
#[ignore = "needs etcd, a kube-apiserver (tests/kubernetes/build) and tmux"]
fn nodes_fit_a_terminal_with_their_ages_and_what_is_stale() {
    let cluster = Cluster::start("nodes");
    let kubeconfig = cluster.admin_kubeconfig();
    let scene = Scene { cluster, kubeconfig };
    let [long, young] = ["worker-17.rack-4.example.org", "worker-2.rack-4.example.org"];
    scene.cluster.apply(&[node(long, 95, 30), node(young, 15, 9)]);
    scene.cluster.add_node("worker-3");

    let lines = in_terminal(&scene, 80);
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(&lines[0]), ["NAME", "SCORE", "CPU", "MEMORY", "IO", "BASIS", "AGE"]);
    assert_eq!(cells(&lines[1]), [long, "95", "95", "0", "-", "psi/1", "30m", "(stale)"]);
    assert_eq!(cells(&lines[2]), [young, "15", "15", "0", "-", "psi/1", "9m"]);
    assert_eq!(cells(&lines[3]), ["worker-3", "-", "-", "-", "-", "-", "-"]);
    let aligned = lines.iter().filter_map(|line| line.get(..31)?.strip_suffix("   "));
    assert_eq!(aligned.count(), lines.len(), "{lines:#?}");

    // The age is what nobody reads a score without.
    let lines = in_terminal(&scene, 60);
    assert_eq!(cells(&lines[0]), ["NAME", "SCORE", "CPU", "AGE"]);
    assert_eq!(cells(&lines[1]), [long, "95", "95", "30m", "(stale)"]);
    assert_eq!(lines.len(), 4, "no line is broken: {lines:#?}");

    let undated = with_annotation(node("worker-3", 5, 1), "psi-agent.io/observed-at", "soon");
    scene.cluster.apply(&[undated]);
    let lines = in_terminal(&scene, 80);
    assert_eq!(cells(&lines[3]), ["worker-3", "-", "-", "-", "-", "-", "unreadable"]);
    let why = lines[4..].concat();
    assert!(why.starts_with("worker-3: annotation psi-agent.io/observed-at is \"soon\""), "{why}");
}
