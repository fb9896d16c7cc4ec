//! `nodes` and `reap` on the Nodes of a real API server.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use http::{Method, Request, Response};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use psi_agent::client::cluster::call::CallError;
use psi_agent::client::cluster::{ApiClient, OwnNode, block_on};
use psi_agent::client::flags::ReapFlags;
use psi_agent::client::reap::reap;
use psi_agent::contract::Prefix;
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::staged_node::agent_pod;
use crate::support::terminal::Terminal;

const HEADER: [&str; 6] = ["NAME", "LEVEL", "SCORE", "HEADROOM", "CANDIDATE", "AGE"];

/// A Node with a score of so many minutes ago, and with foreign keys.
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
                "psi-agent.io/headroom": "5",
                "psi-agent.io/demand": "vms=2.00,others=0.50",
                "psi-agent.io/waiting": "0.25",
                "psi-agent.io/candidates": "uid=3f0c,demand=1.00,relief=0.25",
                "other.io/score": "7",
            },
            "labels": {"psi-agent.io/pressure": "medium", "psi-agent.io/headroom": "4", "kubernetes.io/os": "linux"},
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

    /// The output of a command that succeeds.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Nodes with keys of the prefix.
    fn marked(&self) -> Vec<String> {
        let nodes: Value =
            serde_json::from_str(&self.cluster.kubectl(&["get", "nodes", "-o", "json"], ""))
                .unwrap();
        let mut marked = Vec::new();
        for node in nodes["items"].as_array().unwrap() {
            let name = node["metadata"]["name"].as_str().unwrap();
            assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux", "{name}");
            assert!(node["spec"]["taints"].to_string().contains("other.io/taint"), "{name}");
            // kubectl repeats the applied object in an annotation.
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
fn a_watched_list_goes_on_with_each_change_until_its_pipe_closes() {
    let cluster = Cluster::start("watch");
    cluster.apply(&[node("calm", 0, 1), node("busy", 60, 2)]);
    let mut command = Command::new(BINARY);
    command.args(["nodes", "--watch", "--kubeconfig"]).arg(cluster.admin_kubeconfig());
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let list: Vec<String> = lines.by_ref().take(3).collect();
    assert!(list[1].starts_with("busy   medium   60"), "{list:?}");

    cluster.kubectl(&["annotate", "node", "calm", "--overwrite", "psi-agent.io/score=45"], "");
    assert!(lines.next().unwrap().starts_with("calm   medium   45"));
    // Another's key is no change.
    cluster.kubectl(&["annotate", "node", "calm", "--overwrite", "other.io/score=8"], "");
    cluster.kubectl(&["label", "node", "busy", "--overwrite", "psi-agent.io/pressure=high"], "");
    assert!(lines.next().unwrap().starts_with("busy   high     60"));

    drop(lines);
    cluster.kubectl(&["delete", "node", "calm"], "");
    cluster.kubectl(&["annotate", "node", "busy", "--overwrite", "psi-agent.io/score=5"], "");
    assert!(watching.wait().unwrap().success());
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn nodes_are_listed_by_score_and_stale_values_are_reaped() {
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
    let row = "medium   95      5          3f0c        30m (stale)\n";
    assert!(table.contains(row), "{table}");
    assert!(table.contains("\"soon\", expected a time in RFC 3339"), "{table}");

    let names = scene.say(&[
        "nodes",
        "-o",
        "name",
        "--sort-by",
        "name",
        "-l",
        "psi-agent.io/pressure=medium",
    ]);
    assert_eq!(names, "node/busy\nnode/calm\nnode/old\nnode/undated\nnode/young\n");
    assert!(
        scene.say(&["nodes", "-l", "none=such"]).ends_with("No Node matches: see --selector.\n")
    );
    let json: Value = serde_json::from_str(&scene.say(&["nodes", "-o", "json"])).unwrap();
    let first = &json["items"][0];
    assert_eq!((&first["name"], &first["score"]), (&json!("old"), &json!(95)));
    assert!(scene.say(&["nodes", "-o", "wide"]).lines().next().unwrap().ends_with("   BASIS"));

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

    // A Node that changes between the list and the patch is read again.
    let prefix = Prefix::default();
    let newer = block_on(async {
        let api = ApiClient::connect_as_kubectl(Some(&scene.kubeconfig), None).await.unwrap();
        let nodes = api.list_nodes(&prefix, "").await.unwrap();
        let calm = nodes.iter().find(|node| node.metadata.name == "calm").unwrap();
        let own = OwnNode { api, name: "calm".into() };
        scene.cluster.kubectl(&["annotate", "node", "calm", "other.io/more=yes"], "");
        let patched = own.patch(&calm.clearing_patch(&prefix)).await;
        assert_eq!(patched, Err(CallError::Conflict));
        anyhow::Ok(own.get().await.unwrap())
    });
    let newer = newer.unwrap();
    assert_eq!(newer.metadata.annotations["other.io/more"], "yes");
    assert_eq!(scene.cluster.used_rights(), scene.cluster.granted_rights("psi-agent-reap"));
}

/// A scripted API server with these Nodes, of which it forbids to patch `forbidden`.
struct ScriptedApi {
    api: ApiClient,
}

impl ScriptedApi {
    fn new(nodes: Vec<Value>, forbidden: &'static str) -> Self {
        let list = json!({"metadata": {}, "items": nodes});
        let service = tower::service_fn(move |request: Request<Body>| {
            let target = request.uri().to_string().replace("/api/v1/nodes", "");
            let (status, body) = if request.method() == Method::GET {
                (200, list.clone())
            } else if target.starts_with(&format!("/{forbidden}?")) {
                (403, json!({"message": "not this one"}))
            } else {
                (200, json!({}))
            };
            let answer = Response::builder().status(status);
            let answer = answer.body(Body::from(body.to_string().into_bytes())).unwrap();
            async move { Ok::<_, std::io::Error>(answer) }
        });
        Self { api: ApiClient::new(Client::new(service, "default")) }
    }

    async fn reap(&self) -> (anyhow::Result<()>, String) {
        let (prefix, mut out) = (Prefix::default(), Vec::new());
        let older_than = Some(Duration::from_secs(900));
        let flags = ReapFlags { older_than, ..ReapFlags::default() };
        let result = reap(&self.api, &prefix, &flags, Timestamp::now, &mut out).await;
        (result, String::from_utf8(out).unwrap())
    }
}

#[tokio::test]
async fn of_all_nodes_only_own_keys_are_kept() {
    let nodes = (0..120).map(|number| node(&format!("node-{number}"), 5, 1)).collect();
    let scripted = ScriptedApi::new(nodes, "none");
    let listed = scripted.api.list_nodes(&Prefix::default(), "").await.unwrap();
    assert_eq!(listed.len(), 120);
    assert_eq!(listed[119].metadata.name, "node-119");
    assert_eq!(listed[0].spec.taints.len(), 2);
    let foreign = |key: &&String| !key.starts_with("psi-agent.io/");
    let metadata = listed.iter().map(|node| &node.metadata);
    let keys = metadata.flat_map(|node| node.annotations.keys().chain(node.labels.keys()));
    assert_eq!(keys.filter(foreign).count(), 0);
}

#[tokio::test]
async fn a_node_that_cannot_be_cleared_does_not_keep_reap_from_the_others() {
    let scripted = ScriptedApi::new(
        vec![
            node("calm", 0, 1),
            node("bad", 95, 30),
            node("old", 95, 30),
            // By a clock that is ahead.
            node("fresh", 5, -2),
        ],
        "bad",
    );
    let (result, said) = scripted.reap().await;
    assert_eq!(
        said,
        "bad: not cleared: the API server forbids it: not this one\nold: cleared\n1 of 4 nodes \
         with a value cleared\n"
    );
    assert_eq!(result.unwrap_err().to_string(), "1 of 2 nodes could not be cleared");
}

/// The output of `psi-agent nodes` in a terminal of this width.
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
fn nodes_fit_a_terminal_with_ages_and_stale_marks() {
    let cluster = Cluster::start("nodes");
    let kubeconfig = cluster.admin_kubeconfig();
    let scene = Scene { cluster, kubeconfig };
    let [long, young] = ["worker-17.rack-4.example.org", "worker-2.rack-4.example.org"];
    scene.cluster.apply(&[node(long, 95, 30), node(young, 15, 9)]);
    scene.cluster.add_node("worker-3");

    let lines = in_terminal(&scene, 100);
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(&lines[0]), HEADER);
    assert_eq!(cells(&lines[1]), [long, "medium", "95", "5", "3f0c", "30m", "(stale)"]);
    assert_eq!(cells(&lines[2]), [young, "medium", "15", "5", "3f0c", "9m"]);
    assert_eq!(cells(&lines[3]), ["worker-3", "-", "-", "-", "-", "-"]);
    let aligned = lines.iter().filter_map(|line| line.get(..31)?.strip_suffix("   "));
    assert_eq!(aligned.count(), lines.len(), "{lines:#?}");

    // The age is shown in any case.
    let lines = in_terminal(&scene, 72);
    assert_eq!(cells(&lines[0]), ["NAME", "LEVEL", "SCORE", "HEADROOM", "AGE"]);
    assert_eq!(cells(&lines[1]), [long, "medium", "95", "5", "30m", "(stale)"]);
    assert_eq!(lines.len(), 4, "no line is broken: {lines:#?}");

    let undated = with_annotation(node("worker-3", 5, 1), "psi-agent.io/observed-at", "soon");
    scene.cluster.apply(&[undated]);
    let lines = in_terminal(&scene, 100);
    assert_eq!(cells(&lines[3]), ["worker-3", "-", "-", "-", "-", "unreadable"]);
    let why = lines[4..].concat();
    assert!(why.starts_with("worker-3: annotation psi-agent.io/observed-at is \"soon\""), "{why}");
}
