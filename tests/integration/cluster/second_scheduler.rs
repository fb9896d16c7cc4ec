//! A kube-scheduler profile for VMs without ImageLocality: as a second profile of the scheduler, and as
//! a second scheduler with the rights and the configuration of docs/consumers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cluster::{Cluster, Companion, LAUNCHER, unplaced_vm};
use crate::support::{snippet, wait_for};

const MINUTE: Duration = Duration::from_secs(60);
const NODES: [&str; 2] = ["node-a", "node-b"];
const MB: u64 = 1024 * 1024;
/// How many images a kubelet reports by default, and when it may report all.
const DEFAULT_MOST: usize = 50;
const ALL: usize = usize::MAX;

/// Reports virt-launcher's image and so many larger ones on a Node. A kubelet sorts images by size.
fn report_images(cluster: &Cluster, node: &str, larger: usize, at_most: usize) {
    let image = |name: String, size: u64| json!({"names": [name], "sizeBytes": size});
    let larger = (0..larger).map(|number| image(format!("registry.example/{number}:v1"), 700 * MB));
    let images = larger.chain([image(LAUNCHER.to_owned(), 600 * MB)]);
    let images: Vec<Value> = images.take(at_most).collect();
    let status = json!({"status": {"images": images}}).to_string();
    let patch = ["patch", "node", node, "--subresource=status", "--type=merge", "-p"];
    cluster.kubectl(&[&patch[..], &[&status]].concat(), "");
}

/// Both Nodes have the image. The second has so many larger ones that its status doesn't list it.
fn start_cluster() -> Cluster {
    let cluster = Cluster::start("second-scheduler");
    cluster.add_namespace("vms");
    NODES.iter().for_each(|node| cluster.add_node(node));
    report_images(&cluster, "node-a", 10, DEFAULT_MOST);
    report_images(&cluster, "node-b", 50, DEFAULT_MOST);
    cluster
}

fn asking_for(scheduler: &str, mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = json!(scheduler);
    pod
}

/// Each Node gets about half of the VMs: between equal Nodes the scheduler chooses randomly.
fn check_spread(cluster: &Cluster, vm: &Value) {
    let [on_a, on_b] = cluster.place(vm, 8, NODES);
    assert!(on_a.abs_diff(on_b) <= 2, "{on_a} {on_b}");
}

/// With the default profile, VMs pile up on the Node that reports their image. With the other profile,
/// or if kubelets report all images, they don't.
fn check_profiles(cluster: &Cluster) {
    let _scheduler =
        cluster.start_scheduler(&snippet("two-profiles.yaml"), &cluster.admin_kubeconfig());
    assert_eq!(cluster.place(&unplaced_vm("by-default"), 8, NODES), [8, 0]);
    check_spread(cluster, &asking_for("kubevirt", unplaced_vm("by-kubevirt")));
    report_images(cluster, "node-b", 50, ALL);
    check_spread(cluster, &unplaced_vm("all-reported"));
    report_images(cluster, "node-b", 50, DEFAULT_MOST);
}

/// The objects of a snippet.
fn objects(name: &str) -> Vec<Value> {
    let text = snippet(name);
    text.split("\n---\n").map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

/// The one object of this kind in it.
fn object(name: &str, kind: &str) -> Value {
    let mut found = objects(name);
    found.retain(|object| object["kind"] == kind);
    assert_eq!(found.len(), 1, "{name} has one {kind}");
    found.remove(0)
}

/// Applies a snippet as a user does. The API server rejects unknown fields.
fn apply_strictly(cluster: &Cluster, name: &str) {
    let said = cluster.kubectl(&["apply", "--validate=strict", "-f", "-"], &snippet(name));
    assert_eq!(said.lines().count(), objects(name).len(), "{said}");
}

/// Starts the Deployment's pod in place of a kubelet: with its account, configuration and program.
fn start_second(cluster: &Cluster) -> Companion {
    let deployment = cluster.get(&["deployment", "kubevirt-scheduler", "-n", "kube-system"]);
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["args"], json!(["--config=/etc/kubevirt-scheduler/config.yaml"]));
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/etc/kubevirt-scheduler");
    let version: Value =
        serde_json::from_str(&cluster.kubectl(&["get", "--raw=/version"], "")).unwrap();
    let image = container["image"].as_str().unwrap();
    assert_eq!(image.rsplit(':').next(), version["gitVersion"].as_str(), "{image}");

    let config = pod["volumes"][0]["configMap"]["name"].as_str().unwrap();
    let config = cluster.get(&["configmap", config, "-n", "kube-system"]);
    let account = pod["serviceAccountName"].as_str().unwrap();
    let token = cluster.kubectl(&["create", "token", account, "-n", "kube-system"], "");
    let kubeconfig = cluster.write_kubeconfig(account, token.trim());
    cluster.start_scheduler(config["data"]["config.yaml"].as_str().unwrap(), &kubeconfig)
}

/// The scheduler's name in the pod that the API server would create (a dry run).
fn scheduler_of(cluster: &Cluster, pod: &Value) -> String {
    let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let made: Value = serde_json::from_str(&cluster.kubectl(&create, &pod.to_string())).unwrap();
    made["spec"]["schedulerName"].as_str().unwrap().to_owned()
}

/// The policy sets the name on VMs' pods, except those that have another scheduler's name.
fn check_policy(cluster: &Cluster) {
    let vm = unplaced_vm("vm");
    assert_eq!(scheduler_of(cluster, &vm), "default-scheduler");
    apply_strictly(cluster, "set-scheduler-name.yaml");
    wait_for("the policy is at work", MINUTE, || {
        (scheduler_of(cluster, &vm) == "kubevirt").then_some(())
    });
    let chosen = asking_for("mine", vm.clone());
    assert_eq!(scheduler_of(cluster, &chosen), "mine");
    let mut other = vm;
    other["metadata"]["labels"] = json!({"kubevirt.io": "hotplug-disk"});
    assert_eq!(scheduler_of(cluster, &other), "default-scheduler");
}

/// Gives the VM a volume that is provisioned on the Node that the scheduler chooses.
fn claim_of_first_consumer(cluster: &Cluster, vm: &mut Value) {
    cluster.apply(&[
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "local"}, "provisioner": "registry.example/local",
            "volumeBindingMode": "WaitForFirstConsumer",
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "disk", "namespace": "vms"},
            "spec": {
                "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }),
    ]);
    vm["spec"]["volumes"] =
        json!([{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]);
}

/// The rights of the snippet suffice for binding pods and choosing a Node for a volume.
fn check_second(cluster: &Cluster) {
    let mut misnamed = asking_for("kubvirt", unplaced_vm("misnamed"));
    let mut with_disk = unplaced_vm("with-disk");
    claim_of_first_consumer(cluster, &mut with_disk);
    misnamed["metadata"]["labels"] = json!({});
    cluster.apply(&[misnamed, with_disk]);
    let second = start_second(cluster);
    check_spread(cluster, &unplaced_vm("by-second"));
    wait_for("the disk's place is chosen", MINUTE, || {
        let claim = cluster.get(&["pvc", "disk", "-n", "vms"]);
        let annotations = &claim["metadata"]["annotations"];
        annotations["volume.kubernetes.io/selected-node"].as_str().map(drop)
    });
    // No scheduler has set a condition on it.
    let misnamed = cluster.get(&["pod", "misnamed", "-n", "vms"]);
    assert_eq!(misnamed["spec"].get("nodeName"), None);
    assert_eq!(misnamed["status"]["conditions"], Value::Null, "{misnamed}");
    let said = second.log();
    assert!(!said.contains("forbidden"), "{said}");
}

/// A resource definition with the documented fields of a SecondaryScheduler. The operator's module is
/// not available.
fn definition_of_openshift() -> Value {
    let text = json!({"type": "string"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "secondaryschedulers.operator.openshift.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": "operator.openshift.io", "scope": "Namespaced",
            "names": {
                "kind": "SecondaryScheduler", "listKind": "SecondarySchedulerList",
                "plural": "secondaryschedulers", "singular": "secondaryscheduler",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {
                        "type": "object", "properties": {
                            "managementState": {
                                "type": "string", "pattern": "^(Managed|Unmanaged|Force|Removed)$",
                            },
                            "schedulerConfig": text, "schedulerImage": text,
                            "logLevel": text, "operatorLogLevel": text,
                        },
                    }},
                }},
            }],
        },
    })
}

/// On OpenShift an operator creates the Deployment and the rights. The configuration is the same.
fn check_openshift(cluster: &Cluster) {
    let name = "openshift-second-scheduler.yaml";
    let namespace = "openshift-secondary-scheduler-operator";
    cluster.define(&definition_of_openshift());
    cluster.add_namespace(namespace);
    apply_strictly(cluster, name);
    let (config, scheduler) = (object(name, "ConfigMap"), object(name, "SecondaryScheduler"));
    assert_eq!(config["data"], object("second-scheduler.yaml", "ConfigMap")["data"]);
    assert_eq!(scheduler["spec"]["schedulerConfig"], config["metadata"]["name"]);
    // The operator reads only the object with this name in its own namespace.
    assert_eq!(scheduler["metadata"]["name"], "cluster");
    assert_eq!(scheduler["metadata"]["namespace"], config["metadata"]["namespace"]);
}

#[test]
#[ignore = "needs etcd and a control plane (tests/kubernetes/build)"]
fn a_second_scheduler_spreads_vms_that_the_default_one_piles_up() {
    let cluster = start_cluster();
    check_profiles(&cluster);
    apply_strictly(&cluster, "second-scheduler.yaml");
    check_policy(&cluster);
    check_second(&cluster);
    check_openshift(&cluster);
}
