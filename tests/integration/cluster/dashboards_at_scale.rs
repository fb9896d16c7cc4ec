//! Every query of the dashboards on a real Prometheus with six hours of 60 nodes and 2,000 VMs:
//! none costs much more than one average over all VMs, and no panel returns too many series.

use std::fs;
use std::io::BufWriter;
use std::time::SystemTime;

use psi_agent::score::basis;
use psi_agent::waiting::CpuSource;
use serde_json::{Value, json};

use crate::fixture::dashboards::dashboard;
use crate::support::cache_dir;
use crate::support::dashboard_queries::{PanelQuery, queries};
use crate::support::folder::Folder;
use crate::support::prometheus::Prometheus;
use crate::support::simulated_cluster::{NODE, NODES, SECONDS, SimulatedCluster, VM, VMS};

/// More series than this are no picture, and no table that is read.
const MOST_SERIES: usize = 20;
/// Of Grafana's panels, where the panel sets no other.
const POINTS: i64 = 720;

fn simulated(end: i64) -> Prometheus {
    let folder = Folder::new("simulated-cluster");
    let path = folder.path("metrics.om");
    let file = fs::File::create(&path).unwrap();
    SimulatedCluster::new(BufWriter::with_capacity(1 << 20, file), end).write().unwrap();
    Prometheus::with_history(&path)
}

/// The simplest graph of all VMs; it takes about 0.17 s.
const YARDSTICK: &str = "avg(psi_agent_vmi_contention_ratio{resource=\"cpu\"})";
/// Most that a query may cost, in yardsticks: about 1 s.
const MOST: f64 = 6.0;

/// Series of one query, and its CPU time in yardsticks. Prometheus evaluates a query on one CPU, so
/// this is also how long it takes. Each is the least of three runs, in turns: what else the
/// machine does makes both slower.
fn measured(prometheus: &Prometheus, query: &PanelQuery, end: i64) -> (Vec<Value>, f64) {
    let step = match query.panel["type"].as_str() {
        Some("annotation") => 60,
        _ => SECONDS / query.panel["maxDataPoints"].as_i64().unwrap_or(POINTS),
    };
    let over_time = |step| format!("&start={}&end={end}&step={step}", end - SECONDS);
    let when = if query.instant { format!("&time={end}") } else { over_time(step) };
    let mut series = Vec::new();
    let (mut seconds, mut yardstick_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let (_, used) = prometheus.measured(YARDSTICK, false, &over_time(SECONDS / POINTS));
        yardstick_s = used.min(yardstick_s);
        let (answer, used) = prometheus.measured(&query.text, query.instant, &when);
        (series, seconds) = (answer, used.min(seconds));
    }
    (series, seconds / yardstick_s)
}

/// Saves what the panels of a dashboard show, for `grafana/build --draw`.
fn save(name: &str, panels: &Value) {
    let folder = cache_dir().join("dashboards");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{name}.json")), panels.to_string()).unwrap();
    // It comes beside the pictures, where fixture::documents compares it.
    let made_with = format!("{} {}\n", env!("CARGO_PKG_VERSION"), basis(CpuSource::RunDelay));
    fs::write(folder.join("dashboards.txt"), made_with).unwrap();
    println!("results are in {}: grafana/build --draw draws them", folder.display());
}

#[test]
#[ignore = "needs Prometheus and promtool; takes 2 min"]
fn no_query_costs_much_more_than_an_average_of_2000_vms_on_60_nodes() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let end = i64::try_from(now).unwrap() / 60 * 60;
    let prometheus = simulated(end);
    let at = format!("&time={end}");
    for (query, expected) in
        [("count(psi_agent_node_score_ratio)", NODES - 1), ("count(psi_agent_vmi_info)", VMS)]
    {
        let (answer, _) = prometheus.measured(query, true, &at);
        assert_eq!(answer[0]["value"][1], expected.to_string(), "{query}");
    }
    for (name, node) in [("cluster", ".*"), ("node-and-vm", NODE)] {
        let variables = [
            ("$__rate_interval", "4m"),
            ("$__range", "6h"),
            ("$kubelet_job", "kubelet"),
            ("$job", "psi-agent"),
            ("$cluster", ".*"),
            ("$namespace", VM.0),
            ("$node", node),
            ("$vm", VM.1),
            ("$rule_psi", "0.4"),
        ];
        let mut panels = json!({});
        let mut slowest = (0.0, String::new());
        let mut faults = Vec::new();
        for query in queries(&dashboard(name), &variables) {
            let (series, cost) = measured(&prometheus, &query, end);
            let title = query.panel["title"].as_str().unwrap();
            if series.is_empty() || cost > MOST {
                faults.push(format!(
                    "{title}: {} series, {cost:.1} yardsticks: {}",
                    series.len(),
                    query.text
                ));
            }
            if cost > slowest.0 {
                slowest = (cost, format!("{title}, {}", query.letter));
            }
            let id = query.panel["id"]
                .as_str()
                .map_or_else(|| query.panel["id"].to_string(), str::to_owned);
            panels[&id][&query.letter] = series.into();
            // A table has one row for the series of all of its queries.
            let counts =
                panels[&id].as_object().unwrap().values().map(|it| it.as_array().unwrap().len());
            let count =
                if query.panel["type"] == "table" { counts.max() } else { Some(counts.sum()) };
            if count > Some(MOST_SERIES) {
                faults.push(format!("{title}: {count:?} series: {}", query.text));
            }
        }
        println!("{name}: slowest query {:.1} yardsticks: {}", slowest.0, slowest.1);
        if std::env::var_os("UPDATE_PICTURES").is_some() {
            save(name, &panels);
        }
        assert!(faults.is_empty(), "{name}: {faults:#?}");
    }
}
