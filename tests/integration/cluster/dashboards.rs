//! Every query of every panel of the dashboards, put to a real Prometheus that scraped real agents
//! of two nodes: one whose VMs wait for its CPU, and one whose VM waits for its own limit alone.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::fixture::dashboards::dashboard;
use crate::support::agent::Agent;
use crate::support::cluster::Cluster;
use crate::support::cpu::BusyCpu;
use crate::support::dashboard_queries::{PanelQuery, expanded, queries};
use crate::support::prometheus::{Prometheus, serve_target};
use crate::support::replayed_node::ReplayedNode;
use crate::support::staged_node::{
    StagedNode, agent_pod, container_cgroup, container_id, launcher, running,
};
use crate::support::wait_for;

/// Longer than the window of the rates in the panels, and than a score takes to be published.
const CALM: Duration = Duration::from_secs(30);
const BUSY: Duration = Duration::from_secs(80);
/// Within it everything has an answer, on a machine that has other work too.
const MINUTE: Duration = Duration::from_secs(60);
const SCRAPE_EVERY: Duration = Duration::from_secs(2);

/// VMs of the first node, and how many loops each runs on the CPU that they share.
const VMS: [(&str, usize); 3] = [("shop", 1), ("mail", 1), ("idle", 0)];
/// The VM of the second one, and how a real node with it fared: it uses most of the node, and waits
/// for nothing but its own limit.
const LIMITED_VM: (&str, &str) = ("batch", "limit-most-of-node");

/// What stands for the kubelet's cAdvisor here, where this host's cgroup v2 has no such controller:
/// limits, throttling, memory and I/O by container. Usage is real, from the agents.
/// The last are the CPUs that it may use, and those that it does not get because of that.
const LIMITED: [(&str, &str, &str, f64, f64); 3] = [
    ("node-a", "shop", "compute", 2.0, 0.0),
    ("node-b", "batch", "compute", 3.25, 0.2),
    ("node-b", "batch", "guest-console-log", 0.015, 0.6),
];

struct Scene {
    // Agents end before the cluster that they talk to.
    _agents: [Agent; 2],
    short: StagedNode,
    limited: ReplayedNode,
    cgroups: Vec<String>,
    limited_cgroup: String,
    prometheus: Prometheus,
    _cluster: Cluster,
    since: SystemTime,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::start("dashboards");
        cluster.apply_folder("daemonset/base");
        cluster.add_namespace("vms");
        for node in ["node-a", "node-b"] {
            cluster.add_node(node);
            cluster.apply(&[agent_pod(&format!("psi-agent-{node}"), node)]);
        }
        let short = StagedNode::new("dashboards", "node-a");
        let (vm, recording) = LIMITED_VM;
        let limited = ReplayedNode::new("dashboards", "node-b", recording);
        let cgroups =
            (1..).zip(VMS).map(|(number, (vm, _))| short.start_vm(&cluster, vm, number)).collect();
        let (pod, id) = (format!("virt-launcher-{vm}"), container_id(99));
        cluster.apply(&[launcher(vm, limited.name)]);
        cluster.set_status("vms", &pod, &running(&id));
        let limited_cgroup = container_cgroup(&cluster, &pod, 99);
        let agents = [
            short.start_agent(&cluster, "psi-agent-node-a", &[]),
            limited.start_agent(&cluster, "psi-agent-node-b", &[]),
        ];
        let prometheus = Prometheus::scraping(&scrape_configs(&agents, &stand_in_for_cadvisor()));
        let since = SystemTime::now();
        let _agents = agents;
        Self {
            _agents,
            short,
            limited,
            cgroups,
            limited_cgroup,
            prometheus,
            _cluster: cluster,
            since,
        }
    }

    /// The VMs start to work; those of the short node want the same CPU.
    fn load(&mut self, cpu: &BusyCpu) {
        for ((_, loops), cgroup) in VMS.iter().zip(&self.cgroups) {
            for _ in 0..*loops {
                self.short.own.spawn(cgroup, &cpu.spin());
            }
        }
        self.limited.start_vm(&self.limited_cgroup);
    }

    /// From the start until now, as a range of a query.
    fn range(&self) -> String {
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64().round()
        };
        format!("&start={}&end={}&step=2", seconds(self.since) + 15.0, seconds(SystemTime::now()))
    }
}

/// The agents as psi-agent's job, with the label `node`, as with `--families=none`. The families that the
/// kubelet has stand under the kubelet's job.
fn scrape_configs(agents: &[Agent; 2], cadvisor: &str) -> String {
    let mut text = String::new();
    for (job, action, families) in [
        ("psi-agent", "drop", "container_(cpu|memory|fs|spec|pressure)_.*"),
        ("kubelet", "keep", "container_cpu_usage_seconds_total|container_pressure_.*"),
    ] {
        let _ = write!(
            text,
            "- job_name: {job}\n  metric_relabel_configs:\n  \
             - {{source_labels: [__name__], regex: '{families}', action: {action}}}\n  \
             static_configs:\n"
        );
        for (agent, node) in agents.iter().zip(["node-a", "node-b"]) {
            let address = &agent.address;
            let _ = writeln!(text, "  - {{targets: ['{address}'], labels: {{node: {node}}}}}");
        }
    }
    let relabel = "{target_label: job, replacement: kubelet}";
    let _ = write!(
        text,
        "- job_name: stand-in\n  relabel_configs: [{relabel}]\n  \
         static_configs: [{{targets: ['{cadvisor}']}}]\n"
    );
    text
}

/// Counters that grow and limits that do not; answers where they are served.
fn stand_in_for_cadvisor() -> String {
    let start = Instant::now();
    serve_target(move || exposition(start.elapsed().as_secs_f64()))
}

fn exposition(seconds: f64) -> String {
    let mut text = String::new();
    for (node, vm, container, cpus, throttled) in LIMITED {
        let labels = format!(
            "node=\"{node}\",namespace=\"vms\",pod=\"virt-launcher-{vm}\",container=\"{container}\""
        );
        for (name, value) in [
            ("container_cpu_cfs_throttled_seconds_total", throttled * seconds),
            ("container_spec_cpu_quota", cpus * 100_000.0),
            ("container_spec_cpu_period", 100_000.0),
            ("container_memory_working_set_bytes", 7e8 + 1e6 * seconds),
            ("container_spec_memory_limit_bytes", f64::from(1 << 30)),
            ("container_fs_reads_bytes_total", 3e5 * seconds),
            ("container_fs_writes_bytes_total", 1e6 * seconds),
        ] {
            let _ = writeln!(text, "{name}{{{labels}}} {value}");
        }
    }
    text
}

fn variables(node: &str) -> [(&str, &str); 9] {
    [
        ("$__rate_interval", "16s"),
        ("$__range", "1m"),
        ("$kubelet_job", "kubelet"),
        ("$job", "psi-agent"),
        ("$cluster", ".*"),
        ("$namespace", "vms"),
        ("$node", node),
        ("$vm", "shop"),
        ("$rule_psi", "0.4"),
    ]
}

/// Panels that have data only with a program or an event that is not part of this test.
fn may_be_empty(query: &PanelQuery) -> bool {
    let title = query.panel["title"].as_str().unwrap();
    ["Bridge: ", "Time since reap", "migrations", "Moves: "]
        .iter()
        .any(|start| title.starts_with(start))
}

/// Panels whose queries return nothing.
fn without_data(scene: &Scene, dashboard: &Value, node: &str) -> Vec<String> {
    let range = scene.range();
    let asked = queries(dashboard, &variables(node)).into_iter();
    let empty = asked.filter(|query| {
        let answer = scene.prometheus.ask(&query.text, (!query.instant).then_some(&*range));
        answer.is_empty() && !may_be_empty(query)
    });
    empty.map(|query| format!("{}: {}", query.panel["title"], query.text)).collect()
}

/// What a variable's query offers; the label `cluster` is there in some installations only.
fn check_variables(scene: &Scene, dashboard: &Value, node: &str) {
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap_or_default();
        let Some(inner) = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'))
        else {
            continue;
        };
        let (series, label) = inner.rsplit_once(", ").unwrap();
        let series = format!("last_over_time({}[1m])", expanded(series, &variables(node)));
        let answer = scene.prometheus.ask(&series, None);
        let values = answer.iter().filter_map(|series| series["metric"][label].as_str());
        let values: BTreeSet<&str> = values.collect();
        assert_eq!(values.is_empty(), label == "cluster", "{query}: {answer:?}");
    }
}

#[test]
#[ignore = "needs root, a cgroup2 mount, Prometheus, etcd and a kube-apiserver; takes 2.5 min"]
fn every_panel_has_an_answer() {
    let mut scene = Scene::start();
    std::thread::sleep(CALM);
    let cpu = BusyCpu::share();
    scene.load(&cpu);
    std::thread::sleep(BUSY);
    wait_for("both nodes' scores are written", BUSY, || {
        let written = "count(psi_agent_last_publish_timestamp_seconds > 0)";
        scene.prometheus.query(written).filter(|count| *count == 2.0)
    });
    // A scrape that came too late leaves its moment without a value, on a machine that is busy.
    let ask = |what: &str, query: &str, fits: &dyn Fn(f64) -> bool| {
        wait_for(what, MINUTE, || scene.prometheus.query(query).filter(|value| fits(*value)))
    };
    let score = |node: &str| format!("psi_agent_node_score_ratio{{node=\"{node}\"}}");
    let short = ask("two VMs share a CPU", &score("node-a"), &|score| score > 0.3);
    // OpenShift's rule takes the node for short that its VM's own limit keeps from waiting less.
    let rule = "rate(node_pressure_cpu_waiting_seconds_total{node=\"node-b\"}[30s])";
    let rule = ask("a VM waits for its own limit", rule, &|waits| waits > 0.7);
    // How low it is depends on how evenly this machine plays the recording: fixture::recordings checks it.
    let limited = ask("a score of its node", &score("node-b"), &|_| true);
    println!("scores: {short} and, where PSI tells {rule}, {limited}");
    for (name, node) in [("cluster", ".*"), ("node-and-vm", "node-a")] {
        let dashboard = dashboard(name);
        check_variables(&scene, &dashboard, node);
        let started = Instant::now();
        loop {
            let empty = without_data(&scene, &dashboard, node);
            if empty.is_empty() {
                break;
            }
            assert!(started.elapsed() < MINUTE, "without data: {empty:#?}");
            std::thread::sleep(SCRAPE_EVERY);
        }
    }
}
