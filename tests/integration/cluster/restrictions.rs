//! What the accounts of the agent and of reap may change on Nodes, by patches with their tokens, in
//! the namespace of the manifests and in another.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::exposition::parse;
use crate::support::staged_node::StagedNode;
use crate::support::wait_for;
use installation::{BASE, Installation, Way};

mod installation;
mod random_patches;

const NODE: &str = "node-a";
const OTHER_NODE: &str = "node-b";
const MEDIUM: &str = "psi-agent.io/pressure-medium";
const HIGH: &str = "psi-agent.io/pressure-high";
const SOFT: &str = "PreferNoSchedule";
const CANDIDATE: &str =
    "uid=0c1f6e3a-0000-4000-8000-000000000001,demand=1.50,relief=0.75,memory=4294967296";

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
