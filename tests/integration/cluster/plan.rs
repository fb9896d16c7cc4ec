//! `plan` with KubeVirt's own virt-controller on a real API server: the VM and the target that it names,
//! and where kube-scheduler binds the pod of its migration.

use std::process::{Command, Output};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::kubevirt::{KubeVirt, name, node_of, virtual_machine};

/// What an agent writes on a Node with a score and with the demand of its VMs.
pub(super) fn annotate(
    kubevirt: &KubeVirt,
    node: &str,
    score: u8,
    vms: f64,
    candidates: Option<String>,
) {
    let annotations = json!({
        "psi-agent.io/score": score.to_string(),
        "psi-agent.io/cpu": score.to_string(),
        "psi-agent.io/memory": "0",
        "psi-agent.io/observed-at": format!("{:.0}", Timestamp::now()),
        "psi-agent.io/basis": "run-delay/6",
        "psi-agent.io/headroom": "0",
        "psi-agent.io/demand": format!("vms={vms:.2},others=0.10"),
        "psi-agent.io/waiting": "2.00",
        "psi-agent.io/candidates": candidates,
    });
    let patch = json!({"metadata": {"annotations": annotations}}).to_string();
    kubevirt.cluster.kubectl(&["patch", "node", node, "--type=merge", "-p", &patch], "");
}

fn plan(kubevirt: &KubeVirt, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    let command = command.arg("plan").args(arguments).arg("--kubeconfig");
    command.arg(kubevirt.cluster.admin_kubeconfig()).output().unwrap()
}

fn printed(kubevirt: &KubeVirt, arguments: &[&str]) -> String {
    let output = plan(kubevirt, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn as_json(kubevirt: &KubeVirt) -> Value {
    serde_json::from_str(&printed(kubevirt, &["-o", "json"])).unwrap()
}

/// The VM last moved so long ago that it may move again, and all migrations that have ended did so then.
pub(super) fn age(kubevirt: &KubeVirt, vm: &str) {
    let ended = format!("{:.0}", Timestamp::now() - SignedDuration::from_hours(7));
    kubevirt.patch_migration_state(vm, &json!({"endTimestamp": ended, "completed": true}));
    let succeeded = [json!({"phase": "Succeeded", "phaseTransitionTimestamp": ended})];
    let status = json!({"status": {"phaseTransitionTimestamps": succeeded}}).to_string();
    let migrations = kubevirt.cluster.get(&["vmim", "-n", "vms"]);
    for migration in migrations["items"].as_array().unwrap() {
        let patch = ["patch", "vmim", name(migration), "-n", "vms", "--subresource=status"];
        kubevirt.cluster.kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat(), "");
    }
}

#[test]
#[ignore = "starts a control plane"]
fn a_planned_vm_enters_the_node_that_the_plan_names() {
    let kubevirt = KubeVirt::start("plan");
    kubevirt.add_node("node-a", 8);
    let pod = kubevirt.start_vm(&virtual_machine("demo"));
    assert_eq!(node_of(&pod), "node-a");
    // Both have room for the pod: only demand distinguishes them.
    kubevirt.add_node("node-b", 8);
    kubevirt.add_node("node-c", 8);
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let candidate = format!("uid={uid},demand=1.00,relief=1.00");
    annotate(&kubevirt, "node-a", 40, 9.0, Some(candidate));
    annotate(&kubevirt, "node-b", 0, 4.0, None);
    annotate(&kubevirt, "node-c", 0, 0.5, None);

    let young = as_json(&kubevirt);
    assert_eq!(young["noMovesBecause"], "no candidate may move");
    assert_eq!(young["vms"][0], json!({"name": "vms/demo", "reason": "it started within 6 h"}));
    age(&kubevirt, "demo");
    let planned = as_json(&kubevirt);
    let [one] = &planned["moves"].as_array().unwrap()[..] else { panic!("{planned:#}") };
    assert_eq!([&one["vm"], &one["source"], &one["target"]], ["demo", "node-a", "node-c"]);

    // Without a terminal and without --yes, nothing is created.
    let refused = plan(&kubevirt, &["--apply"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("set --yes"));
    let migrations = || kubevirt.cluster.get(&["vmim", "-n", "vms"])["items"].clone();
    assert_eq!(migrations(), json!([]));
    // kubectl accepts the manifests.
    let manifests = printed(&kubevirt, &["--output", "yaml"]);
    kubevirt.cluster.kubectl(&["create", "--dry-run=server", "-f", "-"], &manifests);

    let applied = printed(&kubevirt, &["--apply", "--yes"]);
    assert!(applied.contains("vms/demo: migration to node-c created"), "{applied}");
    let created = migrations();
    assert_eq!(
        created[0]["spec"],
        json!({"vmiName": "demo", "addedNodeSelector": {"kubernetes.io/hostname": "node-c"}})
    );
    assert_eq!(created[0]["metadata"]["labels"]["psi-agent.io/planner"], "true");
    let job = name(&created[0]).to_owned();
    let target = kubevirt.wait_for_target(&job);
    assert_eq!(node_of(&target), "node-c");
    assert_eq!(target["spec"]["nodeSelector"]["kubernetes.io/hostname"], "node-c");

    // While it migrates, both nodes rest and the VM does not move again.
    let meanwhile = as_json(&kubevirt);
    let rest = "part of a migration now or in the last 10 min";
    for node in ["node-a", "node-c"] {
        assert!(
            meanwhile["nodes"].as_array().unwrap().contains(&json!({"name": node, "reason": rest})),
            "{meanwhile:#}"
        );
    }
    assert_eq!(meanwhile["moves"], json!([]));
}
