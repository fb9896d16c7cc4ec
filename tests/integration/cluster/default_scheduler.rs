//! kube-scheduler without configuration, among Nodes with agents: the effect of their taints on all VMs,
//! and of the label on VMs with an affinity for it.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::manifests::check_arguments;
use crate::support::agent::Agent;
use crate::support::cluster::{Cluster, unplaced_vm};
use crate::support::cpu::BusyCpu;
use crate::support::node_metadata::Ranking;
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::{kubevirt, snippet, wait_for};

const MINUTE: Duration = Duration::from_secs(60);
const OUTPUTS: [&str; 3] = ["--label", "--taint-levels", "medium,high"];
/// No score reaches this threshold for high: the same contention makes this Node medium.
const LENIENT: [&str; 2] = ["--levels", "10,100"];
/// A Node without an agent, from which `reap` has removed everything.
const UNMARKED: &str = "unmarked";
const DOZE: &str = "sleep 3600";

struct Scene {
    // Agents are dropped before the cluster that they write to.
    _agents: [Agent; 4],
    _nodes: [StagedNode; 4],
    /// The CPU that the VMs compete for.
    _cpu: BusyCpu,
    cluster: Cluster,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::start_whole("default-scheduler");
        cluster.install_for_vms();
        let mut nodes = ["calm", "medium", "high", "too-high"]
            .map(|name| StagedNode::new("default-scheduler", name));
        let names = nodes.iter().map(|node| node.name).chain([UNMARKED]);
        for name in names {
            cluster.add_node(name);
            cluster.apply(&[agent_pod(&format!("psi-agent-{name}"), name)]);
        }
        let cpu = BusyCpu::share();
        let spin = cpu.spin();
        for (number, node) in (1..).zip(&mut nodes) {
            let cgroup = node.start_vm(&cluster, &format!("vm-of-{}", node.name), number);
            node.own.spawn(&cgroup, if node.name == "calm" { DOZE } else { &spin });
        }
        let agents = nodes.each_ref().map(|node| {
            let mut flags = OUTPUTS.to_vec();
            if node.name == "medium" {
                flags.extend(LENIENT);
            }
            node.start_agent(&cluster, &format!("psi-agent-{}", node.name), &flags)
        });
        Self { _agents: agents, _nodes: nodes, _cpu: cpu, cluster }
    }

    fn wait_for_levels(&self) {
        for (name, level) in
            [("calm", "low"), ("medium", "medium"), ("high", "high"), ("too-high", "high")]
        {
            let what = format!("{name} is {level}");
            wait_for(&what, 4 * MINUTE, || {
                let node = self.cluster.get(&["node", name]);
                (node["metadata"]["labels"]["psi-agent.io/pressure"] == level).then_some(())
            });
        }
    }
}

/// A pod that may run on these Nodes only.
fn among<const N: usize>(nodes: [&str; N], mut pod: Value) -> Value {
    let is_one = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": &nodes[..]});
    let affinity = &mut pod["spec"]["affinity"]["nodeAffinity"];
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": [is_one]}]});
    pod
}

/// A pod that tolerates the agents' taints.
fn tolerating(mut pod: Value) -> Value {
    pod["spec"]["tolerations"] = json!([{"operator": "Exists", "effect": "PreferNoSchedule"}]);
    pod
}

/// The affinity of a VM after the snippet's patch, checked by KubeVirt's own resource definition.
fn affinity_of_patched_vm(cluster: &Cluster) -> Value {
    let printed = Command::new(kubevirt::program("crds")).output();
    let printed = printed.expect("crds starts: tests/kubevirt/build makes it").stdout;
    let definitions: Value = serde_json::from_slice(&printed).unwrap();
    let definitions = definitions["items"].as_array().unwrap().iter();
    let mut of_vms = definitions.filter(|it| it["spec"]["names"]["kind"] == "VirtualMachine");
    cluster.define(of_vms.next().unwrap());
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "demo", "namespace": "vms"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
    });
    cluster.apply(&[vm]);
    let patch = ["patch", "vm", "demo", "-n", "vms", "--type=merge", "-p"];
    cluster.kubectl(&[&patch[..], &[&snippet("vm-affinity.yaml")]].concat(), "");
    let vm = cluster.get(&["vm", "demo", "-n", "vms"]);
    vm["spec"]["template"]["spec"]["affinity"].clone()
}

/// VMs prefer Nodes with fewer taints. If all Nodes have the same number, taints have no effect.
fn check_taints(cluster: &Cluster) {
    let vm = unplaced_vm("anywhere");
    let [calm, unmarked] = cluster.place(&vm, 6, ["calm", UNMARKED]);
    assert_eq!(calm + unmarked, 6, "{calm} {unmarked}");
    let vm = among(["medium", "high"], unplaced_vm("none-is-calm"));
    assert_eq!(cluster.place(&vm, 6, ["medium", "high"]), [6, 0]);
    let vm = among(["high", "too-high"], unplaced_vm("all-are-high"));
    let [high, too_high] = cluster.place(&vm, 6, ["high", "too-high"]);
    assert!(high > 0 && too_high > 0, "{high} {too_high}");
}

/// VMs that tolerate the taints avoid Nodes at level high only by an affinity for the label.
fn check_label(cluster: &Cluster, affinity: &Value) {
    for better in ["calm", "medium", UNMARKED] {
        let nodes = [better, "high"];
        let vm = tolerating(unplaced_vm(&format!("indifferent-{better}")));
        let [on_better, on_high] = cluster.place(&among(nodes, vm), 6, nodes);
        assert!(on_better > 0 && on_high > 0, "{better} {on_better}, high {on_high}");
        let mut vm = tolerating(unplaced_vm(&format!("asks-{better}")));
        vm["spec"]["affinity"] = affinity.clone();
        assert_eq!(cluster.place(&among(nodes, vm), 6, nodes), [6, 0], "{better}");
    }
}

/// The model of NodeMetadata ranks Nodes by the annotations that agents wrote.
fn check_metadata(cluster: &Cluster) {
    let names = ["calm", "high", UNMARKED];
    let nodes = names.map(|name| cluster.get(&["node", name]));
    let [calm, high, unmarked] = Ranking::of_snippet().rank(&nodes)[..] else { panic!() };
    assert_eq!((calm, high, unmarked), (100, 1, 0));
}

/// The kustomization for use with a descheduler sets taints at level high only.
fn check_taints_at_high_only(cluster: &Cluster) {
    let rendered = cluster.render(&snippet("taint-high-only.yaml"));
    let daemonset = rendered.split("\n---\n").find(|part| part.contains("kind: DaemonSet"));
    let daemonset: Value = serde_saphyr::from_str(daemonset.unwrap()).unwrap();
    let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
    check_arguments(container);
    let arguments = container["args"].as_array().unwrap();
    let of_taints = arguments.iter().filter(|it| it.as_str().unwrap().contains("taint"));
    assert_eq!(of_taints.collect::<Vec<_>>(), ["--taint-levels=high"]);
}

#[test]
#[ignore = "needs root, a cgroup2 mount, two CPUs, etcd and a control plane (tests/kubernetes/build), and what tests/kubevirt/build makes"]
fn vms_avoid_contended_nodes_by_taints_and_with_an_affinity_by_the_label() {
    let scene = Scene::start();
    let affinity = affinity_of_patched_vm(&scene.cluster);
    let started = Instant::now();
    scene.wait_for_levels();
    eprintln!("all levels are there after {:?}", started.elapsed());
    check_taints(&scene.cluster);
    check_label(&scene.cluster, &affinity);
    check_metadata(&scene.cluster);
    check_taints_at_high_only(&scene.cluster);
}

/// The preferred terms of the pod that the API server would create (a dry run).
fn preferences(cluster: &Cluster, pod: &Value) -> Value {
    let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let made: Value = serde_json::from_str(&cluster.kubectl(&create, &pod.to_string())).unwrap();
    let affinity = &made["spec"]["affinity"]["nodeAffinity"];
    affinity["preferredDuringSchedulingIgnoredDuringExecution"].clone()
}

#[test]
#[ignore = "needs etcd and a control plane (tests/kubernetes/build)"]
fn vms_prefer_nodes_with_headroom_by_an_admission_policy_and_spread_over_them() {
    let cluster = Cluster::start_whole("headroom");
    cluster.install_for_vms();
    let nodes = ["full", "little", "enough", "large"];
    for (node, class) in std::iter::zip(nodes, ["0", "1", "16", "64"]) {
        cluster.add_node(node);
        let label = format!("psi-agent.io/headroom={class}");
        cluster.kubectl(&["label", "node", node, &label], "");
    }
    cluster.add_node(UNMARKED);
    let vm = among([nodes[0], nodes[1], nodes[2], nodes[3], UNMARKED], unplaced_vm("roomy"));
    assert_eq!(preferences(&cluster, &vm), Value::Null);
    let policy = snippet("headroom-affinity.yaml");
    cluster.kubectl(&["apply", "--validate=strict", "-f", "-"], &policy);
    let written = wait_for("the policy is at work", MINUTE, || {
        Some(preferences(&cluster, &vm)).filter(|preferred| !preferred.is_null())
    });
    assert_eq!(written.as_array().unwrap().len(), 4, "{written}");
    assert_eq!(preferences(&cluster, &unplaced_vm("bare")), written);
    // Preferences of the VM's owner stay.
    let mut own = vm.clone();
    let affinity = &mut own["spec"]["affinity"]["nodeAffinity"];
    affinity["preferredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"weight": 1, "preference": written[0]["preference"]}]);
    assert_eq!(preferences(&cluster, &own).as_array().unwrap().len(), 5);

    let [enough, large] = cluster.place(&vm, 12, ["enough", "large"]);
    assert!(enough + large == 12 && enough > 0 && large > 0, "{enough} {large}");
    let vm = among(["full", "little", UNMARKED], unplaced_vm("crowded"));
    assert_eq!(cluster.place(&vm, 6, ["little"]), [6]);
}

#[test]
#[ignore = "needs etcd and a control plane (tests/kubernetes/build)"]
fn an_agent_without_room_waits_and_preempts_no_vm() {
    let cluster = Cluster::start_whole("preemption");
    cluster.install_for_vms();
    let mut vm = unplaced_vm("large");
    vm["spec"]["nodeName"] = "full".into();
    vm["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": "64Gi"}});
    cluster.apply(&[vm]);
    cluster.add_node("full");
    let waits = wait_for("the agent finds no room", MINUTE, || {
        let pods =
            cluster.get(&["pods", "-n", "psi-agent", "-l", "app.kubernetes.io/name=psi-agent"]);
        let condition = &pods["items"][0]["status"]["conditions"][0];
        (condition["reason"] == "Unschedulable").then(|| condition["message"].clone())
    });
    let waits = waits.as_str().unwrap();
    assert!(
        waits.contains("Insufficient memory") && waits.contains("preemptionPolicy=Never"),
        "{waits}"
    );
    let vm = cluster.get(&["pod", "large", "-n", "vms"]);
    assert_eq!(vm["metadata"]["deletionTimestamp"], Value::Null);
}
