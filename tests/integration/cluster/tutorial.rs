//! Every command of docs/tutorial.md, in their order, on a real control plane with KubeVirt's own virt-controller.
//! What is missing there is played: the kubelets, virt-handler, and what agents write. `kubectl psi top` needs
//! a kubelet: `cluster::real_node` runs it.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::plan::{age, annotate};
use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::helm;
use crate::support::install_document::commands_of;
use crate::support::kubevirt::{KubeVirt, name, node_of};
use crate::support::wait_for;

const DOCUMENT: &str = "docs/tutorial.md";
const NODES: [&str; 2] = ["node-a", "node-b"];
const LIMIT: Duration = Duration::from_secs(60);
const LAUNCHER: &str = "kubevirt.io=virt-launcher";

struct Tutorial(KubeVirt);

impl Tutorial {
    fn start() -> Self {
        let kubevirt = KubeVirt::start("tutorial");
        // The tutorial creates it.
        kubevirt.cluster.kubectl(&["delete", "namespace", "vms"], "");
        NODES.iter().for_each(|node| kubevirt.add_node(node, 4));
        Self(kubevirt)
    }

    /// Follows a part of the document, and returns what its last command prints.
    fn follow(&self, heading: &str) -> String {
        let (mut node, mut printed) = (String::new(), String::new());
        for command in commands_of(DOCUMENT, heading) {
            if command.starts_with("NODE=") {
                node = command;
                continue;
            }
            if command == "kubectl psi top $NODE" {
                continue;
            }
            if command.ends_with("vmi/demo") {
                self.start_vm();
            } else if command.contains("wait vmim") {
                self.migrate(&printed);
            }
            printed = self.run(&format!("{node}\n{command}"));
        }
        printed
    }

    /// What a command prints; it must succeed.
    fn run(&self, command: &str) -> String {
        let cluster = &self.0.cluster;
        let programs = [
            Path::new(BINARY).parent().unwrap(),
            cluster.programs(),
            helm::program().parent().unwrap(),
        ]
        .map(|folder| folder.display().to_string());
        let path = format!("{}:{}", programs.join(":"), std::env::var("PATH").unwrap());
        let command = command.replace("REGISTRY", "registry.example");
        let output = Command::new("timeout")
            .args(["120", "bash", "-c", &command])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("PATH", path)
            .env("KUBECONFIG", cluster.admin_kubeconfig())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What virt-api's webhooks fill in, and then what virt-handler writes.
    fn start_vm(&self) {
        let filled = json!({"spec": {"architecture": "amd64", "domain": {
            "machine": {"type": "q35"}, "resources": {"requests": {"memory": "256Mi"}},
        }}});
        self.0.patch_vm("demo", &filled);
        self.0.run_vm("demo");
    }

    /// Plays the migration that has not ended yet, which this plan created.
    fn migrate(&self, plan: &str) {
        let source = self.launcher();
        let migrations = self.0.cluster.get(&["vmim", "-n", "vms"]);
        let mut migrations = migrations["items"].as_array().unwrap().iter();
        let job = migrations.find(|migration| migration["status"]["phase"] != "Succeeded");
        let job = job.unwrap_or_else(|| panic!("no migration was created: {plan}"));
        let target = self.0.wait_for_target(name(job));
        self.0.send_memory(name(job), &target);
        self.0.finish_migration(name(job), &target);
        self.0.end_pod(&source);
        age(&self.0, "demo");
    }

    /// What agents write: this node is contended because of what runs beside its VM, or none is.
    fn publish(&self, contended: Option<&str>) {
        let cluster = &self.0.cluster;
        for node in NODES {
            let here = contended == Some(node);
            let vms = if self.node() == node { 2.0 } else { 0.0 };
            let candidate = self.launcher()["metadata"]["uid"].as_str().unwrap().to_owned();
            let candidate = here.then(|| format!("uid={candidate},demand=2.00,relief=1.50"));
            annotate(&self.0, node, if here { 60 } else { 0 }, vms, candidate);
            let others = if here { 4.0 } else { 0.1 };
            let demand = format!("psi-agent.io/demand=vms={vms:.2},others={others:.2}");
            cluster.kubectl(&["annotate", "node", node, "--overwrite", &demand], "");
            let level = format!("psi-agent.io/pressure={}", if here { "high" } else { "low" });
            cluster.kubectl(&["label", "node", node, "--overwrite", &level], "");
        }
    }

    /// The pod in which the VM runs.
    fn launcher(&self) -> Value {
        let (node, pods) = (self.node(), self.pods(LAUNCHER));
        pods.into_iter().find(|pod| node_of(pod) == node).unwrap()
    }

    /// Where the VM runs.
    fn node(&self) -> String {
        self.0.get("vmi", "demo")["status"]["nodeName"].as_str().unwrap().to_owned()
    }

    fn pods(&self, selector: &str) -> Vec<Value> {
        let pods = self.0.cluster.get(&["pods", "-n", "vms", "-l", selector]);
        pods["items"].as_array().unwrap().clone()
    }
}

/// Plays the kubelets once: pods that are bound run, or have succeeded if a Job created them, and deleted
/// pods end.
fn play_kubelets(cluster: &Cluster) {
    let pods = cluster.get(&["pods", "--all-namespaces"]);
    for pod in pods["items"].as_array().unwrap() {
        let (namespace, owner) =
            (pod["metadata"]["namespace"].as_str().unwrap(), &pod["metadata"]["ownerReferences"]);
        if pod["metadata"]["deletionTimestamp"].is_string() {
            let delete = ["delete", "pod", name(pod), "-n", namespace, "--ignore-not-found"];
            cluster.kubectl(&[&delete[..], &["--force", "--grace-period=0"]].concat(), "");
        } else if pod["spec"]["nodeName"].is_string()
            && pod["status"]["phase"] == "Pending"
            && owner[0]["kind"] != "VirtualMachineInstance"
        {
            let phase = if owner[0]["kind"] == "Job" { "Succeeded" } else { "Running" };
            let conditions = ["Initialized", "ContainersReady", "Ready"]
                .map(|condition| json!({"type": condition, "status": "True"}));
            let status = json!({"phase": phase, "conditions": conditions});
            cluster.set_status(namespace, name(pod), &status);
        }
    }
}

#[test]
#[ignore = "needs etcd, a control plane, KubeVirt's programs, helm and the plugin"]
fn the_tutorial_moves_a_vm_away_from_stress_and_not_from_a_throttled_pod() {
    let tutorial = Tutorial::start();
    thread::scope(|scope| {
        let followed = scope.spawn(|| follow(&tutorial));
        while !followed.is_finished() {
            play_kubelets(&tutorial.0.cluster);
            thread::sleep(Duration::from_millis(200));
        }
        followed.join().unwrap();
    });
}

fn follow(tutorial: &Tutorial) {
    let without_scores = tutorial.follow("Start the agents and a VM");
    assert!(NODES.iter().all(|node| without_scores.contains(node)), "{without_scores}");
    let first = tutorial.node();
    age(&tutorial.0, "demo");

    tutorial.follow("Stress its node");
    wait_for("a busy pod for each CPU of the VM's node", LIMIT, || {
        let pods = tutorial.pods("app=stress");
        (pods.len() == 4 && pods.iter().all(|pod| pod["spec"]["nodeName"] == *first)).then_some(())
    });
    tutorial.publish(Some(&first));
    let contended = tutorial.run("kubectl psi nodes");
    let row = contended.lines().find(|line| line.starts_with(&first)).unwrap();
    assert!(row.contains("high"), "{contended}");

    tutorial.follow("Move the VM");
    assert_ne!(tutorial.node(), first);

    tutorial.publish(None);
    let plan = tutorial.follow("A throttled pod moves no VM");
    assert!(plan.contains("No moves"), "{plan}");
    tutorial.follow("Clean up");
}
