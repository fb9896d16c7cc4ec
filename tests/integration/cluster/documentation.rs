//! The README's quick start in a cluster and docs/install.md's use of Helm, with the output that they show.

use std::path::Path;
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::console::{Shown, shown_by};
use crate::support::helm;

/// Runs a command in the checkout as an administrator of the cluster; it must succeed.
fn run(shown: &Shown, cluster: &Cluster) -> String {
    let folders = [
        Path::new(BINARY).parent().unwrap(),
        cluster.programs(),
        helm::program().parent().unwrap(),
    ]
    .map(|folder| folder.display().to_string());
    let path = format!("{}:{}", folders.join(":"), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["60", "bash", "-c", &shown.command])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PATH", path)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", shown.command);
    String::from_utf8(output.stdout).unwrap()
}

/// A Node with the values of a row of `psi-agent nodes`, half a minute old.
fn node(row: &[&str]) -> Value {
    let [name, level, score, headroom, candidate, _] = row else { panic!("{row:?}") };
    let observed_at = Timestamp::now() - SignedDuration::from_secs(30);
    let candidates =
        (*candidate != "-").then(|| format!("uid={candidate},demand=1.00,relief=1.00"));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "psi-agent.io/pressure": level,
    }, "annotations": {
        "psi-agent.io/score": score, "psi-agent.io/basis": "psi/1", "psi-agent.io/headroom": headroom,
        "psi-agent.io/demand": "vms=1.00,others=0.00", "psi-agent.io/waiting": "0.00",
        "psi-agent.io/candidates": candidates.unwrap_or_default(),
        "psi-agent.io/observed-at": format!("{observed_at:.0}"),
    }}})
}

fn columns(row: &str) -> Vec<&str> {
    row.split_whitespace().collect()
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/helm/build makes"]
fn the_quick_start_in_a_cluster_prints_what_the_readme_shows() {
    let shown = shown_by("README.md");
    let [_, create, label, install, rollout, nodes] = &shown[..] else { panic!("{shown:?}") };
    let cluster = Cluster::start("documentation");
    for shown in [create, label] {
        shown.check(&run(shown, &cluster));
    }
    let installed = run(install, &cluster);
    assert!(installed.contains("STATUS: deployed"), "{installed}");
    // The status of a DaemonSet whose pods are ready: this cluster has no controllers.
    let status = json!({"status": {
        "observedGeneration": 1, "desiredNumberScheduled": 2, "currentNumberScheduled": 2,
        "updatedNumberScheduled": 2, "numberAvailable": 2, "numberReady": 2, "numberMisscheduled": 0,
    }});
    let patch = ["-n", "psi-agent", "patch", "daemonset", "psi-agent", "--subresource=status"];
    let status = status.to_string();
    cluster.kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat(), "");
    rollout.check(&run(rollout, &cluster));
    let rows = nodes.output.lines().skip(1).map(columns);
    cluster.apply(&rows.map(|row| node(&row)).collect::<Vec<_>>());
    let printed = run(nodes, &cluster);
    nodes.check(&printed);
    // All but the age is as shown.
    for (printed, shown) in printed.lines().zip(nodes.output.lines()) {
        let (mut printed, mut shown) = (columns(printed), columns(shown));
        for row in [&mut printed, &mut shown] {
            row.remove(5);
        }
        assert_eq!(printed, shown);
    }
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/helm/build makes"]
fn the_chart_is_installed_and_upgraded_as_documented() {
    let cluster = Cluster::start("documentation-helm");
    let shown = shown_by("docs/install.md");
    for shown in &shown {
        let printed = run(shown, &cluster);
        if !shown.output.is_empty() {
            shown.check(&printed);
        }
    }
    let daemonset = cluster.get(&["daemonset", "psi-agent", "-n", "psi-agent"]);
    let arguments = daemonset["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--label"), "{arguments}");
}
