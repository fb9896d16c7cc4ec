//! KubeVirt's own virt-controller, and virt-api where it is wanted, on a real control plane. What is
//! missing there is played: the kubelet, and virt-handler.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::cluster::{Cluster, Companion};
use super::free_port;
use super::{built, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const NODE_NAME: &str = "kubevirt.io/nodeName";
pub(crate) const MIGRATION: &str = "kubevirt.io/migrationJobUID";
const TARGET_READY: &str = "kubevirt.io/migration-target-ready-timestamp";

/// Control plane and controllers; VMs live in the namespace `vms`.
pub(crate) struct KubeVirt {
    /// They end before what they work on.
    programs: Vec<Companion>,
    pub(crate) cluster: Cluster,
}

impl KubeVirt {
    /// With virt-controller alone; VMs are migrated when their pods are evicted.
    pub(crate) fn start(name: &str) -> Self {
        let cluster = Cluster::start_whole(name);
        let definitions = Command::new(program("crds")).output();
        let definitions = definitions.expect("crds starts: tests/kubevirt/build makes it").stdout;
        let definitions = String::from_utf8(definitions).unwrap();
        cluster.kubectl(&["create", "--validate=false", "-f", "-"], &definitions);
        let all = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
        cluster.kubectl(&all, "");
        cluster.apply(&[namespace("kubevirt"), namespace("vms"), configuration()]);
        let mut kubevirt = Self { programs: Vec::new(), cluster };
        let more = ["--launcher-image=launcher", "--exporter-image=exporter"];
        kubevirt.start_server("virt-controller", &["prom"], &more);
        kubevirt
    }

    /// Starts virt-api and has it asked about evictions, as virt-operator would.
    pub(crate) fn start_api(&mut self) {
        let authority = fs::read_to_string(&self.cluster.certificate()[0]).unwrap();
        self.cluster.apply(&[json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kubevirt-ca", "namespace": "kubevirt"},
            "data": {"ca-bundle": authority},
        })]);
        let port = self.start_server("virt-api", &["tls", "handler"], &[]);
        wait_for("virt-api serves", LIMIT, || TcpStream::connect(("127.0.0.1", port)).ok());
        self.cluster.apply(&[eviction_webhook(port, authority.into_bytes())]);
    }

    /// One of KubeVirt's servers, with a certificate for each of these purposes; answers its port.
    fn start_server(&mut self, name: &str, purposes: &[&str], more: &[&str]) -> u16 {
        let port = free_port();
        let [certificate, key] = self.cluster.certificate().map(|path| path.display().to_string());
        let mut arguments = vec!["--listen=127.0.0.1".to_owned(), format!("--port={port}")];
        for purpose in purposes {
            arguments.push(format!("--{purpose}-cert-file={certificate}"));
            arguments.push(format!("--{purpose}-key-file={key}"));
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let program = program(name);
        self.programs.push(self.cluster.start_program(program.to_str().unwrap(), &arguments));
        port
    }

    /// A Node as virt-handler marks it once it can run VMs: so many.
    pub(crate) fn add_node(&self, name: &str, vms: u32) {
        self.cluster.apply(&[node(name, vms)]);
        // A new Node is not ready; nobody here would find that it has become so.
        let ready = ["patch", "node", name, "--type=merge", "-p", r#"{"spec":{"taints":null}}"#];
        self.cluster.kubectl(&ready, "");
    }

    /// What virt-handler says every minute: after five without, no VM may run on its node. Returns whether the API
    /// server has heard it.
    pub(crate) fn beat(&self) -> bool {
        let heartbeat = format!("kubevirt.io/heartbeat={}", now());
        let annotate = ["annotate", "nodes", "--all", "--overwrite", &heartbeat];
        self.cluster.kubectl_output(&annotate, "").is_some()
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        self.cluster.get(&[kind, name, "-n", "vms"])
    }

    /// The pod that is bound to a node and in which `wanted` is so.
    pub(crate) fn wait_for_pod(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, LIMIT, || {
            let pods = self.cluster.get(&["pods", "-n", "vms"]);
            let mut pods = pods["items"].as_array().unwrap().iter();
            pods.find(|pod| pod["spec"]["nodeName"].is_string() && wanted(pod)).cloned()
        })
    }

    pub(crate) fn wait_for_phase(&self, kind: &str, name: &str, phase: &str) {
        let what = format!("{kind} {name} is {phase}");
        wait_for(&what, LIMIT, || (self.get(kind, name)["status"]["phase"] == phase).then_some(()));
    }

    /// What the kubelet writes of a pod whose containers run.
    pub(crate) fn run_pod(&self, pod: &Value) {
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(holds);
        let compute = compute(pod, &json!({"running": {}}));
        self.cluster.set_status(
            "vms",
            name(pod),
            &json!({
                "phase": "Running", "startTime": now(),
                "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}],
                "conditions": conditions, "containerStatuses": [compute],
            }),
        );
    }

    /// What it writes once they have ended.
    pub(crate) fn end_pod(&self, pod: &Value) {
        let compute = compute(pod, &json!({"terminated": {"exitCode": 0}}));
        let status = json!({"phase": "Succeeded", "containerStatuses": [compute]});
        self.cluster.set_status("vms", name(pod), &status);
    }

    /// What virt-handler writes of a VM.
    pub(crate) fn patch_vm(&self, vm: &str, patch: &Value) {
        let patch = patch.to_string();
        let arguments = ["patch", "vmi", vm, "-n", "vms", "--type=merge", "-p", &patch];
        self.cluster.kubectl(&arguments, "");
    }

    pub(crate) fn patch_migration_state(&self, vm: &str, state: &Value) {
        self.patch_vm(vm, &json!({"status": {"migrationState": state}}));
    }

    /// Starts a VM, and gives the pod that it runs in.
    pub(crate) fn start_vm(&self, vm: &Value) -> Value {
        self.cluster.apply(std::slice::from_ref(vm));
        self.run_vm(name(vm))
    }

    /// Starts a VM that exists.
    pub(crate) fn run_vm(&self, vm: &str) -> Value {
        let pod = self.wait_for_pod("the VM's pod is bound", |pod| is_of(pod, vm));
        assert_eq!(label(&pod, NODE_NAME), None, "no VM runs yet");
        self.run_pod(&pod);
        self.wait_for_phase("vmi", vm, "Scheduled");
        let conditions = ["Ready", "LiveMigratable"].map(holds);
        let status = json!({
            // As of VMs with cloud-init.
            "phase": "Running", "migrationMethod": "BlockMigration", "migrationTransport": "Unix",
            "selinuxContext": "none", "conditions": conditions,
        });
        self.patch_vm(vm, &json!({ "status": status }));
        self.wait_for_node_name(&pod, node_of(&pod))
    }

    /// The migration that virt-controller made to bring a VM away.
    pub(crate) fn evacuation(&self, vm: &str) -> Option<String> {
        let migrations = self.cluster.get(&["vmim", "-n", "vms"]);
        let mut migrations = migrations["items"].as_array().unwrap().iter();
        let of_vm = |migration: &&Value| {
            migration["spec"]["vmiName"] == vm
                && name(migration).starts_with("kubevirt-evacuation-")
        };
        migrations.find(of_vm).map(|migration| name(migration).to_owned())
    }

    /// The target's pod of a migration, once the scheduler has bound it.
    pub(crate) fn wait_for_target(&self, job: &str) -> Value {
        let uid = self.get("vmim", job)["metadata"]["uid"].clone();
        let is_target = |pod: &Value| label(pod, MIGRATION) == uid.as_str();
        self.wait_for_pod("the target's pod is bound", is_target)
    }

    /// Goes on with a migration until the VM's memory is on its way.
    pub(crate) fn send_memory(&self, job: &str, target: &Value) {
        let vm = self.vm_of(job);
        self.run_pod(target);
        self.wait_for_phase("vmim", job, "PreparingTarget");
        let address = json!({
            "targetNodeAddress": "10.1.1.2", "targetState": {"nodeAddress": "10.1.1.2"},
        });
        self.patch_migration_state(&vm, &address);
        self.wait_for_phase("vmim", job, "TargetReady");
        self.patch_migration_state(&vm, &json!({"startTimestamp": now()}));
        self.wait_for_phase("vmim", job, "Running");
    }

    /// Ends a migration: the VM runs in `target` from now on. In the order of the virt-handler of
    /// the target: the VM is seen to run, it is handed over, the migration is over.
    pub(crate) fn finish_migration(&self, job: &str, target: &Value) {
        let vm = self.vm_of(job);
        let seen = json!({
            "targetNodeDomainDetected": true, "targetNodeDomainReadyTimestamp": now(),
        });
        self.patch_migration_state(&vm, &seen);
        self.wait_for_pod("the VM is seen to run", |pod| {
            name(pod) == name(target) && pod["metadata"]["annotations"][TARGET_READY].is_string()
        });
        self.patch_vm(
            &vm,
            &json!({
                "metadata": {"labels": {NODE_NAME: node_of(target)}},
                "status": {
                    "nodeName": node_of(target), "evacuationNodeName": null,
                    "migrationState": {"endTimestamp": now()},
                },
            }),
        );
        self.wait_for_node_name(target, node_of(target));
        self.patch_vm(
            &vm,
            &json!({
                "metadata": {"labels": {"kubevirt.io/migrationTargetNodeName": null}},
                "status": {"migrationState": {"completed": true}},
            }),
        );
        self.wait_for_phase("vmim", job, "Succeeded");
    }

    /// The VM that a migration is about.
    fn vm_of(&self, job: &str) -> String {
        self.get("vmim", job)["spec"]["vmiName"].as_str().unwrap().to_owned()
    }

    /// Waits until virt-controller has written this node on the pod, and gives the pod.
    pub(crate) fn wait_for_node_name(&self, pod: &Value, node: &str) -> Value {
        let what = format!("{NODE_NAME}={node} on {}", name(pod));
        self.wait_for_pod(&what, |found| {
            name(found) == name(pod) && label(found, NODE_NAME) == Some(node)
        })
    }

    /// The pod as it is now.
    pub(crate) fn fresh(&self, pod: &Value) -> Value {
        self.get("pod", name(pod))
    }
}

fn node(name: &str, vms: u32) -> Value {
    let room = json!({
        "cpu": vms.to_string(), "memory": format!("{}Gi", 2 * vms), "pods": "100",
        "ephemeral-storage": "100Gi", "devices.kubevirt.io/kvm": vms.to_string(),
        "devices.kubevirt.io/tun": "100", "devices.kubevirt.io/vhost-net": "100",
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
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

fn configuration() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"evictionStrategy": "LiveMigrate"}},
    })
}

/// The one of virt-operator's webhooks that stands between an eviction and the VM.
fn eviction_webhook(port: u16, authority: Vec<u8>) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "virt-api-validator"},
        "webhooks": [{
            "name": "virt-launcher-eviction-interceptor.kubevirt.io",
            "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
            "failurePolicy": "Fail", "timeoutSeconds": 10,
            "rules": [{
                "operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods/eviction"],
            }],
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}/pod-eviction-validate"),
                "caBundle": ByteString(authority),
            },
        }],
    })
}

/// A VM, with what a webhook of virt-api's would have filled in.
pub(crate) fn virtual_machine(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "vms"},
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

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

pub(crate) fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap()
}

pub(crate) fn label<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    pod["metadata"]["labels"][key].as_str()
}

/// Whether a VM runs, or is to run, in this pod.
fn is_of(pod: &Value, vm: &str) -> bool {
    pod["metadata"]["annotations"]["kubevirt.io/domain"] == vm
}

/// The cgroup of the container that a pod's VM runs in, with systemd's names.
pub(crate) fn cgroup_of(pod: &Value) -> String {
    let uid = pod["metadata"]["uid"].as_str().unwrap().replace('-', "_");
    let id = container_id(pod);
    format!("kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{id}.scope")
}

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

pub(crate) fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// From the folder `KUBEVIRT_PROGRAMS` where it is set, else what `tests/kubevirt/build` made.
pub(crate) fn program(name: &str) -> PathBuf {
    let newest =
        || built("kubevirt", include_str!("../../kubernetes/1.34/go.mod"), "kubevirt.io/kubevirt");
    env::var_os("KUBEVIRT_PROGRAMS").map_or_else(newest, PathBuf::from).join(name)
}
