//! A kube-scheduler with a configuration of its own, and pods of VMs for one to place.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::wait_for;
use super::{Cluster, Companion, program};
use crate::support::free_port;

impl Cluster {
    /// Starts a kube-scheduler with this configuration, as whoever the kubeconfig says. Its place is
    /// all that is changed in the configuration.
    pub(crate) fn start_scheduler(&self, configuration: &str, kubeconfig: &Path) -> Companion {
        let program = program(&self.programs, "kube-scheduler");
        self.start_scheduler_of(&program, configuration, kubeconfig)
    }

    /// The same of another program, which knows more plugins.
    pub(crate) fn start_scheduler_of(
        &self,
        program: &Path,
        configuration: &str,
        kubeconfig: &Path,
    ) -> Companion {
        let name = format!("scheduler-{}", free_port());
        let file = |ending: &str| self.folder.join(format!("{name}.{ending}"));
        let mut configuration: Value = serde_saphyr::from_str(configuration).unwrap();
        configuration["clientConnection"]["kubeconfig"] = json!(kubeconfig);
        fs::write(file("json"), configuration.to_string()).unwrap();
        let (output, log) = (file("out"), file("log"));
        let child = Command::new(program)
            .arg(format!("--config={}", file("json").display()))
            .args(
                ["authentication", "authorization"]
                    .map(|what| format!("--{what}-kubeconfig={}", kubeconfig.display())),
            )
            .args(["--bind-address=127.0.0.1", &format!("--secure-port={}", free_port())])
            .stdout(fs::File::create(&output).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .expect("kube-scheduler starts: tests/kubernetes/build makes it");
        Companion { child, output, log }
    }

    /// Makes so many pods like this one, and answers how many of them were placed on each of these
    /// Nodes. Then they are gone again: the next ones find the Nodes as they were.
    pub(crate) fn place<const N: usize>(
        &self,
        pod: &Value,
        count: usize,
        nodes: [&str; N],
    ) -> [usize; N] {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let pods: Vec<Value> = (0..count)
            .map(|number| {
                let mut pod = pod.clone();
                pod["metadata"]["name"] = json!(format!("{name}-{number}"));
                pod["metadata"]["labels"]["placed"] = json!(name);
                pod
            })
            .collect();
        self.apply(&pods);
        let selected = ["pods", "-n", "vms", "-l", &format!("placed={name}")];
        let placed = wait_for(&format!("{name} is placed"), Duration::from_secs(60), || {
            let pods = self.get(&selected)["items"].as_array().unwrap().clone();
            let nodes = pods.iter().map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned));
            nodes.collect::<Option<Vec<String>>>()
        });
        let end = ["--force", "--grace-period=0"];
        self.kubectl(&[&["delete"], &selected[..], &end].concat(), "");
        nodes.map(|node| placed.iter().filter(|place| *place == node).count())
    }
}

/// The pod of a VM with one vCPU, as KubeVirt makes it and no scheduler has seen it yet.
pub(crate) fn unplaced_vm(name: &str) -> Value {
    let container = |name: &str, cpu: &str, memory: &str| {
        json!({
            "name": name, "image": LAUNCHER,
            "resources": {"requests": {"cpu": cpu, "memory": memory}},
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "vms",
            "labels": {"kubevirt.io": "virt-launcher"},
        },
        "spec": {"containers": [
            container("compute", "100m", "1Gi"),
            container("guest-console-log", "5m", "35M"),
        ]},
    })
}

/// The image of every VM's pod.
pub(crate) const LAUNCHER: &str = "quay.io/kubevirt/virt-launcher:v1.7.0";
