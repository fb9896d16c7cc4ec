//! Pods that make an agent use memory: with large specs, and with names that no object can have.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::cluster::Cluster;
use crate::support::exposition::parse;
use crate::support::staged_node::{StagedNode, agent_pod, launcher};
use crate::support::wait_for;

const POD: &str = "psi-agent-node-a";
const MINUTE: Duration = Duration::from_secs(60);
/// Of daemonset/base.
const MEMORY_LIMIT: f64 = 64.0 * 1024.0 * 1024.0;

fn start(name: &str) -> (Cluster, StagedNode) {
    let cluster = Cluster::start(name);
    cluster.apply_folder("daemonset/base");
    cluster.add_node("node-a");
    cluster.add_namespace("vms");
    cluster.apply(&[agent_pod(POD, "node-a")]);
    (cluster, StagedNode::new(name, "node-a"))
}

fn metric(agent: &Agent, name: &str) -> f64 {
    let series = parse(&agent.get("/metrics"));
    series.iter().find(|series| series.name == name).unwrap().value
}

fn wait_for_pods(agent: &Agent, count: f64) {
    wait_for("the pods are listed", MINUTE, || {
        (metric(agent, "psi_agent_pods") == count).then_some(())
    });
}

/// A pod of this node with 1.5 MB of environment variables.
fn large_pod(number: usize) -> Value {
    let variable = |name: usize| json!({"name": format!("V{name}"), "value": "v".repeat(10_000)});
    let variables: Vec<Value> = (0..150).map(variable).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("large-{number}"), "namespace": "vms"},
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "large", "image": "large", "env": variables}],
        },
    })
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn a_hundred_and_ten_pods_of_1500_kb_fit_the_memory_limit_and_ended_pods_are_not_listed() {
    let (cluster, node) = start("large-pods");
    for number in 0..110 {
        cluster.kubectl(&["create", "-f", "-"], &large_pod(number).to_string());
    }
    let agent = node.start_agent(&cluster, POD, &[]);
    wait_for_pods(&agent, 111.0);
    for number in 0..10 {
        let ended = json!({"phase": if number % 2 == 0 { "Succeeded" } else { "Failed" }});
        cluster.set_status("vms", &format!("large-{number}"), &ended);
    }
    wait_for_pods(&agent, 101.0);
    let peak = agent.peak_memory();
    println!("{} MiB at most", peak / 1024.0 / 1024.0);
    assert!(peak < MEMORY_LIMIT, "{peak}");
    let again = node.start_agent(&cluster, POD, &[]);
    wait_for_pods(&again, 101.0);
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn a_vm_name_of_250_kb_is_counted_and_neither_kept_nor_exported() {
    let (cluster, node) = start("long-names");
    for number in 0..15 {
        let mut pod = launcher(&format!("long-{number}"), "node-a");
        pod["metadata"]["annotations"]["kubevirt.io/domain"] = json!("x".repeat(250_000));
        cluster.kubectl(&["create", "-f", "-"], &pod.to_string());
    }
    let good = node.start_vm(&cluster, "good", 1);
    assert!(!good.is_empty());
    let agent = node.start_agent(&cluster, POD, &[]);
    wait_for_pods(&agent, 17.0);
    wait_for("the names are counted", MINUTE, || {
        (metric(&agent, "psi_agent_rejected_pod_names") == 15.0).then_some(())
    });
    let text = agent.get("/metrics");
    assert!(text.contains("good") && text.len() < 200_000, "{}", text.len());
    let peak = agent.peak_memory();
    println!("{} MiB at most", peak / 1024.0 / 1024.0);
    assert!(peak < MEMORY_LIMIT, "{peak}");
}
