//! KubeVirt's own virt-controller on a real API server, with the kubelet and virt-handler played by
//! the test: what it writes on the pods of a live migration, and whom the index counts as a VM.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use psi_agent::cgroup_path::Place;
use psi_agent::identity::pod::Pod;
use psi_agent::identity::pod_index::PodIndex;
use serde_json::{Value, json};

use crate::support::cluster::{Cluster, Companion, free_port};
use crate::support::{cache_dir, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const NODES: [&str; 2] = ["node-a", "node-b"];

const NODE_NAME: &str = "kubevirt.io/nodeName";
const MIGRATION: &str = "kubevirt.io/migrationJobUID";
const CREATED_BY: &str = "kubevirt.io/created-by";
const TARGET_READY: &str = "kubevirt.io/migration-target-ready-timestamp";

/// A Node as virt-handler marks it once it can run VMs.
fn node(name: &str) -> Value {
    let room = json!({
        "cpu": "8", "memory": "16Gi", "pods": "100", "ephemeral-storage": "100Gi",
        "devices.kubevirt.io/kvm": "100", "devices.kubevirt.io/tun": "100",
        "devices.kubevirt.io/vhost-net": "100",
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64",
                "kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true",
            },
            "annotations": {"kubevirt.io/heartbeat": now()},
        },
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}],
        },
    })
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn kubevirt() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"evictionStrategy": "LiveMigrate"}},
    })
}

/// With what the webhook of virt-api would have filled in.
fn virtual_machine() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "demo", "namespace": "vms"},
        "spec": {
            "architecture": "amd64", "evictionStrategy": "LiveMigrate",
            "domain": {
                "machine": {"type": "q35"}, "cpu": {"cores": 1, "sockets": 1, "threads": 1},
                "memory": {"guest": "64Mi"}, "resources": {"requests": {"memory": "64Mi"}},
                "devices": {},
            },
        },
    })
}

fn migration(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "namespace": "vms"}, "spec": {"vmiName": "demo"},
    })
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap()
}

fn label<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    pod["metadata"]["labels"][key].as_str()
}

/// The id of the container that a pod's VM runs in.
fn container_id(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap().replace('-', "").repeat(2)
}

fn compute(pod: &Value, state: &Value) -> Value {
    json!({
        "name": "compute", "image": "launcher", "imageID": "", "restartCount": 0,
        "ready": state["running"].is_object(), "state": state,
        "containerID": format!("containerd://{}", container_id(pod)),
    })
}

fn holds(condition: &str) -> Value {
    json!({"type": condition, "status": "True"})
}

fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// A control plane with KubeVirt in it, and all that a watch of its pods tells.
struct Scene {
    watch: Companion,
    _controller: Companion,
    cluster: Cluster,
}

impl Scene {
    fn start(name: &str) -> Self {
        let cluster = Cluster::start_whole(name);
        let programs = programs();
        let definitions = Command::new(programs.join("crds")).output();
        let definitions = definitions.expect("crds starts: tests/kubevirt/build makes it").stdout;
        let definitions = String::from_utf8(definitions).unwrap();
        cluster.kubectl(&["create", "--validate=false", "-f", "-"], &definitions);
        let all = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
        cluster.kubectl(&all, "");
        cluster.apply(&[namespace("kubevirt"), namespace("vms"), kubevirt()]);
        for name in NODES {
            cluster.apply(&[node(name)]);
            // A new Node is not ready; nobody here would find that it has become so.
            let ready =
                ["patch", "node", name, "--type=merge", "-p", r#"{"spec":{"taints":null}}"#];
            cluster.kubectl(&ready, "");
        }
        let pods = ["get", "pods", "-n", "vms", "--watch", "--output-watch-events", "-o", "json"];
        let watch = cluster.start_program("kubectl", &pods);
        let controller = start_controller(&cluster, &programs);
        Self { watch, _controller: controller, cluster }
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        self.cluster.get(&[kind, name, "-n", "vms"])
    }

    /// The pod that is bound to a node and in which `wanted` is so.
    fn wait_for_pod(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, LIMIT, || {
            let pods = self.cluster.get(&["pods", "-n", "vms"]);
            let mut pods = pods["items"].as_array().unwrap().iter();
            pods.find(|pod| pod["spec"]["nodeName"].is_string() && wanted(pod)).cloned()
        })
    }

    fn wait_for_phase(&self, kind: &str, name: &str, phase: &str) {
        let what = format!("{kind} {name} is {phase}");
        wait_for(&what, LIMIT, || (self.get(kind, name)["status"]["phase"] == phase).then_some(()));
    }

    /// What the kubelet writes of a pod whose containers run.
    fn run_pod(&self, pod: &Value) {
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(holds);
        let compute = compute(pod, &json!({"running": {}}));
        self.cluster.set_status(
            "vms",
            name(pod),
            &json!({
                "phase": "Running", "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}],
                "conditions": conditions, "containerStatuses": [compute],
            }),
        );
    }

    /// What it writes once they have ended.
    fn end_pod(&self, pod: &Value) {
        let compute = compute(pod, &json!({"terminated": {"exitCode": 0}}));
        let status = json!({"phase": "Succeeded", "containerStatuses": [compute]});
        self.cluster.set_status("vms", name(pod), &status);
    }

    /// What virt-handler writes of the VM.
    fn patch_vm(&self, patch: &Value) {
        let patch = patch.to_string();
        let arguments = ["patch", "vmi", "demo", "-n", "vms", "--type=merge", "-p", &patch];
        self.cluster.kubectl(&arguments, "");
    }

    fn patch_migration_state(&self, state: &Value) {
        self.patch_vm(&json!({"status": {"migrationState": state}}));
    }

    /// Starts the VM, and gives the pod that it runs in.
    fn start_vm(&self) -> Value {
        self.cluster.apply(&[virtual_machine()]);
        let pod = self.wait_for_pod("the VM's pod is bound", |_| true);
        assert_eq!(label(&pod, NODE_NAME), None, "no VM runs yet");
        self.run_pod(&pod);
        self.wait_for_phase("vmi", "demo", "Scheduled");
        let conditions = ["Ready", "LiveMigratable"].map(holds);
        self.patch_vm(&json!({"status": {
            "phase": "Running", "migrationMethod": "LiveMigration", "migrationTransport": "Unix",
            "selinuxContext": "none", "conditions": conditions,
        }}));
        self.wait_for_node_name(&pod, node_of(&pod))
    }

    /// Starts a migration, up to where the VM's memory is on its way; gives the target's pod.
    fn start_migration(&self, job: &str) -> Value {
        self.cluster.apply(&[migration(job)]);
        let uid = self.get("vmim", job)["metadata"]["uid"].clone();
        let is_target = |pod: &Value| label(pod, MIGRATION) == uid.as_str();
        let target = self.wait_for_pod("the target's pod is bound", is_target);
        self.send_memory(job, &target);
        target
    }

    /// As far as the VM's memory being on its way.
    fn send_memory(&self, job: &str, target: &Value) {
        self.run_pod(target);
        self.wait_for_phase("vmim", job, "PreparingTarget");
        self.patch_migration_state(&json!({
            "targetNodeAddress": "10.1.1.2", "targetState": {"nodeAddress": "10.1.1.2"},
        }));
        self.wait_for_phase("vmim", job, "TargetReady");
        self.patch_migration_state(&json!({"startTimestamp": now()}));
        self.wait_for_phase("vmim", job, "Running");
    }

    /// Ends a migration: the VM runs in `target` from now on. In the order of the virt-handler of
    /// the target: the VM is seen to run, it is handed over, the migration is over.
    fn finish_migration(&self, job: &str, target: &Value) {
        self.patch_migration_state(&json!({
            "targetNodeDomainDetected": true, "targetNodeDomainReadyTimestamp": now(),
        }));
        self.wait_for_pod("the VM is seen to run", |pod| {
            name(pod) == name(target) && pod["metadata"]["annotations"][TARGET_READY].is_string()
        });
        self.patch_vm(&json!({
            "metadata": {"labels": {NODE_NAME: node_of(target)}},
            "status": {"nodeName": node_of(target), "migrationState": {"endTimestamp": now()}},
        }));
        self.wait_for_node_name(target, node_of(target));
        self.patch_vm(&json!({
            "metadata": {"labels": {"kubevirt.io/migrationTargetNodeName": null}},
            "status": {"migrationState": {"completed": true}},
        }));
        self.wait_for_phase("vmim", job, "Succeeded");
    }

    /// Waits until virt-controller has written this node on the pod, and gives the pod.
    fn wait_for_node_name(&self, pod: &Value, node: &str) -> Value {
        let what = format!("{NODE_NAME}={node} on {}", name(pod));
        self.wait_for_pod(&what, |found| {
            name(found) == name(pod) && label(found, NODE_NAME) == Some(node)
        })
    }

    /// The pod as it is now.
    fn fresh(&self, pod: &Value) -> Value {
        self.get("pod", name(pod))
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
    let uid = pod["metadata"]["uid"].as_str().unwrap().replace('-', "_");
    let id = container_id(pod);
    let path = format!("/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{id}.scope");
    let Place::Pod(place) = Place::of_path(&path) else { panic!("{path} is in a pod") };
    let workload = index.workload(&place).unwrap();
    assert!(workload.is_vm());
    let vm = workload.vm.as_ref().unwrap();
    assert_eq!((&*vm.name, &*workload.namespace, &*workload.pod), ("demo", "vms", name(pod)));
    assert_eq!(*vm.uid, *pod["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap());
    !vm.awaits_handover
}

fn programs() -> PathBuf {
    let module = include_str!("../kubevirt/go.mod");
    let version = module.split("kubevirt.io/kubevirt v").nth(1).unwrap();
    cache_dir().join(format!("kubevirt-{}", version.lines().next().unwrap()))
}

fn start_controller(cluster: &Cluster, programs: &Path) -> Companion {
    let [certificate, key] = cluster.certificate();
    cluster.start_program(
        programs.join("virt-controller").to_str().unwrap(),
        &[
            "--listen=127.0.0.1",
            &format!("--port={}", free_port()),
            &format!("--prom-cert-file={}", certificate.display()),
            &format!("--prom-key-file={}", key.display()),
            "--launcher-image=launcher",
            "--exporter-image=exporter",
        ],
    )
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn a_live_migration_hands_the_vm_over_once() {
    let scene = Scene::start("migration");
    let first = scene.start_vm();
    let second = scene.start_migration("there");
    // The target is made with the labels of a VM that runs on the source, and keeps them.
    for pod in [&second, &scene.fresh(&second)] {
        assert_eq!(label(pod, NODE_NAME), Some(node_of(&first)));
        assert_eq!(label(pod, CREATED_BY), label(&first, CREATED_BY));
        assert_ne!(node_of(pod), node_of(&first));
    }
    scene.expect_counted(&[&[&first]]);

    scene.finish_migration("there", &second);
    // Nobody tells the source's pod; it counts until the kubelet ends it.
    assert_eq!(scene.fresh(&first)["metadata"]["labels"], first["metadata"]["labels"]);
    scene.end_pod(&first);
    scene.expect_counted(&[&[&first], &[&first, &second], &[&second]]);

    // Back again: now the source has the label of the migration that made it, too.
    let third = scene.start_migration("back");
    assert_eq!(node_of(&third), node_of(&first));
    let source = scene.fresh(&second);
    assert_eq!(label(&source, NODE_NAME), Some(node_of(&second)));
    assert_eq!(label(&source, MIGRATION), label(&second, MIGRATION));
    scene.finish_migration("back", &third);
    scene.end_pod(&second);
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
    let source = scene.start_vm();
    let target = scene.start_migration("failing");
    scene.patch_migration_state(&json!({
        "failed": true, "completed": true, "endTimestamp": now(), "failureReason": "test",
    }));
    scene.wait_for_phase("vmim", "failing", "Failed");
    assert_eq!(label(&scene.fresh(&target), NODE_NAME), Some(node_of(&source)));
    scene.end_pod(&target);
    scene.wait_for_pod("the target has ended", |pod| {
        name(pod) == name(&target) && pod["status"]["phase"] == "Succeeded"
    });
    scene.expect_counted(&[&[&source]]);
}

#[test]
#[ignore = "needs etcd, tests/kubernetes/build and tests/kubevirt/build"]
fn a_vm_from_another_cluster_counts_once_it_runs_here() {
    let scene = Scene::start("from-afar");
    let mut awaited = virtual_machine();
    awaited["metadata"]["annotations"] = json!({"kubevirt.io/create-migration-target": "true"});
    scene.cluster.apply(&[awaited]);
    scene.wait_for_phase("vmi", "demo", "WaitingForSync");
    let mut receiving = migration("receiving");
    receiving["spec"]["receive"] = json!({"migrationID": "one"});
    scene.cluster.apply(&[receiving]);
    wait_for("the target asks for its source", LIMIT, || {
        let state = scene.get("vmi", "demo")["status"]["migrationState"].clone();
        state["targetState"]["migrationUID"].is_string().then_some(())
    });
    // What the synchronization controller learns from the other cluster.
    scene.patch_migration_state(&json!({"sourceState": {
        "migrationUID": "sending", "pod": "far-pod", "node": "far-node", "nodeSelectors": {},
        "syncAddress": "10.2.2.2:9185", "selinuxContext": "none",
    }}));

    let target = scene.wait_for_pod("the target's pod is bound", |_| true);
    scene.send_memory("receiving", &target);
    // It has the label of a VM that runs here, which it does not yet.
    scene.wait_for_node_name(&target, node_of(&target));
    scene.expect_counted(&[&[]]);
    scene.finish_migration("receiving", &target);
    scene.expect_counted(&[&[], &[&target]]);
}
