//! The same node with nothing but a release's files: its chart, with the Job that it runs after uninstallation, plugin
//! and dashboards.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::scene::{CONSOLE, LIMIT, Scene, VMS, wait_until};
use crate::support::cluster::REAL_NODE;
use crate::support::console::shown_by;
use crate::support::dashboard_queries::{PanelQuery, queries};
use crate::support::packed_release::CHART;
use crate::support::prometheus::{Prometheus, serve_target};

/// Titles of panels that need a program or an event that this test does not have.
const WITHOUT_DATA: [&str; 4] = ["Bridge: ", "Time since reap", "migrations", "Moves: "];

/// Metrics that the kubelet does not export for these VMs, which have neither limits nor disks.
const NOT_OF_THESE_VMS: [&str; 3] =
    ["container_spec_cpu_quota{", "container_spec_memory_limit_bytes{", "container_fs_"];

pub(super) fn the_chart_installs_what_kustomize_did(scene: &Scene) {
    let shown = shown_by("docs/install.md");
    let [create, label, install, _] = &shown[..] else { panic!("{shown:?}") };
    for before in [create, label] {
        before.check(&scene.run_as_admin(&before.command));
    }
    let command = install.command.replace("daemonset/chart", CHART);
    let command = command.replace("REGISTRY/psi-agent", "localhost/psi-agent");
    assert!(command.contains(CHART) && command.contains("localhost/"), "{command}");
    scene.run_as_admin(&format!("{command} --set agent.label=true"));
    wait_until("the score stands on the Node", || scene.own_key("annotations", "observed-at"));
    let image = &scene.agent()["spec"]["containers"][0]["image"];
    assert!(image.as_str().unwrap().starts_with("localhost/psi-agent@sha256:"), "{image}");
}

/// kubectl finds the plugin by the name of its file.
pub(super) fn the_plugin_shows_nodes_and_vms(scene: &Scene) {
    let listed = scene.run_as_admin("kubectl psi nodes -o wide");
    eprintln!("{listed}");
    let row = listed.lines().find(|line| line.starts_with(REAL_NODE)).unwrap();
    assert!(row.contains("run-delay/"), "{row}");
    let shown = scene.run_as_admin(&format!("kubectl psi top {REAL_NODE}"));
    eprintln!("{shown}");
    for vm in VMS {
        assert!(shown.contains(&format!("vms/{vm}")), "{shown}");
    }
    assert!(shown.contains(&format!("on {REAL_NODE}")), "{shown}");
    let refused = "kubectl psi top nowhere 2>&1 || true";
    let refused = scene.run_as_admin(refused);
    assert!(refused.contains("no agent runs on node nowhere") && refused.lines().count() == 1);
}

/// On its one emulated CPU, which VMs want too, a kubelet needs more than 5 s for an answer on a busy machine.
const SCRAPED_EVERY: &str = "20s";

/// Serves what the agent exports, asked on its node. `kubectl port-forward` hangs for good if a scrape ends before the
/// forwarding begins.
fn serve_agent(scene: &Scene) -> String {
    let (shell, ask) = (scene.node.shell, Scene::ask(&scene.agent()));
    serve_target(move || shell.run(&ask))
}

/// A `kubectl proxy` to the node's kubelet, until the value is dropped.
struct Kubelet {
    proxy: Child,
    address: String,
}

impl Kubelet {
    fn start(scene: &Scene) -> Self {
        let server = format!("--server=https://{}", scene.node.kubelet_address());
        let mut proxy = Command::new(scene.cluster.programs().join("kubectl"))
            .args(["proxy", "--port=0", "--insecure-skip-tls-verify", &server])
            .arg("--accept-paths=.*")
            .env("KUBECONFIG", scene.cluster.admin_kubeconfig())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let address = address.unwrap_or_else(|| panic!("kubectl proxy: {line}")).to_owned();
        Self { proxy, address }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// A Prometheus with the release's rules, which scrapes this node's agent and kubelet.
fn prometheus(scene: &Scene, agent: &str, kubelet: &str) -> Prometheus {
    let rules = scene.release().join("daemonset/prometheus/rules.yaml");
    let job = |job: &str, path: &str, address: &str| {
        json!({
            "job_name": job, "metrics_path": path,
            "scrape_interval": SCRAPED_EVERY, "scrape_timeout": SCRAPED_EVERY,
            "static_configs": [{"targets": [address], "labels": {"node": REAL_NODE}}],
        })
    };
    let scraped = json!({
        "rule_files": [rules],
        "scrape_configs": [
            job("psi-agent", "/metrics", agent),
            job("kubelet", "/metrics/cadvisor", kubelet),
        ],
    });
    Prometheus::start_with(&scraped.to_string())
}

/// The queries of a dashboard, except for panels without data.
fn asked(dashboard: &Value) -> Vec<PanelQuery> {
    let variables = [
        // As Grafana computes it, from four scrapes.
        ("$__rate_interval", "80s"),
        ("$__range", "1m"),
        ("$kubelet_job", "kubelet"),
        ("$job", "psi-agent"),
        ("$cluster", ".*"),
        ("$namespace", "vms"),
        ("$node", REAL_NODE),
        ("$vm", VMS[0]),
        ("$rule_psi", "0.4"),
    ];
    let mut asked = queries(dashboard, &variables);
    asked.retain(|query| {
        let title = query.panel["title"].as_str().unwrap();
        !WITHOUT_DATA.iter().any(|start| title.starts_with(start))
            && !NOT_OF_THESE_VMS.iter().any(|metric| query.text.contains(metric))
    });
    asked
}

/// Some panels need throttled containers, and a published change of the score.
pub(super) fn the_dashboards_have_answers(scene: &Scene) {
    signal_loads(scene, "USR1");
    let kubelet = Kubelet::start(scene);
    let prometheus = prometheus(scene, &serve_agent(scene), &kubelet.address);
    let seconds = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let began = seconds();
    for name in ["cluster", "node-and-vm"] {
        let file = scene.release().join(format!("grafana/dashboards/{name}.json"));
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let asked = asked(&dashboard);
        assert!(asked.len() > 20, "{}", asked.len());
        let start = Instant::now();
        loop {
            let range = format!("&start={began}&end={}&step=5", seconds());
            let unanswered = asked.iter().filter(|query| {
                prometheus.ask(&query.text, (!query.instant).then_some(&*range)).is_empty()
            });
            let titles: Vec<&Value> = unanswered.map(|query| &query.panel["title"]).collect();
            if titles.is_empty() {
                break;
            }
            if start.elapsed() > LIMIT {
                let scrapes = prometheus.ask("{__name__=~'up|scrape_duration_seconds'}", None);
                panic!("panels without an answer: {titles:?}; scrapes: {scrapes:?}");
            }
            sleep(Duration::from_secs(1));
        }
        eprintln!("{name}: {} queries answered", asked.len());
    }
    let longest = prometheus.ask("max_over_time(scrape_duration_seconds[10m])", None);
    eprintln!("the longest scrapes took {longest:?} s");
    signal_loads(scene, "USR2");
}

/// Starts (USR1) or stops (USR2) the load of all containers of the VMs.
fn signal_loads(scene: &Scene, signal: &str) {
    for container in [CONSOLE, "compute"] {
        scene.signal(signal, &VMS.map(|vm| scene.vm_cgroup(vm, container)));
    }
}

pub(super) fn helm_removes_what_the_agents_wrote(scene: &Scene) {
    assert!(scene.own_key("annotations", "score").is_some());
    scene.run_as_admin("helm uninstall psi-agent --namespace psi-agent");
    assert!(scene.own_key("annotations", "score").is_none());
    // The namespace is nothing that the chart made.
    scene.run_as_admin("kubectl delete namespace psi-agent");
}
