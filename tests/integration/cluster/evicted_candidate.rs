//! An unmodified descheduler evicts exactly the VM that an agent marked: its policy of docs/consumers on a real API
//! server, where KubeVirt migrates what is evicted and the scheduler places it. Scores are written as agents do;
//! labels too, since an agent marks no VM in its first 15 minutes.

use std::process::Command;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::descheduler::wait_for_cycles;
use crate::support::agent::{Agent, BINARY};
use crate::support::cluster::Eviction;
use crate::support::descheduler::Descheduler;
use crate::support::kubevirt::{KubeVirt, label, name, node_of, virtual_machine};
use crate::support::prometheus::Prometheus;
use crate::support::{snippet, wait_for};

const POLICY: &str = "descheduler-candidate.yaml";
const LABEL: &str = "psi-agent.io/migrate-first";
const MINUTE: Duration = Duration::from_secs(60);
const NODES: [(&str, u32); 2] = [("short", 50), ("calm", 0)];
const ROUNDS: usize = 10;

struct Scene {
    bridge: Agent,
    /// The pods of the VMs on the short node, in the order in which they came.
    vms: Vec<Value>,
    started: usize,
    kubevirt: KubeVirt,
}

impl Scene {
    fn start() -> Self {
        let mut kubevirt = KubeVirt::start("evicted-candidate");
        kubevirt.start_api();
        let cluster = &kubevirt.cluster;
        cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&["bridge", "candidate"]));
        for (node, _) in NODES {
            kubevirt.add_node(node, 50);
        }
        let kubeconfig = cluster.write_kubeconfig("bridge", &cluster.token("psi-agent-bridge"));
        let bridge = Agent::start(&[
            "bridge",
            "--window",
            "1m",
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
        ]);
        let mut scene = Self { bridge, vms: Vec::new(), started: 0, kubevirt };
        for _ in 0..4 {
            scene.add_vm();
        }
        scene
    }

    /// What agents write every few minutes: that they are alive, and what they see.
    fn write_scores(&self) {
        for (node, score) in NODES {
            self.write_score(node, score, 0);
        }
        assert!(self.kubevirt.beat());
    }

    fn write_score(&self, node: &str, score: u32, seconds_ago: i64) {
        let at = Timestamp::now() - SignedDuration::from_secs(seconds_ago);
        let score = score.to_string();
        let values = [
            ("score", &*score),
            ("cpu", &*score),
            ("memory", "0"),
            ("basis", "run-delay/6"),
            ("observed-at", &format!("{at:.0}")),
        ]
        .map(|(key, value)| format!("psi-agent.io/{key}={value}"));
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let annotate = [&["annotate", "--overwrite", "node", node][..], &values].concat();
        self.kubevirt.cluster.kubectl(&annotate, "");
    }

    /// One more VM on the short node.
    fn add_vm(&mut self) {
        self.started += 1;
        let vm = virtual_machine(&format!("vm-{}", self.started));
        self.kubevirt.cluster.kubectl(&["cordon", "calm"], "");
        let pod = self.kubevirt.start_vm(&vm);
        self.kubevirt.cluster.kubectl(&["uncordon", "calm"], "");
        assert_eq!(node_of(&pod), "short");
        self.vms.push(pod);
    }

    fn mark(&self, pod: &Value) {
        let set = ["label", "pod", name(pod), "-n", "vms", &format!("{LABEL}=true")];
        self.kubevirt.cluster.kubectl(&set, "");
    }

    fn deschedule(&self, name: &str, policy: &str, address: &str) -> Descheduler {
        let url = format!("http://{address}");
        Descheduler::start(&self.kubevirt.cluster, name, policy, &url, 5)
    }

    /// Marks this VM, and waits until it has moved. No other is asked to leave.
    fn expect_a_move(&mut self, round: usize, descheduler: &Descheduler) {
        self.write_scores();
        let pod = self.vms.remove(round % self.vms.len());
        let vm = pod["metadata"]["annotations"]["kubevirt.io/domain"].as_str().unwrap().to_owned();
        let before = descheduler.evictions(&self.kubevirt.cluster).len();
        self.mark(&pod);
        let job = wait_for(&format!("virt-controller migrates {vm}"), 2 * MINUTE, || {
            self.kubevirt.evacuation(&vm)
        });
        let target = self.kubevirt.wait_for_target(&job);
        assert_eq!(node_of(&target), "calm");
        assert_eq!(label(&target, LABEL), None, "a new pod has no label");
        let evictions = descheduler.evictions(&self.kubevirt.cluster);
        let of_vm = |eviction: &Eviction| eviction.code == 429 && eviction.pod == name(&pod);
        assert!(evictions.len() > before && evictions[before..].iter().all(of_vm), "{evictions:?}");
        self.kubevirt.send_memory(&job, &target);
        self.kubevirt.finish_migration(&job, &target);
        self.kubevirt.end_pod(&pod);
        self.add_vm();
    }
}

/// The policy that the documents have, but that VMs may move which started just now.
fn policy() -> String {
    let (policy, age) = (snippet(POLICY), "minPodAge: 6h");
    assert!(policy.contains(age), "{policy}");
    policy.replace(age, "minPodAge: 1s")
}

/// A Prometheus with what the rules make of such scores.
fn prometheus() -> Prometheus {
    let values = NODES.map(|(node, score)| {
        json!({
            "record": "node:psi_agent_node_score_ratio:max_neutral",
            "expr": format!("vector({})", f64::from(score) / 100.0), "labels": {"instance": node},
        })
    });
    let config = json!({
        "global": {"evaluation_interval": "1s"}, "rule_files": ["rules.yaml"],
    });
    let rules = json!({"groups": [{"name": "scores", "rules": values}]});
    Prometheus::in_cluster(&config.to_string(), &rules.to_string())
}

#[test]
#[ignore = "needs root, etcd and what tests/run --cluster builds"]
fn of_four_vms_the_marked_one_leaves_in_ten_rounds_of_ten_and_no_stale_label_moves_a_vm() {
    let mut scene = Scene::start();
    let prometheus = prometheus();
    scene.write_scores();
    // Without a label nobody leaves.
    let by_rule = scene.deschedule("rule", &policy(), prometheus.address());
    wait_for_cycles(&by_rule, 3);
    assert_eq!(by_rule.last_class("short").unwrap().0, "overutilized");
    assert_eq!(by_rule.evictions(&scene.kubevirt.cluster).len(), 0);
    for round in 0..ROUNDS / 2 {
        scene.expect_a_move(round, &by_rule);
    }
    drop(by_rule);
    let query = "node:psi_agent_node_score_ratio:max_neutral";
    let policy_of_bridge = policy().replace(query, "slow-score");
    let by_bridge = scene.deschedule("bridge", &policy_of_bridge, &scene.bridge.address);
    for round in ROUNDS / 2..ROUNDS {
        scene.expect_a_move(round, &by_bridge);
    }
    drop(by_bridge);

    // The agent of the short node has ended, and has left a label.
    scene.write_score("short", 50, 3600);
    scene.write_score("calm", 0, 0);
    scene.mark(&scene.vms[0]);
    let account = scene.kubevirt.cluster.token("psi-agent-reap");
    let kubeconfig = scene.kubevirt.cluster.write_kubeconfig("reap", &account);
    let output = Command::new(BINARY)
        .args(["reap", "--older-than", "15m", "--candidates", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(label(&scene.kubevirt.fresh(&scene.vms[0]), LABEL), None);
    let after = scene.deschedule("after", &policy(), prometheus.address());
    wait_for_cycles(&after, 3);
    assert_eq!(after.evictions(&scene.kubevirt.cluster).len(), 0);
}
