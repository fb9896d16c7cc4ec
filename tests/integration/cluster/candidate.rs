//! The label of the VM to move first: which account may set it, which pod has it, and when it is removed.

use std::path::Path;
use std::time::Duration;

use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use psi_agent::client::cluster::{ApiClient, OwnNode};
use psi_agent::client::flags::ReapFlags;
use psi_agent::client::reap::reap;
use psi_agent::client::snapshot::CandidateName;
use psi_agent::contract::Prefix;
use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::cpu::BusyCpu;
use crate::support::kubevirt::{KubeVirt, label, name, virtual_machine};
use crate::support::publisher::publisher;
use crate::support::short_node::{ShortNode, assessment, show_labels};
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::wait_for;

const NODE: &str = "node-a";
const LABEL: &str = "psi-agent.io/migrate-first";
/// Flags of an agent that labels the VM to move first.
const MARKS: &str = "--label --taint-levels medium,high --mark-candidate";
const BUDGET: &str = "psi-agent.io/cpu-wait-budget";

/// A virt-launcher pod, or one like it that is none.
fn pod(name: &str, node: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "vms",
            "labels": {"kubevirt.io": kind, "kept": "yes"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "compute", "image": "any"}]},
    })
}

async fn client_of(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A cluster with the component, two Nodes with pods, and a client of each account.
struct Scene {
    cluster: Cluster,
    agent: Client,
    reap: Client,
}

impl Scene {
    async fn start(name: &str) -> Self {
        let cluster = Cluster::start(name);
        cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&["candidate"]));
        cluster.kubectl(&["create", "namespace", "vms"], "");
        for node in [NODE, "node-b"] {
            cluster.add_node(node);
        }
        cluster.apply(&[
            pod("db", NODE, "virt-launcher"),
            pod("web", NODE, "virt-launcher"),
            pod("far", "node-b", "virt-launcher"),
            pod("disk", NODE, "hotplug-disk"),
        ]);
        let [agent, reap] = ["psi-agent", "psi-agent-reap"].map(|account| {
            cluster.apply(&[json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": account, "namespace": "psi-agent"},
                "spec": {
                    "nodeName": NODE, "serviceAccountName": account,
                    "containers": [{"name": "agent", "image": "psi-agent"}],
                },
            })]);
            cluster.write_kubeconfig(account, &cluster.bound_token(account, account))
        });
        let (agent, reap) = (client_of(&agent).await, client_of(&reap).await);
        Self { cluster, agent, reap }
    }

    fn own_node(&self) -> OwnNode {
        OwnNode { api: ApiClient::new(self.agent.clone()), name: NODE.into() }
    }

    /// Pods of VMs with the label.
    fn labelled(&self) -> Vec<String> {
        let selector = format!("{LABEL},kubevirt.io=virt-launcher");
        let list = self.cluster.get(&["pods", "-n", "vms", "-l", &selector]);
        let items = list["items"].as_array().unwrap().iter();
        items.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// As `reap` does.
    fn remove_all_keys(&self, pod: &str) {
        self.cluster.kubectl(&["label", "pod", pod, "-n", "vms", &format!("{LABEL}-")], "");
        let node = &self.cluster.get(&["node", NODE])["metadata"];
        for (kind, keys) in [("annotate", &node["annotations"]), ("label", &node["labels"])] {
            let own =
                keys.as_object().unwrap().keys().filter(|key| key.starts_with("psi-agent.io/"));
            let removed: Vec<String> = own.map(|key| format!("{key}-")).collect();
            let removed = removed.iter().map(String::as_str);
            let arguments: Vec<&str> = [kind, "node", NODE].into_iter().chain(removed).collect();
            self.cluster.kubectl(&arguments, "");
        }
        let taints = json!({"spec": {"taints": null}}).to_string();
        self.cluster.kubectl(&["patch", "node", NODE, "--type=merge", "-p", &taints], "");
    }

    fn set_label(&self, pod: &str) {
        self.cluster.kubectl(&["label", "pod", pod, "-n", "vms", &format!("{LABEL}=true")], "");
    }
}

/// Whether an account may patch a pod. A refusal is 403 and nothing else.
async fn allows(client: &Client, pod: &str, patch: &Value) -> bool {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("/api/v1/namespaces/vms/pods/{pod}"))
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 403 => false,
        Err(error) => panic!("{pod}: {patch}: {error}"),
    }
}

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn an_agent_may_change_one_label_of_virt_launcher_pods_of_its_own_node() {
    let scene = Scene::start("candidate-rights").await;
    let set = labels(json!({LABEL: "true"}));
    for (allowed, pod, patch) in [
        (true, "db", set.clone()),
        (true, "db", labels(json!({LABEL: null}))),
        (false, "far", set.clone()),
        (false, "disk", set.clone()),
        (false, "db", labels(json!({LABEL: "yes"}))),
        (false, "db", labels(json!({LABEL: "true", "kept": null}))),
        (false, "db", labels(json!({"kubevirt.io": "virt-launcher", "other": "x"}))),
        (false, "disk", labels(json!({"kubevirt.io": "virt-launcher", LABEL: "true"}))),
        (false, "db", json!({"metadata": {"annotations": {"psi-agent.io/score": "5"}}})),
        (false, "db", json!({"metadata": {"finalizers": ["psi-agent.io/never"]}})),
        (false, "db", json!({"spec": {"activeDeadlineSeconds": 1}})),
        (false, "db", json!({"spec": {"containers": [{"name": "compute", "image": "other"}]}})),
    ] {
        assert_eq!(allows(&scene.agent, pod, &patch).await, allowed, "{pod}: {patch}");
    }
    // reap may remove the label from any pod, and never set it.
    scene.set_label("far");
    for (allowed, patch) in [
        (false, labels(json!({LABEL: null, "kept": null}))),
        (true, labels(json!({LABEL: null}))),
        (false, set),
    ] {
        assert_eq!(allows(&scene.reap, "far", &patch).await, allowed, "{patch}");
    }
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn the_label_is_on_the_named_pod_alone_and_goes_with_the_level() {
    let scene = Scene::start("candidate-label").await;
    // An earlier agent left one. Another pod has it from its owner.
    scene.set_label("web");
    scene.set_label("disk");
    let mut publisher = publisher(scene.own_node(), MARKS, || 0.5);
    let mut node = ShortNode::new();
    for (seconds, contention, db, web, expected) in [
        (30, 0.0, 0.0, 0.0, &[][..]),
        (120, 0.5, 2.0, 1.0, &["db"][..]),
        // All keys were removed, and the VM's owner set the label of another one.
        (305, 0.5, 2.0, 1.0, &["db"]),
        (30, 0.5, 2.0, 2.1, &["db"]),
        (30, 0.5, 2.0, 3.0, &["web"]),
        (300, 0.0, 0.0, 0.0, &[]),
    ] {
        if seconds == 305 {
            scene.remove_all_keys("db");
            scene.set_label("web");
        }
        for _ in 0..seconds / 5 {
            let mut assessment = assessment(&mut node, contention, db, web);
            let labelled = scene.labelled();
            show_labels(&mut assessment, &labelled.iter().map(String::as_str).collect::<Vec<_>>());
            publisher.take(&assessment).await;
            assert_eq!(publisher.failures(), Vec::<&str>::new());
        }
        assert_eq!(scene.labelled(), expected, "{contention} {db} {web}");
        let annotations = &scene.cluster.get(&["node", NODE])["metadata"]["annotations"];
        let candidates = annotations.get("psi-agent.io/candidates");
        assert_eq!(candidates.is_some(), !expected.is_empty(), "{annotations}");
    }
    let annotations = &scene.cluster.get(&["node", NODE])["metadata"]["annotations"];
    assert_eq!(annotations["psi-agent.io/headroom"], "0");
    // The one that was left, then three changes, of which one is a change of pods, the one that was removed, and that
    // of the owner.
    let marks = publisher.outcomes().iter().filter(|word| **word == "pod written").count();
    assert_eq!(marks, 7);
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn without_the_component_the_agent_reports_it_once_a_minute_and_publishes_all_the_same() {
    let scene = Scene::start("candidate-forbidden").await;
    scene.cluster.kubectl(&["delete", "clusterrolebinding", "psi-agent-candidate"], "");
    let mut publisher = publisher(scene.own_node(), MARKS, || 0.5);
    let mut node = ShortNode::new();
    for _ in 0..36 {
        let assessment = assessment(&mut node, 0.5, 2.0, 1.0);
        publisher.take(&assessment).await;
    }
    let failures = publisher.failures();
    let errors: Vec<&str> = failures.iter().filter_map(|word| word.strip_prefix("pod ")).collect();
    assert!((2..=3).contains(&errors.len()), "{errors:?}");
    assert!(errors.iter().all(|error| *error == "forbidden"), "{errors:?}");
    assert!(publisher.outcomes().contains(&"written"));
    let db = CandidateName { namespace: "vms".into(), name: "db".into() };
    assert_eq!(publisher.metrics.status().publish.candidate, Some(db));
    assert_eq!(scene.labelled(), Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
async fn reap_removes_labels_from_pods_whose_node_has_no_fresh_score() {
    let scene = Scene::start("candidate-reap").await;
    // The last one is not of a VM, so reap may not change it.
    for pod in ["db", "far", "disk"] {
        scene.set_label(pod);
    }
    let score = |node: &str, at: Timestamp| {
        let at = format!("psi-agent.io/observed-at={at}");
        let keys = ["psi-agent.io/score=40", "psi-agent.io/basis=run-delay/6", &at];
        let annotate = [&["annotate", "node", node][..], &keys].concat();
        scene.cluster.kubectl(&annotate, "");
    };
    let now = Timestamp::now();
    score(NODE, now - Duration::from_secs(3600));
    score("node-b", now);
    let (api, prefix) = (ApiClient::new(scene.reap.clone()), Prefix::default());
    let all = ReapFlags { all: true, candidates: true, ..ReapFlags::default() };
    let older_than = Some(Duration::from_secs(900));
    let old = ReapFlags { older_than, candidates: true, ..ReapFlags::default() };
    let mut out = Vec::new();
    reap(&api, &prefix, &old, || now, &mut out).await.unwrap();
    assert_eq!(scene.labelled(), ["far"], "its agent is alive");
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("vms/db: label removed\n") && out.contains("node-a: cleared\n"), "{out}");
    reap(&api, &prefix, &all, || now, &mut Vec::new()).await.unwrap();
    assert_eq!(scene.labelled(), Vec::<String>::new());
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn a_running_agent_keeps_the_label_on_one_vm_of_its_node_whatever_others_do_with_it() {
    let cluster = Cluster::start("candidate-agent");
    cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&["candidate"]));
    cluster.kubectl(&["create", "namespace", "vms"], "");
    cluster.add_node(NODE);
    cluster.apply(&[agent_pod("agent", NODE)]);
    let mut node = StagedNode::new("candidate-agent", NODE);
    let cpu = BusyCpu::share();
    for number in 1..=3 {
        let cgroup = node.start_vm(&cluster, &format!("vm-{number}"), number);
        node.own.spawn(&cgroup, &cpu.spin());
    }
    let flags = ["--mark-candidate", "--candidate-min-age", "1s", "--settle", "10s"];
    let _agent = node.start_agent(&cluster, "agent", &flags);
    let labelled = || {
        let list = cluster.get(&["pods", "-n", "vms", "-l", LABEL]);
        let items = list["items"].as_array().unwrap().iter();
        items.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let one = |what: &str| {
        wait_for(what, Duration::from_secs(180), || {
            let all = labelled();
            (all.len() == 1).then(|| all[0].clone())
        })
    };
    let named = one("the agent labels a VM");
    let remove = format!("{LABEL}-");
    cluster.kubectl(&["label", "pod", &named, "-n", "vms", &remove], "");
    let named = one("the label is there again");
    let number = if named.ends_with('1') { 2 } else { 1 };
    let set = format!("{LABEL}=true");
    let other = format!("virt-launcher-vm-{number}");
    cluster.kubectl(&["label", "pod", &other, "-n", "vms", &set], "");
    assert_eq!(labelled().len(), 2);
    one("that of the owner of another VM is removed");
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn virt_controller_keeps_the_label_and_copies_annotations_of_the_vm() {
    let kubevirt = KubeVirt::start("candidate-kubevirt");
    kubevirt.add_node(NODE, 8);
    let mut vm = virtual_machine("demo");
    vm["metadata"]["annotations"] = json!({BUDGET: "5"});
    let pod = kubevirt.start_vm(&vm);
    assert_eq!(pod["metadata"]["annotations"][BUDGET], "5");
    let set = ["label", "pod", name(&pod), "-n", "vms", &format!("{LABEL}=true")];
    kubevirt.cluster.kubectl(&set, "");
    // A change of the VM makes virt-controller write the pod.
    let eviction = "descheduler.alpha.kubernetes.io/prefer-no-eviction";
    kubevirt.patch_vm("demo", &json!({"metadata": {"annotations": {eviction: "true"}}}));
    wait_for("virt-controller copies the annotation", Duration::from_secs(60), || {
        let pod = kubevirt.fresh(&pod);
        pod["metadata"]["annotations"][eviction].is_string().then_some(())
    });
    assert_eq!(label(&kubevirt.fresh(&pod), LABEL), Some("true"));
}
