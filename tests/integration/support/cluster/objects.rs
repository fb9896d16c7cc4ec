//! Objects of the cluster, made, changed and read with kubectl.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Cluster, program};
use crate::support::wait_for;

impl Cluster {
    /// Makes the objects, or brings them to this state.
    pub(crate) fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.kubectl(&["apply", "--validate=false", "-f", "-"], &list);
    }

    /// Makes a resource known, and waits until the API server serves it.
    pub(crate) fn define(&self, definition: &Value) {
        // Some are too large for the annotation that applying would keep.
        self.kubectl(&["create", "-f", "-"], &definition.to_string());
        let name = definition["metadata"]["name"].as_str().unwrap();
        wait_for(&format!("{name} is served"), Duration::from_secs(60), || {
            let definition = self.get(&["customresourcedefinition", name]);
            let conditions = definition["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.into_iter().flatten();
            conditions.find(|it| it["type"] == "Established" && it["status"] == "True").map(drop)
        });
    }

    pub(crate) fn add_namespace(&self, name: &str) {
        self.apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})]);
    }

    /// A Node that pods can be bound to.
    pub(crate) fn add_node(&self, name: &str) {
        self.apply(&[json!({"apiVersion": "v1", "kind": "Node", "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        }})]);
        let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110",
            "ephemeral-storage": "100Gi"});
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
            "lastHeartbeatTime": null, "lastTransitionTime": null});
        let status = json!({"status": {
            "capacity": room, "allocatable": room, "conditions": [ready],
        }});
        let patch = ["patch", "node", name, "--type=merge", "-p"];
        let status = status.to_string();
        self.kubectl(&[&patch[..], &[&status, "--subresource=status"]].concat(), "");
        // Admission taints what no kubelet has called ready yet.
        self.kubectl(&[&patch[..], &[r#"{"spec":{"taints":null}}"#]].concat(), "");
    }

    /// An object as the API server has it.
    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let arguments = [&["get"], arguments, &["-o", "json"]].concat();
        serde_json::from_str(&self.kubectl(&arguments, "")).unwrap()
    }

    /// Runs kubectl as somebody else, who may be refused.
    pub(crate) fn kubectl_as(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        Command::new(program(&self.programs, "kubectl"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(arguments)
            .output()
            .expect("kubectl starts: tests/kubernetes/build makes it")
    }

    /// Sets the status of a pod, which is the kubelet's to do elsewhere.
    pub(crate) fn set_status(&self, namespace: &str, pod: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        let arguments =
            ["patch", "pod", pod, "-n", namespace, "--subresource=status", "--type=merge", "-p"];
        self.kubectl(&[&arguments[..], &[&patch]].concat(), "");
    }

    /// Runs kubectl as the administrator; it must succeed.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.kubectl_output(arguments, input).unwrap_or_else(|| panic!("kubectl {arguments:?}"))
    }

    /// What kubectl prints as the administrator; `None` if it fails.
    pub(crate) fn kubectl_output(&self, arguments: &[&str], input: &str) -> Option<String> {
        let mut child = Command::new(program(&self.programs, "kubectl"))
            .arg(format!("--kubeconfig={}", self.kubeconfig("admin").display()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(self.folder.join("kubectl.log")).unwrap())
            .spawn()
            .expect("kubectl starts: tests/kubernetes/build makes it");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }
}
