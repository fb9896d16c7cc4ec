//! KubeVirt's own virt-controller on a real API server, with the kubelet and virt-handler played by
//! the test: what it writes on the pods of a live migration, and whom the index counts as a VM.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use psi_agent::cgroup_path::Place;
use psi_agent::client::pod::Pod;
use psi_agent::identity::pod_index::PodIndex;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::cluster::Companion;
use crate::support::exposition::parse;
use crate::support::kubevirt::{
    KubeVirt, MIGRATION, NODE_NAME, cgroup_of, label, name, node_of, now, virtual_machine,
};
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::{snippet, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const CREATED_BY: &str = "kubevirt.io/created-by";

fn migration(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "namespace": "vms"}, "spec": {"vmiName": "demo"},
    })
}

/// A cluster with KubeVirt in it, two nodes, and all that a watch of its VMs' pods tells.
struct Scene {
    watch: Companion,
    kubevirt: KubeVirt,
}

impl Scene {
    fn start(name: &str) -> Self {
        let kubevirt = KubeVirt::start(name);
        for name in ["node-a", "node-b"] {
            kubevirt.add_node(name, 8);
        }
        let pods = ["get", "pods", "-n", "vms", "--watch", "--output-watch-events", "-o", "json"];
        let watch = kubevirt.cluster.start_program("kubectl", &pods);
        Self { watch, kubevirt }
    }

    /// Starts a migration, up to where the VM's memory is on its way; gives the target's pod.
    fn start_migration(&self, migration: &Value) -> Value {
        self.kubevirt.cluster.apply(std::slice::from_ref(migration));
        let job = name(migration);
        let target = self.kubevirt.wait_for_target(job);
        self.kubevirt.send_memory(job, &target);
        target
    }

    /// The pods that the index counted as running a VM, after each event of the watch since one
    /// runs; an event that changed nothing adds nothing.
    fn counted(&self) -> Vec<Vec<String>> {
        let output = self.watch.output();
        let events = serde_json::Deserializer::from_str(&output).into_iter::<Value>();
        let (mut index, mut running) = (PodIndex::default(), BTreeMap::new());
        let mut counted = Vec::new();
        // The last one may be half written.
        for event in events.map_while(Result::ok) {
            let value = &event["object"];
            index.apply(&serde_json::from_value::<Pod>(value.clone()).unwrap());
            if value["status"]["containerStatuses"][0]["state"]["running"].is_object() {
                running.insert(name(value).to_owned(), value.clone());
            } else {
                running.remove(name(value));
            }
            if !running.is_empty() {
                let vms = running.iter().filter(|(_, pod)| counts(&index, pod));
                counted.push(vms.map(|(name, _)| name.clone()).collect());
            }
        }
        counted.dedup();
        counted
    }

    /// The index has counted these pods, one set of them after the other.
    fn expect_counted(&self, expected: &[&[&Value]]) {
        let names = |pods: &&[&Value]| {
            let mut names: Vec<String> = pods.iter().map(|pod| name(pod).to_owned()).collect();
            names.sort();
            names
        };
        let expected: Vec<Vec<String>> = expected.iter().map(names).collect();
        let start = Instant::now();
        // The watch may be a little behind.
        while self.counted() != expected && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(self.counted(), expected);
    }
}

/// Whether the container that a pod's VM runs in is one of a VM that runs here.
fn counts(index: &PodIndex, pod: &Value) -> bool {
    let path = format!("/{}", cgroup_of(pod));
    let Place::Pod(place) = Place::of_path(&path) else { panic!("{path} is in a pod") };
    let workload = index.workload(&place).unwrap();
    assert!(workload.is_vm());
    let vm = workload.vm.as_ref().unwrap();
    assert_eq!((&*vm.name, &*workload.namespace, &*workload.pod), ("demo", "vms", name(pod)));
    assert_eq!(*vm.uid, *pod["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap());
    !vm.awaits_handover
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn a_live_migration_hands_the_vm_over_once() {
    let scene = Scene::start("migration");
    let kubevirt = &scene.kubevirt;
    let first = kubevirt.start_vm(&virtual_machine("demo"));
    let second = scene.start_migration(&migration("there"));
    // The target is made with the labels of a VM that runs on the source, and keeps them.
    for pod in [&second, &kubevirt.fresh(&second)] {
        assert_eq!(label(pod, NODE_NAME), Some(node_of(&first)));
        assert_eq!(label(pod, CREATED_BY), label(&first, CREATED_BY));
        assert_ne!(node_of(pod), node_of(&first));
    }
    scene.expect_counted(&[&[&first]]);

    kubevirt.finish_migration("there", &second);
    // Nobody tells the source's pod; it counts until the kubelet ends it.
    assert_eq!(kubevirt.fresh(&first)["metadata"]["labels"], first["metadata"]["labels"]);
    kubevirt.end_pod(&first);
    scene.expect_counted(&[&[&first], &[&first, &second], &[&second]]);

    // Back again: now the source has the label of the migration that made it, too.
    let third = scene.start_migration(&migration("back"));
    assert_eq!(node_of(&third), node_of(&first));
    let source = kubevirt.fresh(&second);
    assert_eq!(label(&source, NODE_NAME), Some(node_of(&second)));
    assert_eq!(label(&source, MIGRATION), label(&second, MIGRATION));
    kubevirt.finish_migration("back", &third);
    kubevirt.end_pod(&second);
    scene.expect_counted(&[
        &[&first],
        &[&first, &second],
        &[&second],
        &[&second, &third],
        &[&third],
    ]);
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn a_failed_migration_leaves_the_vm_where_it_is() {
    let scene = Scene::start("failed-migration");
    let kubevirt = &scene.kubevirt;
    let source = kubevirt.start_vm(&virtual_machine("demo"));
    let target = scene.start_migration(&migration("failing"));
    kubevirt.patch_migration_state(
        "demo",
        &json!({
            "failed": true, "completed": true, "endTimestamp": now(), "failureReason": "test",
        }),
    );
    kubevirt.wait_for_phase("vmim", "failing", "Failed");
    assert_eq!(label(&kubevirt.fresh(&target), NODE_NAME), Some(node_of(&source)));
    kubevirt.end_pod(&target);
    kubevirt.wait_for_pod("the target has ended", |pod| {
        name(pod) == name(&target) && pod["status"]["phase"] == "Succeeded"
    });
    scene.expect_counted(&[&[&source]]);
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn a_vm_from_another_cluster_counts_once_it_runs_here() {
    let scene = Scene::start("from-afar");
    let kubevirt = &scene.kubevirt;
    let mut awaited = virtual_machine("demo");
    awaited["metadata"]["annotations"] = json!({"kubevirt.io/create-migration-target": "true"});
    kubevirt.cluster.apply(&[awaited]);
    kubevirt.wait_for_phase("vmi", "demo", "WaitingForSync");
    let mut receiving = migration("receiving");
    receiving["spec"]["receive"] = json!({"migrationID": "one"});
    kubevirt.cluster.apply(&[receiving]);
    wait_for("the target asks for its source", LIMIT, || {
        let state = kubevirt.get("vmi", "demo")["status"]["migrationState"].clone();
        state["targetState"]["migrationUID"].is_string().then_some(())
    });
    // What the synchronization controller learns from the other cluster.
    kubevirt.patch_migration_state(
        "demo",
        &json!({"sourceState": {
            "migrationUID": "sending", "pod": "far-pod", "node": "far-node", "nodeSelectors": {},
            "syncAddress": "10.2.2.2:9185", "selinuxContext": "none",
        }}),
    );

    let target = kubevirt.wait_for_pod("the target's pod is bound", |_| true);
    kubevirt.send_memory("receiving", &target);
    // It has the label of a VM that runs here, which it does not yet.
    kubevirt.wait_for_node_name(&target, node_of(&target));
    scene.expect_counted(&[&[]]);
    kubevirt.finish_migration("receiving", &target);
    scene.expect_counted(&[&[], &[&target]]);
}

/// The VMs of which an agent keeps a score.
fn scored_vms(agent: &Agent) -> Vec<String> {
    let series = parse(&agent.get("/metrics")).into_iter();
    let infos = series.filter(|series| series.name == "psi_agent_vmi_info");
    infos.map(|info| format!("{} in {}", info.labels["name"], info.labels["pod"])).collect()
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn a_migration_goes_to_the_node_that_its_agent_calls_low() {
    let scene = Scene::start("to-a-calm-node");
    let kubevirt = &scene.kubevirt;
    let source = kubevirt.start_vm(&virtual_machine("demo"));
    let from = if node_of(&source) == "node-a" { "node-a" } else { "node-b" };
    // It is the smallest, and has an agent; the other one would be the scheduler's choice.
    kubevirt.add_node("node-c", 2);
    kubevirt.cluster.apply_folder("daemonset/base");
    let nodes = [from, "node-c"].map(|name| StagedNode::new("to-a-calm-node", name));
    let [source_agent, target_agent] = nodes.each_ref().map(|node| {
        let pod = format!("psi-agent-{}", node.name);
        kubevirt.cluster.apply(&[agent_pod(&pod, node.name)]);
        node.start_agent(&kubevirt.cluster, &pod, &["--label"])
    });
    nodes[0].own.make(&cgroup_of(&source));
    wait_for("both agents call their node low", LIMIT, || {
        let low = ["nodes", "-l", "psi-agent.io/pressure=low"];
        let low = kubevirt.cluster.get(&low)["items"].as_array().unwrap().len();
        (low == 2).then_some(())
    });

    let snippet = snippet("kubevirt-migration.yaml");
    kubevirt.cluster.kubectl(&["apply", "-f", "-"], &snippet);
    let job = "demo-to-a-calm-node";
    let target = kubevirt.wait_for_target(job);
    assert_eq!(node_of(&target), "node-c");
    assert_eq!(target["spec"]["nodeSelector"]["psi-agent.io/pressure"], "low");

    // The VM is the source's until it is handed over, and then the target's, too.
    nodes[1].own.make(&cgroup_of(&target));
    kubevirt.send_memory(job, &target);
    let of = |pod: &Value| vec![format!("demo in {}", name(pod))];
    let expect = |agent: &Agent, vms: Vec<String>| {
        let what = format!("the agent at {} scores {vms:?}", agent.address);
        wait_for(&what, LIMIT, || (scored_vms(agent) == vms).then_some(()));
    };
    expect(&source_agent, of(&source));
    let path = format!("/{}", cgroup_of(&target));
    wait_for("the target's agent knows the pod", LIMIT, || {
        let series = parse(&target_agent.get("/metrics"));
        series.iter().any(|series| series.labels.get("id") == Some(&path)).then_some(())
    });
    assert_eq!(scored_vms(&target_agent), Vec::<String>::new());
    kubevirt.finish_migration(job, &target);
    expect(&target_agent, of(&target));
    kubevirt.end_pod(&source);
    nodes[0].own.remove(&cgroup_of(&source));
    expect(&source_agent, Vec::new());
}

/// Asks for the eviction of a pod as `kubectl drain` does; answers whether it was granted, and what
/// was said.
fn evict(kubevirt: &KubeVirt, pod: &Value) -> (bool, String) {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name(pod), "namespace": "vms"},
    });
    let file = std::env::temp_dir().join(format!("psi-agent-evict-{}.json", name(pod)));
    std::fs::write(&file, eviction.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/vms/pods/{}/eviction", name(pod));
    let arguments = ["create", "--raw", &path, "-f", file.to_str().unwrap()];
    let cluster = &kubevirt.cluster;
    let answer = cluster.kubectl_as(&cluster.admin_kubeconfig(), &arguments);
    std::fs::remove_file(&file).unwrap();
    let said = [answer.stdout, answer.stderr].concat();
    (answer.status.success(), String::from_utf8(said).unwrap())
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn an_eviction_moves_a_vm_that_may_migrate_and_ends_one_without_an_eviction_strategy() {
    let mut scene = Scene::start("evictions");
    scene.kubevirt.start_api();
    let kubevirt = &scene.kubevirt;
    let moved = kubevirt.start_vm(&virtual_machine("demo"));
    let (granted, said) = evict(kubevirt, &moved);
    assert!(!granted && said.contains("Eviction triggered evacuation of VMI"), "{said}");
    let start = Instant::now();
    let job = wait_for("virt-controller makes a migration", LIMIT, || kubevirt.evacuation("demo"));
    eprintln!("a migration {:?} after the eviction", start.elapsed());
    let target = kubevirt.wait_for_target(&job);
    assert_ne!(node_of(&target), node_of(&moved));

    let mut fixed = virtual_machine("fixed");
    fixed["spec"]["evictionStrategy"] = json!("None");
    let ended = kubevirt.start_vm(&fixed);
    let (granted, said) = evict(kubevirt, &ended);
    assert!(granted, "{said}");
    let pods = || kubevirt.cluster.get(&["pods", "-n", "vms"])["items"].clone();
    let is_left =
        |pod: &Value| name(pod) == name(&ended) && pod["metadata"]["deletionTimestamp"].is_null();
    wait_for("the pod is to end", LIMIT, || {
        (!pods().as_array().unwrap().iter().any(is_left)).then_some(())
    });
}
