//! What the accounts of the agent and of reap may change on Nodes, by patches with their tokens, in
//! the namespace of the manifests and in another.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::exposition::parse;
use crate::support::helm::{IMAGE, helm_output};
use crate::support::staged_node::StagedNode;
use crate::support::wait_for;

const NODE: &str = "node-a";
const OTHER_NODE: &str = "node-b";
const MEDIUM: &str = "psi-agent.io/pressure-medium";
const HIGH: &str = "psi-agent.io/pressure-high";
const SOFT: &str = "PreferNoSchedule";
const CANDIDATE: &str =
    "uid=0c1f6e3a-0000-4000-8000-000000000001,demand=1.50,relief=0.75,memory=4294967296";

/// How and where an installation is made.
#[derive(Debug, Clone, Copy)]
struct Installation {
    namespace: &'static str,
    way: Way,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Kustomize { name_prefix: &'static str },
    Helm,
}

const BASE: Way = Way::Kustomize { name_prefix: "" };

impl Installation {
    fn manifests(&self, cluster: &Cluster, name_prefix: &str) -> String {
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["../base"], "namespace": self.namespace, "namePrefix": name_prefix,
        });
        cluster.render(&kustomization.to_string())
    }

    fn install(&self, cluster: &Cluster) {
        match self.way {
            Way::Kustomize { name_prefix } => {
                cluster.kubectl(&["apply", "-f", "-"], &self.manifests(cluster, name_prefix));
            }
            Way::Helm => {
                let client = cluster.admin_kubeconfig().display().to_string();
                let more = ["--kubeconfig", &client, "--create-namespace"];
                helm_output("install", self.namespace, &[IMAGE], &more);
            }
        }
    }

    /// Removes all but the namespace, which stays for want of a controller.
    fn uninstall(&self, cluster: &Cluster) {
        match self.way {
            Way::Kustomize { name_prefix } => {
                let manifests = self.manifests(cluster, name_prefix);
                let objects = manifests.split("\n---\n");
                let kept = objects.filter(|object| !object.contains("\nkind: Namespace\n"));
                let kept = kept.collect::<Vec<_>>().join("\n---\n");
                cluster.kubectl(&["delete", "-f", "-", "--wait=false"], &kept);
            }
            Way::Helm => {
                let client = cluster.admin_kubeconfig().display().to_string();
                // Without a kubelet, the Job of the hook would not run.
                let flags = ["--kubeconfig", &client, "--no-hooks"];
                helm_output("uninstall", self.namespace, &[], &flags);
            }
        }
    }

    fn account(&self, name: &str) -> String {
        match self.way {
            Way::Kustomize { name_prefix } => format!("{name_prefix}{name}"),
            Way::Helm => name.into(),
        }
    }
}

/// A cluster with an installation, two Nodes with keys of others, and a pod of each account.
struct Scene {
    cluster: Cluster,
    agent: PathBuf,
    reap: PathBuf,
}

impl Scene {
    fn start(name: &str, namespace: &'static str) -> Self {
        let cluster = Cluster::start(name);
        for node in [NODE, OTHER_NODE] {
            cluster.add_node(node);
            cluster.kubectl(&["taint", "node", node, "other.io/taint=x:NoSchedule"], "");
            cluster.kubectl(&["annotate", "node", node, "other.io/kept=yes"], "");
        }
        cluster.apply(&[pod_of("default", "elsewhere", "default", OTHER_NODE)]);
        let mut scene = Self { cluster, agent: PathBuf::new(), reap: PathBuf::new() };
        scene.install(&Installation { namespace, way: BASE });
        scene
    }

    /// Installs, and becomes the accounts of this installation.
    fn install(&mut self, installation: &Installation) {
        installation.install(&self.cluster);
        let namespace = installation.namespace;
        let [agent, reap] = ["psi-agent", "psi-agent-reap"].map(|name| {
            let account = installation.account(name);
            self.cluster.apply(&[pod_of(namespace, &account, &account, NODE)]);
            let bound = format!("--bound-object-name={account}");
            let create = ["create", "token", &account, "-n", namespace, "--bound-object-kind=Pod"];
            let token = self.cluster.kubectl(&[&create[..], &[&bound]].concat(), "");
            self.cluster.write_kubeconfig(name, token.trim())
        });
        (self.agent, self.reap) = (agent, reap);
        let sets = annotation("psi-agent.io/score", json!("95"));
        wait_for("the API server knows the policies", Duration::from_secs(60), || {
            let knows = self.check_command().starts_with("ok ");
            (knows && !self.allows(&self.reap, NODE, &sets)).then_some(())
        });
    }

    /// Whether an account may patch a Node. A refusal is 403 and nothing else.
    fn allows(&self, kubeconfig: &Path, node: &str, patch: &Value) -> bool {
        let patch = patch.to_string();
        let arguments = ["patch", "node", node, "--type=merge", "-p", &patch];
        let output = self.cluster.kubectl_as(kubeconfig, &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("(Forbidden)"), "{patch}: {said}");
        output.status.success()
    }

    /// The agent may change its own keys of its own Node only.
    fn check_agent(&self) {
        for (allowed, what) in [
            (true, annotation("psi-agent.io/score", json!("5"))),
            (true, label("psi-agent.io/pressure", json!("low"))),
            (true, label("psi-agent.io/headroom", json!("16"))),
            (true, label("psi-agent.io/headroom", Value::Null)),
            (true, annotation("psi-agent.io/headroom", json!("17"))),
            (true, annotation("psi-agent.io/demand", json!("vms=12.34,others=0.50"))),
            (true, annotation("psi-agent.io/waiting", json!("1.25"))),
            (true, annotation("psi-agent.io/candidates", json!([CANDIDATE; 3].join(";")))),
            (true, annotation("psi-agent.io/candidates", Value::Null)),
            (true, taints(&[(MEDIUM, SOFT), (HIGH, SOFT)])),
            (true, taints(&[(MEDIUM, SOFT)])),
            (false, annotation("other.io/score", json!("5"))),
            (false, annotation("psi-agent.iox/score", json!("5"))),
            (false, annotation("other.io/kept", Value::Null)),
            (false, label("psi-agent.io/headroom", json!("many"))),
            (false, label("psi-agent.io/headroom", json!("100000"))),
            (false, annotation("psi-agent.io/headroom", json!("many"))),
            (false, annotation("psi-agent.io/demand", json!("vms=1e9,others=0"))),
            (false, annotation("psi-agent.io/waiting", json!("NaN"))),
            (false, annotation("psi-agent.io/candidates", json!([CANDIDATE; 4].join(";")))),
            (false, annotation("psi-agent.io/candidates", json!(format!("{CANDIDATE},name=x")))),
            (false, annotation("psi-agent.io/score", json!("5".repeat(1_025)))),
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
            assert_eq!(self.allows(&self.agent, NODE, &what), allowed, "{what}");
            assert!(!self.allows(&self.agent, OTHER_NODE, &what), "another Node: {what}");
        }
    }

    /// reap may remove keys of the agents from any Node, and never set any.
    fn check_reap(&self) {
        let keys = ["psi-agent.io/score=5", "psi-agent.io/io=5"];
        let set = [&["annotate", "--overwrite", "node", OTHER_NODE], &keys[..]].concat();
        self.cluster.kubectl(&set, "");
        for (allowed, what) in [
            (false, annotation("psi-agent.io/score", json!("95"))),
            (false, annotation("other.io/kept", Value::Null)),
            (false, label("psi-agent.io/pressure", json!("low"))),
            (false, taints(&[(MEDIUM, SOFT), (HIGH, "NoSchedule")])),
            (false, json!({"spec": {"taints": []}})),
            (true, annotation("psi-agent.io/io", Value::Null)),
        ] {
            assert_eq!(self.allows(&self.reap, OTHER_NODE, &what), allowed, "{what}");
        }
    }

    fn wait_for_warning(&self, about: &str) {
        let expected = format!("warn  admission  {about}");
        wait_for(about, Duration::from_secs(60), || {
            self.check_command().starts_with(&expected).then_some(())
        });
    }

    /// What `psi-agent check` reports about the policies.
    fn check_command(&self) -> String {
        let check = Command::new(BINARY)
            .args(["check", "--node-name", NODE, "--kubeconfig"])
            .arg(&self.agent)
            .output()
            .unwrap();
        let report = String::from_utf8(check.stdout).unwrap();
        let line = report.lines().find(|line| line.contains(" admission "));
        line.unwrap_or_else(|| panic!("{report}")).to_owned()
    }
}

fn pod_of(namespace: &str, name: &str, account: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node, "serviceAccountName": account,
            "containers": [{"name": "agent", "image": "psi-agent"}],
        },
    })
}

fn annotation(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn label(key: &str, value: Value) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

/// The foreign taint that is there, and these.
fn taints(more: &[(&str, &str)]) -> Value {
    let mut list = vec![json!({"key": "other.io/taint", "value": "x", "effect": "NoSchedule"})];
    list.extend(more.iter().map(|(key, effect)| json!({"key": key, "effect": effect})));
    json!({"spec": {"taints": list}})
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn accounts_may_change_only_keys_of_the_agents_and_the_agent_only_its_own_node() {
    let scene = Scene::start("rights", "psi-agent");
    scene.check_agent();
    scene.check_reap();
    for refused in [
        &["get", "nodes"][..],
        &["delete", "node", NODE],
        &["get", "pod", "psi-agent", "-n", "psi-agent"],
        &["get", "secrets", "-n", "psi-agent"],
    ] {
        let output = scene.cluster.kubectl_as(&scene.agent, refused);
        assert!(!output.status.success(), "{refused:?}");
    }
    let pods = scene.cluster.kubectl_as(&scene.agent, &["get", "pods", "-A"]);
    assert!(pods.status.success());
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn an_installation_in_another_namespace_is_restricted_and_one_without_policies_is_reported() {
    let scene = Scene::start("elsewhere", "node-pressure");
    scene.check_agent();
    scene.check_reap();
    assert!(scene.check_command().starts_with("ok "), "{}", scene.check_command());

    let of_node = ["delete", "validatingadmissionpolicybinding", "psi-agent-own-node"];
    scene.cluster.kubectl(&of_node, "");
    scene.wait_for_warning("this account may change other Nodes, such as node-b,");
    let node = StagedNode::new("elsewhere", NODE);
    let agent = node.start_agent_with(&scene.agent);
    let wait_for_metric = |value: f64| {
        wait_for("the agent has checked twice", Duration::from_secs(180), || {
            let series = parse(&agent.get("/metrics"));
            let found = series.iter().find(|it| it.name == "psi_agent_writes_unrestricted");
            (found.unwrap().value == value).then_some(())
        });
    };
    wait_for_metric(1.0);
    assert!(agent.log().contains("No admission policy restricts"), "{}", agent.log());
    Installation { namespace: "node-pressure", way: BASE }.install(&scene.cluster);
    wait_for_metric(0.0);
    let annotations = &scene.cluster.get(&["node", NODE])["metadata"]["annotations"];
    assert_eq!(annotations.get("not-psi-agent.invalid/dry-run"), None);

    scene.cluster.kubectl(&["delete", "validatingadmissionpolicybindings", "--all"], "");
    scene.wait_for_warning("this account may change any key of a Node,");
}

/// What the agent and reap may change does not depend on names, namespaces and tools.
#[test]
#[ignore = "needs etcd, a kube-apiserver (tests/kubernetes/build) and what tests/helm/build makes"]
fn installations_in_three_namespaces_by_kustomize_and_helm_are_restricted() {
    let mut scene = Scene::start("namespaces", "psi-agent");
    let mut last = Installation { namespace: "psi-agent", way: BASE };
    let prefixed = Way::Kustomize { name_prefix: "edge-" };
    for (namespace, way) in [
        ("node-pressure", BASE),
        ("kubevirt", prefixed),
        ("psi-agent", Way::Helm),
        ("node-pressure", Way::Helm),
        ("kubevirt", Way::Helm),
    ] {
        scene.check_agent();
        scene.check_reap();
        last.uninstall(&scene.cluster);
        last = Installation { namespace, way };
        println!("{last:?}");
        scene.install(&last);
    }
    scene.check_agent();
    scene.check_reap();
}

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
