//! What the manifests give a Prometheus, by the Prometheus operator and by hand: real ones find and
//! scrape real agents through a real API server, and evaluate the rules.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::combinations::components;
use crate::support::agent::{Agent, BINARY};
use crate::support::cluster::Cluster;
use crate::support::project::{text, yaml};
use crate::support::prometheus::{Prometheus, both_promtools, lint_metrics};
use crate::support::prometheus_operator::{
    ACCOUNT, Generated, NAMESPACE, Operator, ask_from_outside, install_definitions,
};
use crate::support::staged_node::StagedNode;
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);
/// Where the agents listen, as if it were their pods' networks: on the port of the DaemonSet's.
const NODES: [(&str, &str); 2] = [("node-a", "127.0.71.1"), ("node-b", "127.0.71.2")];
const BRIDGE: &str = "127.0.71.3";
/// Needs kube-state-metrics, which is not here.
const OF_OTHERS: &str = "node:kube_node_labels:group";

struct Scene {
    // Agents and the bridge end before the cluster that they talk to.
    agents: [Agent; 2],
    _bridge: Agent,
    _nodes: [StagedNode; 2],
    cluster: Cluster,
}

impl Scene {
    /// The DaemonSet's pods, on two nodes with a VM each; an agent runs for each of them.
    fn start() -> Self {
        let cluster = Cluster::start_whole("operator");
        install_definitions(&cluster);
        cluster.add_namespace("vms");
        let rendered = cluster.render_with(&["bridge", "monitoring", "openshift"]);
        cluster.kubectl(&["apply", "-f", "-"], &rendered);
        let mut nodes = NODES.map(|(name, _)| StagedNode::new("operator", name));
        nodes.iter().for_each(|node| cluster.add_node(node.name));
        for (number, node) in (1..).zip(&mut nodes) {
            let cgroup = node.start_vm(&cluster, &format!("vm-of-{}", node.name), number);
            node.own.spawn(&cgroup, "sleep 3600");
        }
        let agents = [0, 1].map(|at| start_agent(&cluster, &nodes[at], NODES[at].1));
        let bridge = start_bridge(&cluster);
        Self { agents, _bridge: bridge, _nodes: nodes, cluster }
    }

    /// A token of an account.
    fn token(&self, namespace: &str, account: &str) -> String {
        let create = ["create", "token", account, "-n", namespace];
        self.cluster.kubectl(&create, "").trim().to_owned()
    }

    /// The Prometheus that the operator would have its image run. It asks with the platform's own
    /// account, which has no rights but those of the component.
    fn by_the_operator(&self) -> Prometheus {
        let _operator = Operator::start(&self.cluster);
        let mut generated = wait_for("the operator has made a configuration", MINUTE, || {
            Generated::fetch(&self.cluster)
        });
        generated.check();
        let token = self.token(NAMESPACE, ACCOUNT);
        ask_from_outside(&mut generated.config, &self.cluster, &token);
        generated.config["rule_files"] = json!(["rules.yaml"]);
        let rules = fs::read_to_string(generated.rule_file()).unwrap();
        Prometheus::in_cluster(&generated.config.to_string(), &hurried(&rules))
    }

    /// One with the files for a Prometheus by itself, and the rights that `scrape.yaml` asks for.
    fn by_hand(&self) -> Prometheus {
        let metadata = json!({"name": "by-hand", "namespace": "default"});
        let role = json!({"name": "by-hand"});
        self.cluster.apply(&[
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": role,
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": role,
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": "by-hand",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": "by-hand", "namespace": "default"},
                ],
            }),
        ]);
        let mut config = yaml("daemonset/prometheus/scrape.yaml");
        ask_from_outside(&mut config, &self.cluster, &self.token("default", "by-hand"));
        config["global"] = json!({"scrape_interval": "2s", "evaluation_interval": "2s"});
        config["rule_files"] = json!(["rules.yaml"]);
        let rules = text("daemonset/prometheus/rules.yaml");
        Prometheus::in_cluster(&config.to_string(), &hurried(&rules))
    }
}

/// Rules that are evaluated every 2 s, so that the views over ten minutes have the ten values that
/// they ask for before ten minutes are over.
fn hurried(rules: &str) -> String {
    assert_eq!(rules.matches("interval: 30s").count(), 3, "{rules}");
    rules.replace("interval: 30s", "interval: 2s")
}

/// What the kubelet would do for the DaemonSet's pod of this node: an agent runs, as the pod says,
/// and the pod has an address.
fn start_agent(cluster: &Cluster, node: &StagedNode, address: &str) -> Agent {
    let pod = wait_for_pod(cluster, "psi-agent", |pod| pod["spec"]["nodeName"] == node.name);
    let name = pod["metadata"]["name"].as_str().unwrap();
    let container = &pod["spec"]["containers"][0];
    let port = &container["ports"][0]["containerPort"];
    let arguments = container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
    // These are of the pod's own network and mounts.
    let elsewhere = ["--listen-address=", "--probe-address=", "--cgroup-root="];
    let arguments = arguments.filter(|it| !elsewhere.iter().any(|flag| it.starts_with(flag)));
    let arguments: Vec<&str> = arguments.collect();
    let agent = node.start_agent_at(&format!("{address}:{port}"), cluster, name, &arguments);
    set_running(cluster, name, address);
    agent
}

/// The same for the bridge.
fn start_bridge(cluster: &Cluster) -> Agent {
    let pod = wait_for_pod(cluster, "psi-agent-bridge", |_| true);
    let port = &pod["spec"]["containers"][0]["ports"][0]["containerPort"];
    let kubeconfig = cluster.write_kubeconfig("bridge", &cluster.token("psi-agent-bridge"));
    let flags = ["bridge", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let bridge = Agent::start_at(&format!("{BRIDGE}:{port}"), Command::new(BINARY), &flags);
    set_running(cluster, pod["metadata"]["name"].as_str().unwrap(), BRIDGE);
    bridge
}

/// A pod with this label that is so, once there is one.
fn wait_for_pod(cluster: &Cluster, label: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let label = format!("app.kubernetes.io/name={label}");
    wait_for(&format!("a pod with {label}"), MINUTE, || {
        let pods = cluster.get(&["pods", "-n", "psi-agent", "-l", &label]);
        pods["items"].as_array().unwrap().iter().find(|pod| is_so(pod)).cloned()
    })
}

fn set_running(cluster: &Cluster, pod: &str, address: &str) {
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    cluster.set_status("psi-agent", pod, &status);
}

/// What tells series apart, of all that come from the agents themselves.
fn scraped(prometheus: &Prometheus) -> BTreeSet<String> {
    let series = prometheus.ask("{job=\"psi-agent\",__name__!~\".*:.*|ALERTS.*\"}", None);
    series.iter().map(|series| series["metric"].to_string()).collect()
}

/// Both agents are found and scraped, and whatever they say is said of whom it is about.
fn check_targets(prometheus: &Prometheus) {
    for (node, _) in NODES {
        let up = format!("up{{job=\"psi-agent\",node=\"{node}\"}} == 1");
        wait_for(&format!("{node} is up"), MINUTE, || prometheus.query(&up));
        let of_vm = format!(
            "count(container_pressure_cpu_waiting_seconds_total{{node=\"{node}\",\
             namespace=\"vms\",pod=\"virt-launcher-vm-of-{node}\",container=\"compute\"}})"
        );
        let found = wait_for("the VM's series", MINUTE, || prometheus.query(&of_vm));
        assert_eq!(found, 1.0);
    }
    let up = "up{job=\"psi-agent-bridge\"} == 1";
    wait_for("the bridge is up", MINUTE, || prometheus.query(up));
    let nodes = "count(psi_agent_bridge_nodes{job=\"psi-agent-bridge\",standing=\"known\"})";
    assert_eq!(wait_for("its series", MINUTE, || prometheus.query(nodes)), 1.0);
    assert_eq!(prometheus.query("count(up)"), Some(3.0));
    // The labels of the scraped pod are on no series of an agent, which name the measured workload.
    for labels in ["namespace=\"psi-agent\"", "pod=~\"psi-agent.*\""] {
        let count = format!("count({{job=\"psi-agent\",{labels}}})");
        assert_eq!(prometheus.query(&count), None, "{labels}");
    }
}

/// All rules are evaluated without an error, and each view of nodes has a value for each of them. Those of VMs
/// and moves have none here.
fn check_rules(prometheus: &Prometheus) {
    let rules = yaml("daemonset/prometheus/rules.yaml");
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let (mut names, mut views) = (BTreeSet::new(), BTreeSet::new());
    for rule in rules {
        let view = rule["record"].as_str();
        names.extend(view.or(rule["alert"].as_str()).map(str::to_owned));
        let of_nodes = view.filter(|name| name.starts_with("node") && *name != OF_OTHERS);
        views.extend(of_nodes.map(str::to_owned));
    }
    assert!(views.contains("node:psi_agent_node_score_ratio:max"), "{views:?}");
    for view in views {
        let nodes = format!("count(count by (node) ({{__name__=\"{view}\"}})) == 2");
        wait_for(&format!("{view} of both nodes"), 3 * MINUTE, || prometheus.query(&nodes));
    }
    let healthy = || {
        let rules = prometheus.rules();
        let ok = rules.iter().filter(|rule| rule["health"] == "ok");
        let ok: BTreeSet<String> =
            ok.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect();
        (ok == names).then_some(())
    };
    wait_for("all rules are evaluated", MINUTE, healthy);
    assert_eq!(prometheus.own_counter("prometheus_rule_evaluation_failures_total"), 0.0);
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd, a control plane and what tests/{prometheus,prometheus-operator,openshift}/build make; takes 1.5 min"]
fn agents_are_found_and_scraped_by_the_operator_and_by_hand_alike() {
    let scene = Scene::start();
    let by_operator = scene.by_the_operator();
    let by_hand = scene.by_hand();
    for prometheus in [&by_operator, &by_hand] {
        check_targets(prometheus);
        check_rules(prometheus);
    }
    for agent in &scene.agents {
        let metrics = agent.get("/metrics");
        both_promtools().iter().for_each(|program| lint_metrics(program, metrics.as_bytes()));
    }
    // Whoever found it, a series is the same one.
    wait_for("both have the same series", MINUTE, || {
        let (some, others) = (scraped(&by_operator), scraped(&by_hand));
        (some == others && some.len() > 100).then(|| println!("{} series", some.len()))
    });
}

/// Secrets that a PodMonitor names and that somebody else has to make: a certificate's authority.
fn make_secrets(cluster: &Cluster) {
    let monitor = cluster.get(&["podmonitor", "psi-agent", "-n", "psi-agent"]);
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let Some(authority) = endpoint["tlsConfig"]["ca"].get("secret") else { return };
    let [certificate, key] = cluster.certificate();
    let files = [(authority["key"].as_str().unwrap(), &certificate), ("tls.crt", &certificate)];
    let files = files.into_iter().chain([("tls.key", &key)]);
    let files: Vec<String> =
        files.map(|(name, file)| format!("--from-file={name}={}", file.display())).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let name = authority["name"].as_str().unwrap();
    let create = ["create", "secret", "generic", name, "-n", "psi-agent"];
    cluster.kubectl(&[&create[..], &files].concat(), "");
}

/// With all components at once the PodMonitor is what several of them make of it.
#[test]
#[ignore = "needs etcd, a control plane and what tests/{prometheus,prometheus-operator,openshift}/build make"]
fn the_operator_takes_the_monitor_of_all_components_together() {
    let cluster = Cluster::start_whole("all-components");
    install_definitions(&cluster);
    let names = components();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&names));
    make_secrets(&cluster);
    let _operator = Operator::start(&cluster);
    let generated =
        wait_for("the operator has made a configuration", MINUTE, || Generated::fetch(&cluster));
    generated.check();
    let jobs = generated.config["scrape_configs"].as_array().unwrap().iter();
    let mut jobs = jobs.filter(|job| job["job_name"] == "podMonitor/psi-agent/psi-agent/0");
    let job = jobs.next().unwrap();
    let closed = names.contains(&"auth");
    assert_eq!(job["scheme"] == "https", closed, "{job}");
    assert_eq!(job.get("authorization").is_some(), closed, "{job}");
}
