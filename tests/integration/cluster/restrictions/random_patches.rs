//! Random patches of a Node with the token of an agent.

use std::path::Path;

use http::{Method, Request};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::{HIGH, MEDIUM, NODE, SOFT, Scene};

const OWN_LABELS: [&str; 2] = ["psi-agent.io/pressure", "psi-agent.io/headroom"];

/// Paths into a Node that a patch may name: of the agent, of others, and of fields.
const PATHS: [&[&str]; 24] = [
    &["metadata", "annotations", "psi-agent.io/candidates"],
    &["metadata", "annotations", "psi-agent.io/score"],
    &["metadata", "annotations", "psi-agent.io/new"],
    &["metadata", "annotations", "other.io/kept"],
    &["metadata", "annotations", "psi-agent.iox/score"],
    &["metadata", "annotations"],
    &["metadata", "labels", "psi-agent.io/pressure"],
    &["metadata", "labels", "psi-agent.io/headroom"],
    &["metadata", "labels", "psi-agent.io/x"],
    &["metadata", "labels", "kubernetes.io/hostname"],
    &["metadata", "labels"],
    &["metadata", "finalizers"],
    &["metadata", "ownerReferences"],
    &["metadata", "managedFields"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "name"],
    &["spec", "taints"],
    &["spec", "unschedulable"],
    &["spec", "podCIDRs"],
    &["spec", "providerID"],
    &["spec", "externalID"],
    &["spec"],
    &["status", "conditions"],
    &["status"],
];

fn any_taint() -> impl Strategy<Value = Value> {
    let key = select(vec![MEDIUM, HIGH, "other.io/taint", "other.io/new"]);
    let effect = select(vec![SOFT, "NoSchedule", "NoExecute"]);
    (key, effect).prop_map(|(key, effect)| json!({"key": key, "value": "x", "effect": effect}))
}

fn any_value() -> impl Strategy<Value = Value> {
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]);
    prop_oneof![
        Just(Value::Null),
        select(vec!["", "x", "5", "low"]).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!([{}])),
        Just(json!(["psi-agent.io/x"])),
        Just(json!(["10.1.0.0/24"])),
        Just(owner),
        proptest::collection::vec(any_taint(), 0..4).prop_map(Value::from),
        Just(json!({"psi-agent.io/score": "5"})),
        Just(json!({"other.io/kept": null, "psi-agent.io/io": "5"})),
    ]
}

/// A change of one to three fields: the kind of patch, and the patch.
fn any_patch() -> impl Strategy<Value = (&'static str, Value)> {
    let changes = proptest::collection::vec((select(PATHS.to_vec()), any_value()), 1..4);
    let kind = select(vec!["merge", "strategic-merge", "json"]);
    (kind, changes, select(vec!["add", "replace", "remove"])).prop_map(|(kind, changes, verb)| {
        if kind == "json" {
            let operation = |(path, value): &(&[&str], Value)| {
                let path: String =
                    path.iter().map(|part| format!("/{}", part.replace('/', "~1"))).collect();
                json!({"op": verb, "path": path, "value": value})
            };
            return (kind, changes.iter().map(operation).collect());
        }
        let mut whole = json!({});
        for (path, value) in changes {
            let mut at = &mut whole;
            for part in path {
                if !at.is_object() {
                    *at = json!({});
                }
                at = &mut at[*part];
            }
            *at = value;
        }
        (kind, whole)
    })
}

/// What of a Node no patch of its agent may change. The list of managers is an exception that
/// docs/security.md names.
fn foreign_part(mut node: Value) -> Value {
    let own = |key: &str| key.starts_with("psi-agent.io/");
    let metadata = node["metadata"].as_object_mut().unwrap();
    for field in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(field);
    }
    for keys in ["annotations", "labels"] {
        let map = metadata.entry(keys).or_insert_with(|| json!({})).as_object_mut().unwrap();
        map.retain(
            |key, _| if keys == "labels" { !OWN_LABELS.contains(&key.as_str()) } else { !own(key) },
        );
    }
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default().into_iter();
    let is_own = |taint: &Value| {
        [MEDIUM, HIGH].contains(&taint["key"].as_str().unwrap()) && taint["effect"] == SOFT
    };
    node["spec"]["taints"] = taints.filter(|taint| !is_own(taint)).collect();
    node
}

async fn client_of(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn random_patches_of_an_agent_change_nothing_but_its_own_keys_of_its_own_node() {
    let scene = Scene::start("patches", "psi-agent");
    let client = client_of(&scene.agent).await;
    let get = |node| scene.cluster.get(&["node", node]);
    let (before, of_other) = (foreign_part(get(NODE)), get("node-b"));
    let mut runner = TestRunner::default();
    let mut accepted = 0;
    for number in 0..2000 {
        let (kind, patch) = any_patch().new_tree(&mut runner).unwrap().current();
        let node = if number % 4 == 0 { "node-b" } else { NODE };
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("/api/v1/nodes/{node}"))
            .header("content-type", format!("application/{kind}-patch+json"))
            .body(patch.to_string().into_bytes())
            .unwrap();
        if let Ok(after) = client.request::<Value>(request).await {
            accepted += 1;
            let kept = if node == NODE { foreign_part(after) == before } else { after == of_other };
            assert!(kept, "{node}: {kind} {patch}");
        }
    }
    assert_eq!((foreign_part(get(NODE)), get("node-b")), (before, of_other));
    println!("{accepted} of 2000 patches accepted");
    assert!(accepted > 50, "{accepted}");
}
