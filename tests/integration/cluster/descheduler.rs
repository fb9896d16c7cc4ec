//! The descheduler, fed by the score: its policies of docs/consumers, on a real API server, with a
//! real Prometheus and real agents. Whom it evicts is read from the audit log.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::policies::{BY_CONTENTION, BY_LOAD, query_of, rules};
use crate::support::agent::Agent;
use crate::support::cluster::Cluster;
use crate::support::cpu::BusyCpu;
use crate::support::descheduler::Descheduler;
use crate::support::prometheus::{Prometheus, running_agent, scrape_by_hand};
use crate::support::replayed_node::ReplayedNode;
use crate::support::staged_node::{
    StagedNode, agent_pod, container_cgroup, container_id, launcher, running,
};
use crate::support::written_node::WrittenNode;
use crate::support::{snippet, wait_for};

const BY_TAINTS: &str = "descheduler-taints.yaml";

const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const LONG_AGO: &str = "2020-01-01T00:00:00Z";
/// The nodes that the policies are about.
const RUNS_VMS: &str = "kubevirt.io/schedulable=true";
/// The slow views of nodes that have an agent, and what the kernel says of a node by itself.
const SCORE: &str = "node:psi_agent_node_score_ratio:avg10m";
const LOAD: &str = "node:psi_agent_node_load_ratio:avg10m";
const PLAIN_PRESSURE: &str = "rate(node_pressure_cpu_waiting_seconds_total[1m])";
/// The score as it is, at least 0.1: NaN where a node's score is NaN.
const NEVER_ZERO: &str = "clamp(psi_agent_node_score_ratio, 0.1, 1)";

/// A query whose results carry the node's name where a descheduler looks for it.
pub(crate) fn by_instance(query: &str) -> String {
    format!("label_replace({query}, \"instance\", \"$1\", \"node\", \"(.+)\")")
}
/// Between two cycles of a descheduler, in seconds.
const INTERVAL: u32 = 2;

/// An idle node with a VM that its own limit holds back: a recording of a real kernel.
const NOISY: &str = "noisy";
/// Nodes whose files are written, with a VM that waits for nothing, and how busy they are.
const WRITTEN: [(&str, f64); 3] = [("busy", 0.85), ("calm", 0.10), ("hung", 0.10)];
/// The node that gets short, its VMs in real cgroups; its CPUs are told to be 15 % busy.
const SHORT: &str = "short";
/// Its VMs: two that could be evicted, and one that has come a moment ago.
const WEB: &str = "web";
const DB: &str = "db";
const YOUNG: &str = "young";
/// One that is added when these have gone.
const LATE: &str = "late";
/// All that have an agent.
const WITH_AGENT: [&str; 5] = [NOISY, "busy", "calm", "hung", SHORT];
/// Nodes without an agent, of which Prometheus knows nothing, and a value that is none.
const SILENT: &str = "silent";
const NAN: &str = "nan";

/// The project's rules, thirty times as fast: what is made of twenty values in ten minutes is made of
/// twenty values in twenty seconds. Beside them what kube-state-metrics would tell, and a NaN.
fn hurried_rules() -> String {
    let rules = rules();
    assert_eq!(rules.matches("interval: 30s").count(), 3, "{rules}");
    let rules = rules.replace("interval: 30s", "interval: 1s").replace("[10m]", "[20s]");
    let names = WITH_AGENT.into_iter().chain([SILENT, NAN]);
    let of_kube_state_metrics = names.map(|node| {
        format!(
            "  - record: kube_node_labels\n    expr: vector(1)\n    \
             labels: {{node: {node}, label_kubevirt_io_schedulable: \"true\"}}\n"
        )
    });
    let of_kube_state_metrics: String = of_kube_state_metrics.collect();
    let nan = format!(
        "  - record: psi_agent_node_score_ratio\n    expr: vector(NaN)\n    labels: {{node: {NAN}}}\n"
    );
    format!("{rules}- name: others\n  interval: 1s\n  rules:\n{of_kube_state_metrics}{nan}")
}

/// A Prometheus that scrapes these agents, each as its node's.
fn prometheus_of(agents: &[(&str, Agent)]) -> Prometheus {
    let targets = agents.iter().map(|(node, agent)| running_agent(node, &agent.address));
    let mut config = scrape_by_hand(&targets.collect::<Vec<_>>());
    config["global"] = json!({
        "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
    });
    config["rule_files"] = json!(["rules.yaml"]);
    Prometheus::in_cluster(&config.to_string(), &hurried_rules())
}

/// The pod of a VM with what a descheduler looks at: whose it is, its disk, and what KubeVirt asks of
/// who evicts it.
fn evictable(vm: &str, node: &str) -> Value {
    let mut pod = launcher(vm, node);
    let metadata = &mut pod["metadata"];
    metadata["annotations"]["descheduler.alpha.kubernetes.io/request-evict-only"] = json!("");
    metadata["ownerReferences"] = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vm,
        "uid": "00000000-0000-4000-8000-000000000001", "controller": true,
    }]);
    pod["spec"]["volumes"] = json!([{"name": "private", "emptyDir": {}}]);
    pod
}

/// A policy with another query, and perhaps for other nodes.
fn with_query(policy: &str, query: &str, nodes: &str) -> String {
    let neutral = query_of(BY_CONTENTION);
    assert_eq!((policy.matches(&neutral).count(), policy.matches(RUNS_VMS).count()), (1, 1));
    policy.replace(&neutral, query).replace(RUNS_VMS, nodes)
}

/// Seven nodes; five of them have an agent.
struct Scene {
    // Agents end before the cluster that they talk to.
    agents: Vec<(&'static str, Agent)>,
    prometheus: Prometheus,
    short: StagedNode,
    /// The containers of the VMs on it.
    containers: Vec<String>,
    _noisy: ReplayedNode,
    _written: Vec<WrittenNode>,
    cluster: Cluster,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::start("descheduler");
        cluster.apply_folder("daemonset/base");
        cluster.add_namespace("vms");
        for name in WITH_AGENT {
            add_node(&cluster, name);
            cluster.apply(&[agent_pod(&agent_of(name), name)]);
        }
        let mut agents = Vec::new();
        let mut noisy = ReplayedNode::new("descheduler", NOISY, "throttled-alone");
        noisy.start_vm(&add_vm(&cluster, &vm_of(NOISY), NOISY, 1, LONG_AGO));
        agents.push((NOISY, noisy.start_agent(&cluster, &agent_of(NOISY), &[])));
        let mut written = Vec::new();
        for (number, (name, busy)) in (2..).zip(WRITTEN) {
            let cgroup = add_vm(&cluster, &vm_of(name), name, number, LONG_AGO);
            let node = WrittenNode::new("descheduler", name, busy, &cgroup);
            agents.push((name, node.start_agent(&cluster, &agent_of(name))));
            written.push(node);
        }
        let mut short = StagedNode::new("descheduler", SHORT);
        short.be_busy(0.15);
        let just_now = jiff::Timestamp::now().to_string();
        let mut containers = Vec::new();
        for (number, (vm, since)) in
            (10..).zip([(WEB, LONG_AGO), (DB, LONG_AGO), (YOUNG, &just_now)])
        {
            let cgroup = add_vm(&cluster, vm, SHORT, number, since);
            short.own.make(&cgroup);
            short.own.spawn(&cgroup, "sleep 3600");
            containers.push(cgroup);
        }
        agents.push((SHORT, short.start_agent(&cluster, &agent_of(SHORT), &[])));
        let prometheus = prometheus_of(&agents);
        Self { agents, prometheus, short, containers, _noisy: noisy, _written: written, cluster }
    }

    fn deschedule(&self, name: &str, policy: &str) -> Descheduler {
        let prometheus = format!("http://{}", self.prometheus.address());
        Descheduler::start(&self.cluster, name, policy, &prometheus, INTERVAL)
    }

    /// The value of a slow view for a node.
    fn slow(&self, view: &str, node: &str) -> Option<f64> {
        self.prometheus.query(&format!("{view}{{instance=\"{node}\"}}"))
    }

    fn agent(&mut self, node: &str) -> Agent {
        let at = self.agents.iter().position(|(name, _)| *name == node).unwrap();
        self.agents.swap_remove(at).1
    }

    /// Nodes get an agent that is gone, one that hangs, one whose value is none, and one that was
    /// never there; and one gets short: two VMs want its CPU.
    fn go_wrong(&mut self, cpu: &BusyCpu) -> Agent {
        drop([self.agent(NOISY), self.agent("busy")]);
        let hung = self.agent("hung");
        hung.signal("STOP");
        for name in [SILENT, NAN] {
            add_node(&self.cluster, name);
        }
        for container in &self.containers[..2] {
            self.short.own.spawn(container, &cpu.spin());
        }
        hung
    }
}

fn add_node(cluster: &Cluster, name: &str) {
    cluster.add_node(name);
    cluster.kubectl(&["label", "node", name, RUNS_VMS], "");
}

fn agent_of(node: &str) -> String {
    format!("psi-agent-{node}")
}

fn vm_of(node: &str) -> String {
    format!("on-{node}")
}

pub(crate) fn pod_of(vm: &str) -> String {
    format!("virt-launcher-{vm}")
}

/// Adds the pod of a VM that runs since then; answers its container's cgroup.
pub(crate) fn add_vm(
    cluster: &Cluster,
    vm: &str,
    node: &str,
    container: u32,
    since: &str,
) -> String {
    cluster.apply(&[evictable(vm, node)]);
    let mut status = running(&container_id(container));
    status["startTime"] = json!(since);
    cluster.set_status("vms", &pod_of(vm), &status);
    container_cgroup(cluster, &pod_of(vm), container)
}

/// The pods whose evictions a descheduler asked for, all of which were granted.
pub(crate) fn evicted(descheduler: &Descheduler, cluster: &Cluster) -> BTreeSet<String> {
    let evictions = descheduler.evictions(cluster);
    let granted = evictions.iter().all(|eviction| eviction.code == 201);
    let explained = evictions.iter().all(|it| it.reason.starts_with("triggered by psi-agent/"));
    assert!(granted && explained, "{evictions:?}");
    evictions.into_iter().map(|eviction| eviction.pod).collect()
}

pub(crate) fn wait_for_cycles(descheduler: &Descheduler, more: usize) {
    let enough = descheduler.cycles().len() + more;
    wait_for("more cycles", MINUTE, || (descheduler.cycles().len() >= enough).then_some(()));
}

/// Waits until it has evicted somebody; answers whom, one cycle later.
fn wait_for_evictions(descheduler: &Descheduler, cluster: &Cluster) -> BTreeSet<String> {
    wait_for("an eviction", MINUTE, || descheduler.evictions(cluster).pop());
    wait_for_cycles(descheduler, 1);
    evicted(descheduler, cluster)
}

#[test]
#[ignore = "needs root, a cgroup2 mount, two CPUs, Prometheus (tests/prometheus/build), the \
            descheduler (tests/descheduler/build), etcd and a control plane (tests/kubernetes/build)"]
fn the_descheduler_evicts_from_the_node_that_is_short_and_from_no_other() {
    let mut scene = Scene::start();
    for view in [SCORE, LOAD] {
        for node in WITH_AGENT {
            wait_for("a slow view of each node", 2 * MINUTE, || scene.slow(view, node));
        }
    }

    // A VM waits for its own limit, and another node is busy; nobody waits for a node.
    let by_contention = scene.deschedule("contention", &snippet(BY_CONTENTION));
    let by_load = scene.deschedule("load", &snippet(BY_LOAD));
    let plain = with_query(&snippet(BY_CONTENTION), &by_instance(PLAIN_PRESSURE), RUNS_VMS);
    let by_pressure = scene.deschedule("pressure", &plain);
    assert_eq!(wait_for_evictions(&by_pressure, &scene.cluster), [pod_of(&vm_of(NOISY))].into());
    assert_eq!(wait_for_evictions(&by_load, &scene.cluster), [pod_of(&vm_of("busy"))].into());
    let (class, percent) = by_load.last_class("busy").unwrap();
    assert!(class == "overutilized" && (40..=43).contains(&percent), "{class} {percent}");
    assert_eq!(by_load.last_class(SHORT), Some(("underutilized".into(), 7)));
    drop((by_load, by_pressure));
    wait_for_cycles(&by_contention, 1);
    for node in WITH_AGENT {
        // A replay that is late beside other load shows some waiting.
        let (class, percent) = by_contention.last_class(node).unwrap();
        assert_ne!(class, "overutilized", "{node}: {percent}");
    }
    assert_eq!(evicted(&by_contention, &scene.cluster), [].into());

    // Much goes wrong, and one node gets short.
    let cpu = BusyCpu::share();
    let hung = scene.go_wrong(&cpu);
    let of_short: BTreeSet<String> = [WEB, DB].map(pod_of).into();
    let pods = wait_for_evictions(&by_contention, &scene.cluster);
    assert!(pods.is_subset(&of_short), "{pods:?}");
    for node in [NOISY, "busy", "hung"] {
        let forgotten = || scene.slow(SCORE, node).is_none().then_some(());
        wait_for("nothing more is known of a node", MINUTE, forgotten);
    }
    wait_for_cycles(&by_contention, 2);
    let class = |node| by_contention.last_class(node).unwrap().0;
    assert_eq!((class(SHORT), class("calm")), ("overutilized".into(), "underutilized".into()));
    for node in [NOISY, "busy", "hung", SILENT, NAN] {
        assert_eq!(class(node), "appropriate", "{node}");
    }
    let pods = evicted(&by_contention, &scene.cluster);
    assert!(pods.is_subset(&of_short), "{pods:?}");

    // A soft taint on the only underused node is enough that nobody leaves.
    scene.cluster.kubectl(&["taint", "node", "calm", "example.org/any=:PreferNoSchedule"], "");
    add_vm(&scene.cluster, LATE, SHORT, 20, LONG_AGO);
    let left = || evicted(&by_contention, &scene.cluster).contains(&pod_of(LATE));
    wait_for_cycles(&by_contention, 2);
    assert!(!left() && class(SHORT) == "overutilized");
    scene.cluster.kubectl(&["taint", "node", "calm", "example.org/any-"], "");
    wait_for("without the taint it leaves", MINUTE, || left().then_some(()));
    drop((by_contention, hung));

    // Without what the rules do about it, one node is enough that no other is judged right.
    let without_neutral = with_query(&snippet(BY_CONTENTION), SCORE, RUNS_VMS);
    let without_neutral = scene.deschedule("neutral", &without_neutral);
    let two = format!("kubernetes.io/hostname in (calm, {NAN})");
    let with_nan = with_query(&snippet(BY_CONTENTION), &by_instance(NEVER_ZERO), &two);
    let with_nan = scene.deschedule("nan", &with_nan);
    wait_for("a node without pressure is overused", MINUTE, || {
        (with_nan.last_class("calm")? == ("overutilized".into(), 10)).then_some(())
    });
    wait_for("no node is judged", MINUTE, || {
        without_neutral.log().contains("unable to find metric entry for").then_some(())
    });
    assert_eq!(without_neutral.last_class(SHORT), None);
}

#[test]
#[ignore = "needs root, the descheduler (tests/descheduler/build), etcd and a control plane \
            (tests/kubernetes/build)"]
fn by_taints_one_vm_leaves_in_a_cycle_and_without_the_limit_all_of_them() {
    let cluster = Cluster::start("descheduler-taints");
    cluster.add_namespace("vms");
    for node in ["high", "low"] {
        add_node(&cluster, node);
    }
    // As the agent taints it.
    let taint = ["taint", "node", "high", "psi-agent.io/pressure-high=true:PreferNoSchedule"];
    cluster.kubectl(&taint, "");
    let add_vms = |names: [&str; 3]| {
        for (number, vm) in (1..).zip(names) {
            add_vm(&cluster, vm, "high", number, LONG_AGO);
        }
    };
    // How many of the three VMs are evicted in each cycle that evicts any.
    let evicted_at_once = |name: &str, policy: &str| {
        let descheduler = Descheduler::start(&cluster, name, policy, "", INTERVAL);
        let all = || (evicted(&descheduler, &cluster).len() == 3).then_some(());
        wait_for("all three are evicted", MINUTE, all);
        wait_for_cycles(&descheduler, 1);
        let cycles = descheduler.cycles().into_iter();
        cycles.filter(|&evicted| evicted > 0).collect::<Vec<_>>()
    };

    let limited = snippet(BY_TAINTS);
    add_vms(["one", "two", "three"]);
    assert_eq!(evicted_at_once("limited", &limited), [1, 1, 1]);
    let unlimited = limited.lines().filter(|line| !line.starts_with("maxNoOfPodsToEvictPerNode"));
    let unlimited: String = unlimited.map(|line| format!("{line}\n")).collect();
    assert_ne!(unlimited, limited);
    add_vms(["four", "five", "six"]);
    assert_eq!(evicted_at_once("unlimited", &unlimited), [3]);
}
