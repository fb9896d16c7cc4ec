//! Faults of a real API server, of the network before it and of etcd behind it. Meanwhile the Node has
//! the value of before, with its date, and afterwards the newest one.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use psi_agent::client::cluster::{ApiClient, OwnNode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::publishing::{EVERYTHING, HIGH, MEDIUM, MINUTE, NODE, Scene, client};
use crate::support::cluster::Cluster;
use crate::support::exposition::parse;
use crate::support::folder::Folder;
use crate::support::proxy::Proxy;
use crate::support::publisher::publisher;
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::wait_for;

const LIMIT: Duration = Duration::from_secs(60);

/// The agent's annotations on a Node.
fn values(node: &Value) -> Vec<(String, String)> {
    let annotations = node["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let own = annotations.into_iter().filter(|(key, _)| key.starts_with("psi-agent.io/"));
    own.map(|(key, value)| (key, value.as_str().unwrap().to_owned())).collect()
}

fn score(node: &Value) -> &Value {
    &node["metadata"]["annotations"]["psi-agent.io/score"]
}

impl Scene {
    /// Waits until RBAC lets the agent write, or doesn't.
    fn wait_until_it_may_write(&self, expected: &str) {
        let node = format!("node/{NODE}");
        wait_for(&format!("RBAC says {expected}"), LIMIT, || {
            let output =
                self.cluster.kubectl_as(&self.kubeconfig, &["auth", "can-i", "patch", &node]);
            (String::from_utf8(output.stdout).unwrap().trim() == expected).then_some(())
        });
    }
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn rights_that_are_removed_and_returned_cost_the_time_between() {
    let mut scene = Scene::start("rights").await;
    scene.pass(MINUTE, 0.0).await;
    let before = values(&scene.api_node());
    assert_eq!(before.len(), 6, "{before:?}");
    scene.cluster.kubectl(&["delete", "clusterrolebinding", "psi-agent"], "");
    scene.wait_until_it_may_write("no");
    scene.publisher.outcomes.clear();
    scene.pass(10 * MINUTE, 0.5).await;
    assert!((3..=10).contains(&scene.outcomes().len()), "{:?}", scene.outcomes());
    assert!(scene.outcomes().iter().all(|word| *word == "forbidden"), "{:?}", scene.outcomes());
    assert_eq!(values(&scene.api_node()), before);

    scene.cluster.apply_folder("daemonset/base");
    scene.wait_until_it_may_write("yes");
    scene.pass(5 * MINUTE + 5, 0.5).await;
    assert_eq!(scene.outcomes().last(), Some(&"written"), "{:?}", scene.outcomes());
    assert_eq!(score(&scene.api_node()), "50");
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn a_node_that_is_deleted_and_made_again_gets_all_its_keys_again() {
    let mut scene = Scene::start("deleted").await;
    scene.pass(3 * MINUTE, 0.5).await;
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
    scene.cluster.kubectl(&["delete", "node", NODE], "");
    scene.publisher.outcomes.clear();
    scene.pass(10 * MINUTE, 0.5).await;
    assert!((1..=10).contains(&scene.outcomes().len()), "{:?}", scene.outcomes());
    assert!(scene.outcomes().iter().all(|word| *word == "not_found"), "{:?}", scene.outcomes());

    scene.cluster.add_node(NODE);
    assert_eq!(values(&scene.api_node()), []);
    scene.pass(5 * MINUTE + 5, 0.5).await;
    let node = scene.api_node();
    assert_eq!((values(&node).len(), score(&node)), (6, &json!("50")), "{:?}", scene.outcomes());
    assert_eq!(node["metadata"]["labels"]["psi-agent.io/pressure"], "high");
    assert_eq!(scene.own_taints(), [MEDIUM, HIGH]);
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn an_agent_that_is_killed_during_a_write_leaves_one_whole_value() {
    let mut scene = Scene::start("killed").await;
    scene.pass(3 * MINUTE, 0.5).await;
    for arrives in [false, true] {
        let before = scene.api_node();
        let written = write_and_die(&mut scene, arrives).await;
        let after = scene.api_node();
        if arrives {
            assert_ne!(values(&after), values(&before));
            let whole = json!({"metadata": {"annotations": written["metadata"]["annotations"]}});
            assert_eq!(values(&after), values(&whole), "all of one write");
        } else {
            assert_eq!(after["metadata"], before["metadata"]);
            assert_eq!(after["spec"], before["spec"]);
        }
        // The next agent continues from it.
        scene.restart(EVERYTHING);
        scene.pass(5 * MINUTE, 0.5).await;
        assert_eq!(scene.outcomes().first(), Some(&"adopted"), "{:?}", scene.outcomes());
        // 50, or the value that is published while the score is not yet a whole step above it.
        let score = score(&scene.api_node()).clone();
        assert!(score == "45" || score == "50", "{score}: {:?}", scene.outcomes());
    }
}

/// Lets an agent write a lower value, and ends it before the request is sent, or before its response is
/// read; the patch.
async fn write_and_die(scene: &mut Scene, arrives: bool) -> Value {
    let real = client(&scene.kubeconfig).await;
    let (reached, mut write) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (real, reached) = (real.clone(), reached.clone());
        async move {
            if request.method() != Method::PATCH {
                return real.send(request).await;
            }
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?.to_vec();
            let patch: Value = serde_json::from_slice(&body).unwrap();
            if arrives {
                let answer = real.send(Request::from_parts(head, body.into())).await?;
                assert!(answer.status().is_success(), "{answer:?}");
            }
            reached.send(patch).unwrap();
            std::future::pending().await
        }
    });
    let node = OwnNode { api: ApiClient::new(Client::new(service, "default")), name: NODE.into() };
    let mut publisher = publisher(node, EVERYTHING, || 0.5);
    for _ in 0..60 {
        let tick = scene.node.tick(0.0).into();
        tokio::select! {
            _ = publisher.take(&tick) => {}
            patch = write.recv() => return patch.unwrap(),
        }
    }
    panic!("nothing was written in 5 min");
}

/// More than a cluster of the tests has, and less than it takes long to fill.
const QUOTA: u32 = 16 << 20;

#[tokio::test]
#[ignore = "needs etcd, a kube-apiserver (tests/kubernetes/build) and curl"]
async fn an_etcd_without_space_costs_the_time_until_it_has_some() {
    let mut scene = Scene::start_on(Cluster::start_with_quota("etcd-full", QUOTA)).await;
    scene.pass(MINUTE, 0.0).await;
    let before = values(&scene.api_node());
    let file = Folder::new("etcd-full-object");
    file.write("filler", &"x".repeat(1_000_000));
    let from = format!("--from-file={}", file.path("filler"));
    let admin = scene.cluster.admin_kubeconfig();
    let fill = |number: usize| {
        let create = ["create", "configmap", &format!("filler-{number}"), &from];
        let output = scene.cluster.kubectl_as(&admin, &create);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some(error)
    };
    let refusal = (0..100).find_map(fill).expect("etcd is full");
    assert!(refusal.contains("database space exceeded"), "{refusal}");

    scene.publisher.outcomes.clear();
    scene.pass(10 * MINUTE, 0.5).await;
    assert!((8..=20).contains(&scene.outcomes().len()), "{:?}", scene.outcomes());
    assert!(scene.outcomes().iter().all(|word| *word == "failed"), "{:?}", scene.outcomes());
    assert_eq!(values(&scene.api_node()), before);

    // As etcd's documentation has it: remove, compact, defragment, disarm.
    scene.cluster.kubectl(&["delete", "configmaps", "--all", "--wait=false"], "");
    let newest = scene.cluster.etcd("/v3/kv/range", &json!({"key": "AA=="}));
    let revision = &newest["header"]["revision"];
    scene.cluster.etcd("/v3/kv/compaction", &json!({"revision": revision, "physical": true}));
    scene.cluster.etcd("/v3/maintenance/defragment", &json!({}));
    let alarms = scene.cluster.etcd("/v3/maintenance/alarm", &json!({"action": "GET"}));
    let disarm = json!({
        "action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": alarms["alarms"][0]["memberID"],
    });
    scene.cluster.etcd("/v3/maintenance/alarm", &disarm);
    scene.pass(2 * MINUTE, 0.5).await;
    assert_eq!(scene.outcomes().last(), Some(&"written"), "{:?}", scene.outcomes());
    assert_eq!(score(&scene.api_node()), "50");
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn a_connection_that_goes_silent_is_given_up_and_the_newest_value_is_written_by_another() {
    const POD: &str = "psi-agent-node-a";
    let cluster = Cluster::start("half-open");
    cluster.apply_folder("daemonset/base");
    cluster.add_node(NODE);
    cluster.apply(&[agent_pod(POD, NODE)]);
    // What an earlier agent wrote, and what the new one soon has to correct: nothing waits here.
    let written_at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(60);
    let mut annotate = vec!["annotate".to_owned(), "node".into(), NODE.into()];
    let date = format!("observed-at={written_at:.0}");
    for pair in ["score=40", "cpu=40", "memory=0", "io=0", &date, "basis=psi/10"] {
        annotate.push(format!("psi-agent.io/{pair}"));
    }
    cluster.kubectl(&annotate.iter().map(String::as_str).collect::<Vec<_>>(), "");
    let before = values(&cluster.get(&["node", NODE]));

    let proxy = Proxy::start(cluster.port());
    // Latency of a slow network that loses each tenth packet.
    proxy.delay(Duration::from_millis(100), 10);
    let user = json!({"token": cluster.bound_token("psi-agent", POD)});
    let kubeconfig = cluster.write_kubeconfig_by(proxy.port, "through-proxy", &user);
    let node = StagedNode::new("half-open", NODE);
    let agent = node.start_agent_by(&kubeconfig, &["--cpu-source=psi"]);
    wait_for("it has read its Node", LIMIT, || {
        agent.log().contains("Continuing from the value").then_some(())
    });
    proxy.stall();
    let connections = proxy.connections();
    let unreachable = || {
        let series = parse(&agent.get("/metrics"));
        let name = "psi_agent_publishes_total";
        let failures = series.iter().filter(|series| series.name == name);
        let mut failures = failures.filter(|series| series.labels["result"] == "unreachable");
        failures.next().map_or(0.0, |series| series.value)
    };
    wait_for("a request is given up", LIMIT, || (unreachable() >= 1.0).then_some(()));
    assert_eq!(agent.get("/readyz"), "ok\n");
    assert_eq!(values(&cluster.get(&["node", NODE])), before, "the old value with its date");
    proxy.resume();
    let resumed = jiff::Timestamp::now();
    let after = wait_for("the newest value", LIMIT, || {
        let after = values(&cluster.get(&["node", NODE]));
        (after != before).then_some(after)
    });
    let after: BTreeMap<String, String> = after.into_iter().collect();
    let observed_at: jiff::Timestamp = after["psi-agent.io/observed-at"].parse().unwrap();
    // The tick before is 5 s old at most, the one before that is not what is written.
    assert!(
        observed_at >= resumed - jiff::SignedDuration::from_secs(12),
        "{observed_at} {resumed}"
    );
    assert!(after["psi-agent.io/score"].parse::<u8>().unwrap() < 40, "{after:?}");
    assert!(proxy.connections() > connections, "by another connection");
    assert_eq!(agent.log().matches("did not respond").count(), 1, "{}", agent.log());
}
