//! The publisher against a real API server, in virtual time: scores five seconds apart are made as
//! fast as the publisher takes them. The writes are read from the API server's audit log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use psi_agent::client::cluster::{ApiClient, OwnNode};
use psi_agent::contract::{Key, Prefix};
use psi_agent::relief::Assessment;
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::{Audited, Cluster};
use crate::support::publisher::{ObservedPublisher, publisher};
use crate::support::short_node::ShortNode;

pub(super) const NODE: &str = "node-a";
pub(super) const MINUTE: u64 = 60;

pub(super) const MEDIUM: &str = "psi-agent.io/pressure-medium";
pub(super) const HIGH: &str = "psi-agent.io/pressure-high";

/// Flags of an agent that shows the level by its label and taints.
pub(super) const EVERYTHING: &str = "--label --taint-levels medium,high";

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
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) kubeconfig: PathBuf,
    pub(super) own_node: OwnNode,
    pub(super) node: ShortNode,
    pub(super) publisher: ObservedPublisher,
}

impl Scene {
    pub(super) async fn start(name: &str) -> Self {
        Self::start_on(Cluster::start(name)).await
    }

    pub(super) async fn start_on(cluster: Cluster) -> Self {
        cluster.apply_folder("daemonset/base");
        cluster.add_node(NODE);
        cluster.add_node("node-b");
        cluster.apply(&[pod_of("psi-agent", NODE), pod_of("psi-agent-reap", NODE)]);
        let kubeconfig = cluster.agent_kubeconfig("psi-agent-node-a");
        let own_node = OwnNode::connect(Some(&kubeconfig), NODE.into()).await.unwrap();
        let publisher = publisher(own_node.clone(), EVERYTHING, || 0.5);
        let node = ShortNode::new();
        Self { cluster, kubeconfig, own_node, node, publisher }
    }

    /// A new agent takes the place of the one before it.
    pub(super) fn restart(&mut self, flags: &str) {
        self.publisher = publisher(self.own_node.clone(), flags, || 0.5);
        self.node.restart();
    }

    /// Lets so many seconds pass; the writes of the agent in them.
    pub(super) async fn pass(&mut self, seconds: u64, contention: f64) -> Vec<Audited> {
        let before = self.writes().len();
        for _ in 0..seconds / 5 {
            let score = self.node.tick(contention);
            self.take(&score.into()).await;
        }
        self.writes().split_off(before)
    }

    /// The publisher takes what a tick gave.
    pub(super) async fn take(&mut self, assessment: &Assessment) {
        if let Some(found) = self.publisher.take(assessment).await {
            self.node.adopt(&found);
        }
    }

    /// What happened since the publisher started, a word each.
    pub(super) fn outcomes(&self) -> Vec<&str> {
        self.publisher.outcomes()
    }

    pub(super) fn writes(&self) -> Vec<Audited> {
        self.cluster.audited().into_iter().filter(|event| event.verb == "patch").collect()
    }

    pub(super) fn api_node(&self) -> Value {
        self.cluster.get(&["node", NODE])
    }

    pub(super) fn own_taints(&self) -> Vec<String> {
        let node = self.api_node();
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let keys = taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned());
        keys.filter(|key| key.starts_with("psi-agent.io/")).collect()
    }
}

/// A client with the credentials of a kubeconfig, for use behind another service.
pub(super) async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
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

/// The number of own taints in each write of the list of taints.
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
async fn annotations_label_and_taints_follow_the_score() {
    let mut scene = Scene::start("life").await;
    scene.cluster.kubectl(&["taint", "node", NODE, "other.io/taint=x:NoSchedule"], "");

    // Nothing before 30 s of history, then one write, then heartbeats.
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
    assert_eq!(annotation(&first[0], Key::Basis), "run-delay/6");
    let calm = scene.pass(60 * MINUTE, 0.0).await;
    assert_eq!(calm.len(), 12);

    // A step up and down: each level once each way, values alone 30 s apart.
    let mut step = scene.pass(10 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
    step.extend(scene.pass(10 * MINUTE, 0.0).await);
    assert_eq!(labels(&step), ["low", "medium", "high", "medium", "low"]);
    assert_eq!(taint_counts(&step), [1, 2, 1, 0]);
    let mut values: Vec<(i64, u32, Vec<&str>)> = step
        .iter()
        .map(|write| {
            let at: jiff::Timestamp = annotation(write, Key::ObservedAt).parse().unwrap();
            let score = annotation(write, Key::Score).parse().unwrap();
            (at.as_second(), score, labels(std::slice::from_ref(write)))
        })
        .collect();
    values.dedup_by_key(|(_, score, level)| (*score, level.clone()));
    let mut pairs = values.windows(2);
    assert!(pairs.all(|pair| pair[1].0 - pair[0].0 >= 30 || pair[1].2 != pair[0].2), "{values:?}");
    assert!(values.iter().all(|(_, score, _)| score % 5 == 0));
    assert_eq!(values.iter().map(|(_, score, _)| *score).max(), Some(50));
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

    // A sawtooth around a threshold and short bursts change no level.
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
async fn removed_keys_come_back_and_keys_switched_off_are_removed() {
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

    // A restart at high causes no write before the next heartbeat.
    scene.restart(EVERYTHING);
    let writes = scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!(scene.outcomes(), ["adopted", "written"]);
    assert_eq!((labels(&writes), annotation(&writes[0], Key::Score)), (vec!["high"], "50"));

    // A dry run counts writes and does none.
    scene.restart("--publish dry-run");
    assert!(scene.pass(5 * MINUTE, 0.5).await.is_empty());
    assert_eq!(scene.outcomes(), ["adopted", "dry_run"]);
    assert_eq!(scene.own_taints(), both);

    // Outputs that are switched off are removed by the next write.
    scene.restart("--taint-levels high");
    scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), both[1..]);
    scene.restart("");
    scene.pass(5 * MINUTE, 0.5).await;
    assert!(scene.own_taints().is_empty());
    assert_eq!(scene.api_node()["metadata"]["labels"].get("psi-agent.io/pressure"), None);

    // A value of another basis or too old a value is not adopted.
    let basis = ["annotate", "node", NODE, "--overwrite", "psi-agent.io/basis=run-delay/2"];
    scene.cluster.kubectl(&basis, "");
    scene.restart(EVERYTHING);
    assert!(scene.pass(25, 0.0).await.is_empty());
    assert_eq!(labels(&scene.pass(5, 0.0).await), ["low"]);
    assert_eq!(scene.outcomes(), ["written"]);
    scene.node.sleep(Duration::from_secs(10 * MINUTE));
    scene.restart(EVERYTHING);
    scene.pass(30, 0.5).await;
    assert_eq!(scene.outcomes(), ["written"]);
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn an_upgrade_to_another_basis_never_clears_the_label_or_taints_of_a_node_that_is_short() {
    let mut scene = Scene::start("upgrade").await;
    scene.pass(3 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
    // As the release before wrote it; the new agent takes over under load.
    let basis = ["annotate", "node", NODE, "--overwrite", "psi-agent.io/basis=psi/1"];
    scene.cluster.kubectl(&basis, "");
    scene.restart(EVERYTHING);
    let writes = scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!((labels(&writes), taint_counts(&writes)), (vec!["high"], vec![]));
    assert_eq!(annotation(&writes[0], Key::Basis), "run-delay/6");
    assert!(!scene.outcomes().contains(&"adopted"), "{:?}", scene.outcomes());
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
    // The level is left when the node is calm.
    let writes = scene.pass(5 * MINUTE, 0.0).await;
    assert_eq!(labels(&writes), ["high", "medium", "low"]);
    assert!(scene.own_taints().is_empty());
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn after_a_refusal_the_agent_tries_again_later_each_time() {
    let mut scene = Scene::start("refused").await;
    // Policies take effect some time after they were applied.
    while !matches!(scene.own_node.foreign_write().await, Ok(None)) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let other = OwnNode { name: "node-b".into(), ..scene.own_node.clone() };
    scene.publisher = publisher(other, EVERYTHING, || 0.5);
    scene.pass(10 * MINUTE, 0.0).await;
    assert!((3..=10).contains(&scene.outcomes().len()), "{:?}", scene.outcomes());
    assert!(scene.outcomes().iter().all(|word| *word == "forbidden"), "{:?}", scene.outcomes());
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn keys_that_reap_removes_come_back_with_the_next_heartbeat() {
    let mut scene = Scene::start("reaped").await;
    let token = scene.cluster.bound_token("psi-agent-reap", "psi-agent-reap-node-a");
    let reaper = scene.cluster.write_kubeconfig("reap", &token);
    scene.cluster.kubectl(&["taint", "node", NODE, "other.io/taint=x:NoSchedule"], "");
    scene.cluster.kubectl(&["annotate", "node", NODE, "other.io/kept=yes"], "");
    scene.pass(3 * MINUTE, 0.5).await;
    let reap = Command::new(BINARY).args(["reap", "--all", "--kubeconfig"]).arg(&reaper).output();
    let said = String::from_utf8(reap.unwrap().stdout).unwrap();
    assert_eq!(said, "node-a: cleared\n1 of 1 nodes with a value cleared\n");
    let node = scene.api_node();
    assert_eq!(node["metadata"]["annotations"]["other.io/kept"], "yes");
    assert_eq!(node["spec"]["taints"].as_array().unwrap().len(), 1);
    scene.pass(5 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn a_concurrent_write_of_another_client_survives() {
    let mut scene = Scene::start("conflict").await;
    scene.pass(MINUTE / 2, 0.0).await;
    // Between the agent's read of its Node and its write, an administrator taints it, once.
    let real = client(&scene.kubeconfig).await;
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
    let node = OwnNode { api: ApiClient::new(Client::new(service, "default")), name: NODE.into() };
    let mut publisher = publisher(node, EVERYTHING, || 0.5);
    for _ in 0..12 {
        let score = scene.node.tick(0.5);
        publisher.take(&score.into()).await;
    }
    assert_eq!(publisher.failures(), ["conflict"]);
    let node = cluster.get(&["node", NODE]);
    let taints = node["spec"]["taints"].as_array().unwrap();
    let keys: Vec<&str> = taints.iter().map(|taint| taint["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["other.io/taint", MEDIUM, HIGH]);
}
