//! The publisher against a real API server, in virtual time: scores are made, five seconds apart,
//! as fast as they are taken; what reaches the Node is read from the API server's audit log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use psi_agent::cluster::call::CallError;
use psi_agent::cluster::own_node::OwnNode;
use psi_agent::cluster::{self, connect};
use psi_agent::contract::{Key, Level, Prefix};
use psi_agent::publish::level::Thresholds;
use psi_agent::publish::node_patch::Outputs;
use psi_agent::publish::publisher::{Publisher, Report, Settings};
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::{Audited, Cluster};
use crate::support::short_node::ShortNode;

const NODE: &str = "node-a";
const MINUTE: u64 = 60;

fn everything() -> Outputs {
    Outputs { label: true, taints: BTreeSet::from([Level::Medium, Level::High]) }
}

fn settings(node: Option<OwnNode>, outputs: Outputs, dry_run: bool) -> Settings {
    let (prefix, thresholds) = (Prefix::default(), Thresholds::default());
    Settings { prefix, thresholds, outputs, node, dry_run, chance: || 0.5 }
}

/// A pod on a Node, which the account's token is bound to.
fn pod_of(account: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{account}-{node}"), "namespace": "psi-agent"},
        "spec": {
            "nodeName": node, "serviceAccountName": account,
            "containers": [{"name": "agent", "image": "psi-agent"}],
        },
    })
}

/// A cluster with the project's own rights in it, two Nodes, and a node that gets short.
struct Scene {
    cluster: Cluster,
    kubeconfig: PathBuf,
    client: Client,
    node: ShortNode,
    publisher: Publisher,
    /// What was reported, one word each.
    heard: Vec<&'static str>,
}

impl Scene {
    async fn start(name: &str) -> Self {
        let cluster = Cluster::start(name);
        cluster.apply_folder("daemonset/base");
        cluster.add_node(NODE);
        cluster.add_node("node-b");
        cluster.apply(&[pod_of("psi-agent", NODE), pod_of("psi-agent-reap", NODE)]);
        let token = cluster.bound_token("psi-agent", "psi-agent-node-a");
        let kubeconfig = cluster.write_kubeconfig("agent", &token);
        let reached =
            cluster::Cluster { kubeconfig: Some(kubeconfig.clone()), node_name: NODE.into() };
        let client = connect(&reached).await.unwrap();
        let publisher = Publisher::new(settings(None, Outputs::default(), true));
        let node = ShortNode::new();
        let mut scene = Self { cluster, kubeconfig, client, node, publisher, heard: Vec::new() };
        scene.restart(everything(), false);
        scene
    }

    /// A new agent takes the place of the one before it.
    fn restart(&mut self, outputs: Outputs, dry_run: bool) {
        let node = OwnNode::new(self.client.clone(), NODE.into());
        self.publisher = Publisher::new(settings(Some(node), outputs, dry_run));
        self.node.restart();
        self.heard.clear();
    }

    /// Lets so many seconds pass; answers what the agent did to its Node in them.
    async fn pass(&mut self, seconds: u64, contention: f64) -> Vec<Audited> {
        let before = self.writes().len();
        for _ in 0..seconds / 5 {
            let score = self.node.tick(contention);
            let (mut adopted, heard) = (None, &mut self.heard);
            let hear = |report: &Report<'_>| {
                heard.push(match report {
                    Report::Adopted(found) => {
                        adopted = Some((*found).clone());
                        "adopted"
                    }
                    Report::Written(..) => "written",
                    Report::WouldWrite(_, _, patch) => {
                        assert!(patch.is_some());
                        "would write"
                    }
                    Report::Failed(error) => error.word(),
                });
            };
            self.publisher.take(&score, hear).await;
            if let Some(found) = adopted {
                self.node.adopt(&found);
            }
        }
        self.writes().split_off(before)
    }

    fn writes(&self) -> Vec<Audited> {
        self.cluster.audited().into_iter().filter(|event| event.verb == "patch").collect()
    }

    fn api_node(&self) -> Value {
        self.cluster.get(&["node", NODE])
    }

    fn own_taints(&self) -> Vec<String> {
        let node = self.api_node();
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let keys = taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned());
        keys.filter(|key| key.starts_with("psi-agent.io/")).collect()
    }
}

fn annotation(write: &Audited, key: Key) -> &str {
    write.body["metadata"]["annotations"][key.of(&Prefix::default())].as_str().unwrap()
}

fn without_repeats<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.dedup();
    values
}

fn labels(writes: &[Audited]) -> Vec<&str> {
    let label = Key::Pressure.of(&Prefix::default());
    without_repeats(
        writes.iter().map(|write| write.body["metadata"]["labels"][&label].as_str().unwrap()),
    )
}

/// How many own taints each write of the list of taints left.
fn taint_counts(writes: &[Audited]) -> Vec<usize> {
    let lists = writes.iter().filter_map(|write| write.body["spec"]["taints"].as_array());
    let own = |list: &Vec<Value>| {
        assert_eq!(list[0]["key"], "other.io/taint", "{list:?}");
        list.len() - 1
    };
    lists.map(own).collect()
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn the_life_of_the_annotations_from_the_first_to_the_last() {
    let mut scene = Scene::start("life").await;
    scene.cluster.kubectl(&["taint", "node", NODE, "other.io/taint=x:NoSchedule"], "");

    // Nothing before there is a history, then one write, then signs of life.
    assert!(scene.pass(25, 0.0).await.is_empty());
    let first = scene.pass(5, 0.0).await;
    let body = &first[0].body;
    assert_eq!(first.len(), 1);
    assert_eq!(body["metadata"]["labels"], json!({"psi-agent.io/pressure": "low"}));
    assert_eq!((body.get("spec"), body["metadata"].get("resourceVersion")), (None, None));
    let annotations = body["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.len(), 6, "{annotations:?}");
    for key in [Key::Score, Key::Cpu, Key::Memory, Key::Io] {
        assert_eq!(annotation(&first[0], key), "0");
    }
    assert_eq!(annotation(&first[0], Key::Basis), "psi/8");
    let calm = scene.pass(60 * MINUTE, 0.0).await;
    assert_eq!(calm.len(), 12);

    // A step up and down: each level once each way, values 30 s apart.
    let mut step = scene.pass(10 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
    step.extend(scene.pass(10 * MINUTE, 0.0).await);
    assert_eq!(labels(&step), ["low", "medium", "high", "medium", "low"]);
    assert_eq!(taint_counts(&step), [1, 2, 1, 0]);
    let mut values: Vec<(i64, u32)> = step
        .iter()
        .map(|write| {
            let at: jiff::Timestamp = annotation(write, Key::ObservedAt).parse().unwrap();
            (at.as_second(), annotation(write, Key::Score).parse().unwrap())
        })
        .collect();
    values.dedup_by_key(|(_, score)| *score);
    assert!(values.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 30), "{values:?}");
    assert!(values.iter().all(|(_, score)| score % 5 == 0));
    assert_eq!(values.iter().map(|(_, score)| *score).max(), Some(50));
    assert_eq!(values.last().unwrap().1, 0);
    // What scheduler-plugins' NodeMetadata reads: a float that it cuts off to an integer.
    for write in &step {
        let text = annotation(write, Key::Score);
        let float: f64 = text.parse().unwrap();
        #[allow(clippy::cast_possible_truncation)]
        let cut = float as i64;
        assert_eq!(cut.to_string(), text);
    }
    assert!(step.iter().all(|write| write.code == 200 && write.node == NODE));
    assert!(step.iter().all(|write| write.by == "psi-agent-node-a"));

    // A sawtooth around a threshold, and bursts, flip nothing.
    let mut restless = Vec::new();
    for _ in 0..20 {
        restless.extend(scene.pass(15, 0.13).await);
        restless.extend(scene.pass(15, 0.05).await);
    }
    scene.pass(5 * MINUTE, 0.0).await;
    for _ in 0..20 {
        restless.extend(scene.pass(5, 1.0).await);
        restless.extend(scene.pass(55, 0.0).await);
    }
    assert_eq!(labels(&restless), ["low"]);
    assert!(taint_counts(&restless).is_empty());
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn what_was_taken_away_comes_back_and_what_is_switched_off_goes() {
    let mut scene = Scene::start("reassert").await;
    scene.pass(3 * MINUTE, 0.5).await;
    let both = [MEDIUM, HIGH];
    assert_eq!(scene.own_taints(), both);

    let remove = ["taint", "node", NODE, "psi-agent.io/pressure-high-"];
    scene.cluster.kubectl(&remove, "");
    scene.cluster.kubectl(&["label", "node", NODE, "psi-agent.io/pressure-"], "");
    assert_eq!(scene.own_taints(), both[..1]);
    assert_eq!(scene.pass(5 * MINUTE, 0.5).await.len(), 1);
    assert_eq!(scene.own_taints(), both);
    assert_eq!(scene.api_node()["metadata"]["labels"]["psi-agent.io/pressure"], "high");

    // A restart at high is nobody's business: no write but the next sign of life.
    scene.restart(everything(), false);
    let writes = scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!(scene.heard, ["adopted", "written"]);
    assert_eq!((labels(&writes), annotation(&writes[0], Key::Score)), (vec!["high"], "50"));

    // A dry run says what it would do, and does nothing.
    scene.restart(Outputs::default(), true);
    assert!(scene.pass(5 * MINUTE, 0.5).await.is_empty());
    assert_eq!(scene.heard, ["adopted", "would write"]);
    assert_eq!(scene.own_taints(), both);

    // Outputs that are switched off go with the next write.
    scene.restart(Outputs { label: false, taints: [Level::High].into() }, false);
    scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), both[1..]);
    scene.restart(Outputs::default(), false);
    scene.pass(5 * MINUTE, 0.5).await;
    assert!(scene.own_taints().is_empty());
    assert_eq!(scene.api_node()["metadata"]["labels"].get("psi-agent.io/pressure"), None);

    // A value of another kind or too old a one is not gone on from.
    let basis = ["annotate", "node", NODE, "--overwrite", "psi-agent.io/basis=run-delay/2"];
    scene.cluster.kubectl(&basis, "");
    scene.restart(everything(), false);
    assert!(scene.pass(25, 0.0).await.is_empty());
    assert_eq!(labels(&scene.pass(5, 0.0).await), ["low"]);
    assert_eq!(scene.heard, ["written"]);
    scene.node.sleep(Duration::from_secs(10 * MINUTE));
    scene.restart(everything(), false);
    scene.pass(30, 0.5).await;
    assert_eq!(scene.heard, ["written"]);
}

/// Patches that somebody may try.
mod patches {
    use serde_json::{Value, json};

    pub(super) fn annotation(key: &str, value: Value) -> Value {
        json!({"metadata": {"annotations": {key: value}}})
    }

    pub(super) fn label(key: &str, value: Value) -> Value {
        json!({"metadata": {"labels": {key: value}}})
    }

    /// The foreign taint that is there, and these.
    pub(super) fn taints(more: &[(&str, &str)]) -> Value {
        let mut list = vec![json!({"key": "other.io/taint", "value": "x", "effect": "NoSchedule"})];
        list.extend(more.iter().map(|(key, effect)| json!({"key": key, "effect": effect})));
        json!({"spec": {"taints": list}})
    }
}

impl Scene {
    /// Whether the API server lets somebody patch a Node. A refusal is 403 and nothing else.
    fn allows(&self, kubeconfig: &Path, node: &str, patch: &Value) -> bool {
        let patch = patch.to_string();
        let arguments = ["patch", "node", node, "--type=merge", "-p", &patch];
        let output = self.cluster.kubectl_as(kubeconfig, &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("(Forbidden)"), "{patch}: {said}");
        output.status.success()
    }
}

const MEDIUM: &str = "psi-agent.io/pressure-medium";
const HIGH: &str = "psi-agent.io/pressure-high";
const SOFT: &str = "PreferNoSchedule";

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn the_api_server_lets_the_agent_change_its_own_keys_of_its_own_node_alone() {
    use patches::{annotation, label, taints};
    let mut scene = Scene::start("rights").await;
    let cluster = &scene.cluster;
    for node in [NODE, "node-b"] {
        cluster.kubectl(&["taint", "node", node, "other.io/taint=x:NoSchedule"], "");
        cluster.kubectl(&["annotate", "node", node, "other.io/kept=yes"], "");
    }
    for (allowed, what) in [
        (true, annotation("psi-agent.io/score", json!("5"))),
        (true, label("psi-agent.io/pressure", json!("low"))),
        (true, taints(&[(MEDIUM, SOFT), (HIGH, SOFT)])),
        (true, taints(&[(MEDIUM, SOFT)])),
        (false, annotation("other.io/score", json!("5"))),
        (false, annotation("psi-agent.iox/score", json!("5"))),
        (false, annotation("other.io/kept", Value::Null)),
        (false, label("other.io/pressure", json!("low"))),
        (false, label("psi-agent.io/other", json!("low"))),
        (false, label("kubernetes.io/hostname", json!("node-x"))),
        (false, taints(&[(HIGH, "NoSchedule")])),
        (false, taints(&[(HIGH, "NoExecute")])),
        (false, taints(&[("other.io/second", SOFT)])),
        (false, json!({"spec": {"taints": []}})),
        (false, json!({"spec": {"unschedulable": true}})),
        (false, json!({"metadata": {"finalizers": ["psi-agent.io/never"]}})),
    ] {
        assert_eq!(scene.allows(&scene.kubeconfig, NODE, &what), allowed, "{what}");
        assert!(!scene.allows(&scene.kubeconfig, "node-b", &what), "another Node: {what}");
    }
    // Nor does it have any right besides.
    for refused in [
        &["get", "nodes"][..],
        &["delete", "node", NODE],
        &["get", "pod", "psi-agent-node-a", "-n", "psi-agent"],
        &["get", "secrets", "-n", "psi-agent"],
    ] {
        let output = cluster.kubectl_as(&scene.kubeconfig, refused);
        assert!(!output.status.success(), "{refused:?}");
    }
    assert!(cluster.kubectl_as(&scene.kubeconfig, &["get", "pods", "-A"]).status.success());

    // What the agent itself makes of a refusal: tried again, later each time.
    let other = OwnNode::new(scene.client.clone(), "node-b".into());
    scene.publisher = Publisher::new(settings(Some(other), everything(), false));
    scene.pass(10 * MINUTE, 0.0).await;
    assert!((3..=10).contains(&scene.heard.len()), "{:?}", scene.heard);
    assert!(scene.heard.iter().all(|word| *word == "forbidden"), "{:?}", scene.heard);
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn the_api_server_lets_the_reaper_take_away_and_never_add() {
    use patches::{annotation, label, taints};
    let mut scene = Scene::start("reaper").await;
    let cluster = &scene.cluster;
    cluster.kubectl(&["taint", "node", NODE, "other.io/taint=x:NoSchedule"], "");
    cluster.kubectl(&["annotate", "node", NODE, "other.io/kept=yes"], "");
    let token = cluster.bound_token("psi-agent-reap", "psi-agent-reap-node-a");
    let reaper = cluster.write_kubeconfig("reap", &token);
    scene.pass(3 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
    for (allowed, what) in [
        (false, annotation("psi-agent.io/score", json!("95"))),
        (false, annotation("other.io/kept", Value::Null)),
        (false, label("psi-agent.io/pressure", json!("low"))),
        (false, taints(&[(MEDIUM, SOFT), (HIGH, "NoSchedule")])),
        (false, json!({"spec": {"taints": []}})),
        (true, annotation("psi-agent.io/io", Value::Null)),
    ] {
        assert_eq!(scene.allows(&reaper, NODE, &what), allowed, "{what}");
    }
    let reap = Command::new(BINARY).args(["reap", "--all", "--kubeconfig"]).arg(&reaper).output();
    let said = String::from_utf8(reap.unwrap().stdout).unwrap();
    assert_eq!(said, "node-a: cleared\n1 of 1 nodes with a value cleared\n");
    let node = scene.api_node();
    assert_eq!(node["metadata"]["annotations"]["other.io/kept"], "yes");
    assert_eq!(node["spec"]["taints"].as_array().unwrap().len(), 1);
    // The agent, if there still is one, puts it all back with its next sign of life.
    scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn somebody_else_s_write_in_between_is_seen_and_survives() {
    let mut scene = Scene::start("conflict").await;
    scene.pass(MINUTE / 2, 0.0).await;
    // Between the agent's look at its Node and its write, an administrator taints it: once.
    let real = scene.client.clone();
    let cluster = Arc::new(scene.cluster);
    let intruded = Arc::new(AtomicBool::new(false));
    let (meddling, done) = (Arc::clone(&cluster), Arc::clone(&intruded));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (real, cluster, done) = (real.clone(), Arc::clone(&meddling), Arc::clone(&done));
        async move {
            let is_patch = request.method() == Method::PATCH;
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let names_version = String::from_utf8_lossy(&body).contains("resourceVersion");
            if is_patch && names_version && !done.swap(true, Ordering::Relaxed) {
                cluster.kubectl(&["taint", "node", NODE, "other.io/taint=x:NoSchedule"], "");
            }
            real.send(Request::from_parts(head, body.to_vec().into())).await
        }
    });
    let node = OwnNode::new(Client::new(service, "default"), NODE.into());
    let mut publisher = Publisher::new(settings(Some(node), everything(), false));
    let mut heard = Vec::new();
    for _ in 0..12 {
        let score = scene.node.tick(0.5);
        publisher
            .take(&score, |report| {
                if let Report::Failed(error) = report {
                    heard.push((*error).clone());
                }
            })
            .await;
    }
    assert_eq!(heard, [CallError::Conflict]);
    let node = cluster.get(&["node", NODE]);
    let taints = node["spec"]["taints"].as_array().unwrap();
    let keys: Vec<&str> = taints.iter().map(|taint| taint["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["other.io/taint", MEDIUM, HIGH]);
}
