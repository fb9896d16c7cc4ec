//! A real Prometheus on the running agent, and promtool on what it prints and on the rules.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::support::agent::Agent;
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::folder::Folder;
use crate::support::project::{ROOT, text};
use crate::support::prometheus::{
    Prometheus, debians_promtool, lint_agent, promtool, prove_rules, running_agent, scrape_by_hand,
};
use crate::support::recorded_case::start_on_case;
use crate::support::wait_for;

/// Many times what anything takes here.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs promtool (Debian's package prometheus), root and a cgroup2 mount"]
fn promtool_finds_nothing_wrong() {
    lint_agent(&debians_promtool(), &OwnCgroup::new("lint"));
}

#[test]
#[ignore = "needs promtool (Debian's package prometheus)"]
fn promtool_proves_the_rules() {
    prove_rules(&debians_promtool());
}

#[test]
#[ignore = "needs promtool (Debian's package prometheus)"]
fn promtool_accepts_the_documented_examples() {
    let document = text("docs/operations.md");
    let blocks = document.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let examples: Vec<&str> = blocks.filter(|block| block.starts_with("scrape_configs:")).collect();
    assert_eq!(examples.len(), 1);
    let folder = Folder::new("documented-examples");
    for example in examples {
        folder.write("example.yaml", example);
        promtool(&debians_promtool(), &["check", "config", &folder.path("example.yaml")]);
    }
}

/// For how long the tasks of a cgroup have waited for a CPU, in seconds.
fn waited(own: &OwnCgroup, cgroup: &str) -> f64 {
    let text = fs::read_to_string(own.path.join(cgroup).join("cpu.pressure")).unwrap();
    let total = text.lines().next().unwrap().rsplit_once("total=").unwrap().1;
    total.parse::<f64>().unwrap() / 1e6
}

#[test]
#[ignore = "needs Prometheus, root and a writable cgroup2 mount; takes 40 s"]
fn prometheus_stores_what_the_kernel_counts_without_a_gap_or_a_doubled_sample() {
    let mut own = OwnCgroup::new("prometheus");
    own.make("busy");
    let cpu = BusyCpu::share();
    for _ in 0..2 {
        own.spawn("busy", &cpu.spin());
    }
    // Its own cgroups: all of this host's, of which other tests make thousands, may take longer than
    // the five seconds that a scrape here has.
    let agent = Agent::start(&["--cgroup-root", own.path.to_str().unwrap()]);
    let prometheus = Prometheus::start(&agent.address);
    let up = "{job=\"psi-agent\"}";
    let scrapes = || prometheus.query(&format!("count_over_time(up{up}[10m])")).unwrap_or(0.0);
    let wait_for_scrapes = |count: f64| {
        let enough = scrapes() + count;
        wait_for("scrapes", LIMIT, || (scrapes() >= enough).then_some(()));
    };
    wait_for_scrapes(1.0);
    // A counter that Prometheus stored lies between the kernel's readings before and after its scrape,
    // whatever else runs. The scrape that comes first may have begun before, or show what was read a
    // second earlier.
    for _ in 0..2 {
        let before = waited(&own, "busy");
        wait_for_scrapes(2.0);
        let stored = "container_pressure_cpu_waiting_seconds_total{id=\"/busy\"}";
        let stored = prometheus.query(stored).expect("a value");
        let after = waited(&own, "busy");
        println!("the kernel counted {before} s, Prometheus stored {stored}, the kernel {after}");
        assert!(before < stored && stored <= after, "{stored} is not between {before} and {after}");
    }
    let rate = "rate(container_pressure_cpu_waiting_seconds_total{id=\"/busy\"}[1m])";
    let rate = prometheus.query(rate).expect("a rate");
    assert!(rate > 0.0, "two loops on one CPU wait: {rate}");

    assert_eq!(prometheus.query(&format!("min_over_time(up{up}[10m])")), Some(1.0));
    let lost = format!(
        "max_over_time((scrape_samples_scraped{up} - scrape_samples_post_metric_relabeling{up})[10m:2s])"
    );
    assert_eq!(prometheus.query(&lost), Some(0.0));
    for counter in [
        "prometheus_target_scrapes_sample_duplicate_timestamp_total",
        "prometheus_target_scrapes_sample_out_of_order_total",
        "prometheus_target_scrapes_sample_out_of_bounds_total",
        "prometheus_target_scrapes_exceeded_sample_limit_total",
    ] {
        assert_eq!(prometheus.own_counter(counter), 0.0, "{counter}");
    }
    let log = prometheus.log();
    assert!(!log.contains("level=error") && !log.contains("level=warn"), "{log}");
}

/// A Prometheus with the rules, to which four pods are told at one address.
fn configuration(address: &str) -> serde_json::Value {
    let [mut ended, mut port, mut pod] =
        ["evicted", "other-port", "other-pod"].map(|node| running_agent(node, address));
    ended["labels"]["__meta_kubernetes_pod_phase"] = "Failed".into();
    port["labels"]["__meta_kubernetes_pod_container_port_name"] = "probes".into();
    pod["labels"]["__meta_kubernetes_pod_label_app_kubernetes_io_name"] = "somebody".into();
    let mut config = scrape_by_hand(&[running_agent("node-a", address), ended, port, pod]);
    config["rule_files"] = json!([format!("{ROOT}/daemonset/prometheus/rules.yaml")]);
    config
}

#[test]
#[ignore = "needs Prometheus (Debian's package prometheus); takes 10 s"]
fn prometheus_finds_the_agent_and_names_its_node() {
    let agent = start_on_case("virt-launcher", &[]);
    let prometheus = Prometheus::start_with(&configuration(&agent.address).to_string());
    wait_for("a target", LIMIT, || prometheus.query("up{job=\"psi-agent\",node=\"node-a\"} == 1"));
    assert_eq!(prometheus.query("count(up)"), Some(1.0));
    // A container's series has its own pod, and the node's the node.
    let of_vm = "count(container_pressure_cpu_waiting_seconds_total{node=\"node-a\",container=\"compute\",pod=~\"virt-launcher-.*\"}) > 0";
    wait_for("a VM's series", LIMIT, || prometheus.query(of_vm));
    // Rules are evaluated without an error, and alerts are pending where they should be.
    wait_for("an alert", LIMIT, || {
        prometheus.query("ALERTS{alertname=\"PsiAgentNoScore\",node=\"node-a\"}")
    });
    assert_eq!(prometheus.own_counter("prometheus_rule_evaluation_failures_total"), 0.0);
}
