//! docs/metrics.md against the program, in both directions: what is served stands there, with its
//! TYPE, HELP and labels, and nothing that is named anywhere is made by nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use psi_agent::bridge::table::Standing;
use psi_agent::cgroup_path::Place;
use psi_agent::clock::Moment;
use psi_agent::contract::{Key, Prefix};
use psi_agent::export::families::{FAMILIES, Source};
use psi_agent::export::score_series::write_score;
use psi_agent::health::bridge::BridgeHealth;
use psi_agent::identity::{Vm, Workload};
use psi_agent::kernel::cgroup_tree::{Cgroup, CgroupId};
use psi_agent::rates::{PressureRates, Ratio};
use psi_agent::sample::CpuSource;
use psi_agent::score::{ContainerScore, NodeScore, PerResource, Waited, basis};

use crate::support::agent::BINARY;
use crate::support::exposition::{Family, families, parse};

const DOCUMENT: &str = "docs/metrics.md";

/// What every series of a cgroup has, beside the labels that the document gives in braces.
const CGROUP_LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

/// Beginnings of names that are metrics wherever they stand.
const METRIC_PREFIXES: [&str; 9] = [
    "container_",
    "node_pressure_",
    "node_cpu_",
    "node_memory_",
    "psi_agent_",
    "process_",
    "kube_",
    "kubevirt_",
    "instance",
];

/// Words that begin like a metric and are none: a panel's way to say what it draws.
const NO_METRICS: [&str; 2] = ["container_psi", "instance"];

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn text(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// A score in which nothing is absent.
fn full_score() -> NodeScore {
    let half = Ratio::of(0.5, 1.0);
    let each = PerResource { cpu: half, memory: half, io: half };
    let waited = Waited { node_s: 1.0, own_limit_s: 1.0 };
    let path = format!("/kubepods/pod1/{:064x}", 1);
    let vm = Vm { name: "vm".into(), uid: "u-1".into(), awaits_handover: false };
    let container = ContainerScore {
        cgroup: Arc::new(Cgroup {
            id: CgroupId(1),
            place: Place::of_path(&path),
            path: path.into(),
            made_at_s: None,
        }),
        workload: Some(Arc::new(Workload {
            namespace: "vms".into(),
            pod: "virt-launcher-vm".into(),
            container: "compute".into(),
            name: "".into(),
            image: "".into(),
            cpu_request: None,
            vm: Some(Arc::new(vm)),
        })),
        usage: Some(1.0),
        pressure: PressureRates::default(),
        wait: PerResource::default(),
        contention: each,
        cpu_ready: half,
        waited: PerResource { cpu: waited, memory: waited, io: waited },
    };
    NodeScore {
        moment: Moment { at: Instant::now(), unix_ms: 0 },
        basis: basis(CpuSource::Psi),
        score: half,
        contention: each,
        latest: each,
        steal: half,
        cpu_utilization: half,
        memory_utilization: half,
        cpu_ready: half,
        waiting_vms: 1,
        containers: vec![container],
    }
}

/// What the program says of itself, as it is run, and of a score, with nothing absent.
fn own_exposition() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = String::new();
        write_score(&mut text, &full_score());
        let case = "tests/cases/pure-v2";
        let once = Command::new(BINARY)
            .args(["once", "--families", "pressure", "--proc-root"])
            .arg(path(case).join("proc"))
            .arg("--cgroup-root")
            .arg(path(case).join("sys/fs/cgroup"))
            .output()
            .unwrap();
        let served = String::from_utf8(once.stdout).unwrap();
        let own = served.find("# HELP process_").expect("the agent's own metrics come last");
        text + &served[own..]
    })
}

/// What the bridge says of itself.
fn exposition_of_the_bridge() -> String {
    let health = BridgeHealth::new(&Standing::ALL.map(Standing::word)).unwrap();
    String::from_utf8(health.render().unwrap()).unwrap()
}

/// Every family that the program can serve, with its own labels, from its own catalogue.
fn served() -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = FAMILIES
        .iter()
        .map(|family| {
            let labels = match family.source {
                Source::Node(_) => Vec::new(),
                Source::Cgroup { extra, .. } => {
                    extra.split_once('=').map(|(name, _)| name.to_owned()).into_iter().collect()
                }
                Source::Device(_) => vec!["device".to_owned()],
            };
            let (help, kind) = (family.help.to_owned(), family.kind.word().to_owned());
            (family.name.to_owned(), Family { help, kind, labels })
        })
        .collect();
    let mut own = families(own_exposition());
    for series in parse(own_exposition()).iter().filter(|series| series.name.ends_with("_count")) {
        // The labels of a histogram are those of its parts.
        let family = own.get_mut(series.name.trim_end_matches("_count"));
        if let Some(family) = family.filter(|family| family.kind == "histogram") {
            family.labels = series.labels.keys().cloned().collect();
        }
    }
    all.extend(own);
    for (name, family) in families(&exposition_of_the_bridge()) {
        // What both have is the same thing.
        let before = all.insert(name.clone(), family.clone());
        assert!(before.is_none_or(|before| before == family), "{name}");
    }
    all
}

/// The rows of the tables whose first cell is code: that cell, and the others.
fn rows(document: &str) -> Vec<(String, Vec<String>)> {
    let cells = |line: &str| -> Option<(String, Vec<String>)> {
        let inner = line.strip_prefix("| `")?.strip_suffix(" |")?;
        let mut cells = inner.split(" | ").map(str::to_owned);
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.collect()))
    };
    document.lines().filter_map(cells).collect()
}

/// What the document says of families: rows of five cells.
fn documented(document: &str) -> BTreeMap<String, Family> {
    let mut all = BTreeMap::new();
    for (series, cells) in rows(document) {
        let [kind, help, _from, _absent] = &cells[..] else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let mut labels: Vec<String> = labels.map(str::to_owned).collect();
        labels.sort();
        let family = Family { help: help.clone(), kind: kind.clone(), labels };
        assert!(all.insert(name.to_owned(), family).is_none(), "{name} stands twice");
    }
    all
}

/// The section below a heading.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, rest) = document.split_once(&format!("\n## {heading}\n")).expect(heading);
    rest.split("\n## ").next().unwrap()
}

fn names_in(document: &str, heading: &str) -> BTreeSet<String> {
    rows(section(document, heading)).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn catalogue_is_documented_with_type_help_and_labels() {
    let (served, documented) = (served(), documented(&text(DOCUMENT)));
    assert!(served.len() > 60, "the catalogue is not the program's: {served:?}");
    for (name, family) in &served {
        assert_eq!(documented.get(name), Some(family), "{DOCUMENT}: {name}");
    }
    let unknown: Vec<&String> = documented.keys().filter(|it| !served.contains_key(*it)).collect();
    assert!(unknown.is_empty(), "{DOCUMENT} has what nobody serves: {unknown:?}");
}

#[test]
fn catalogue_of_the_goldens_has_the_documented_labels() {
    let documented = documented(&text(DOCUMENT));
    let mut seen = 0;
    for case in fs::read_dir(path("tests/cases")).unwrap().map(|case| case.unwrap().path()) {
        let Ok(expected) = fs::read_to_string(case.join("expected.prom")) else { continue };
        for (name, family) in families(&expected) {
            let mut labels = documented[&name].labels.clone();
            if name.starts_with("container_") {
                labels.extend(CGROUP_LABELS.map(str::to_owned));
            }
            labels.sort();
            assert_eq!(family.labels, labels, "{}: {name}", case.display());
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} families in the goldens");
}

#[test]
fn every_value_of_a_closed_label_is_documented() {
    let document = text(DOCUMENT);
    let line_of = |name: &str| {
        let begin = format!("| `{name}{{");
        document.lines().find(|line| line.starts_with(&begin)).expect("a row").to_owned()
    };
    for (name, label) in [
        ("psi_agent_read_errors_total", "kind"),
        ("psi_agent_publishes_total", "result"),
        ("psi_agent_sample_duration_seconds", "reason"),
        ("psi_agent_vmi_wait_seconds_total", "cause"),
        ("psi_agent_bridge_nodes", "standing"),
        ("psi_agent_bridge_requests_total", "form"),
        ("psi_agent_bridge_requests_total", "result"),
    ] {
        let series = parse(&format!("{}{}", own_exposition(), exposition_of_the_bridge()));
        let of_family = series.iter().filter(|series| series.name.starts_with(name));
        let values: BTreeSet<String> =
            of_family.map(|series| series.labels[label].clone()).collect();
        assert!(values.len() >= 2, "{name}: {values:?}");
        for value in values {
            assert!(line_of(name).contains(&format!("`{value}`")), "{name}: {label}={value}");
        }
    }
}

#[test]
fn catalogue_of_keys_is_documented() {
    let prefix = Prefix::default();
    let known = Key::ANNOTATIONS.into_iter().chain([Key::Pressure]).chain(Key::TAINTS);
    let known: BTreeSet<String> = known.map(|key| key.of(&prefix)).collect();
    assert_eq!(names_in(&text(DOCUMENT), "On the Node"), known);
    for (file, text) in project_files() {
        for (at, _) in text.match_indices("psi-agent.io/") {
            let key = text[at..].split(|c: char| !(c.is_ascii_alphanumeric() || "-./".contains(c)));
            let key = key.into_iter().next().unwrap().trim_end_matches(['.', '/']);
            let is_prefix = key == "psi-agent.io";
            assert!(is_prefix || known.contains(key), "{}: {key} is no key", file.display());
        }
    }
}

fn list(value: &serde_json::Value) -> &[serde_json::Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The names of all rules of a kind: `record` or `alert`.
fn rules(kind: &str) -> BTreeSet<String> {
    let rules: serde_json::Value =
        serde_saphyr::from_str(&text("daemonset/prometheus/rules.yaml")).unwrap();
    let rules = list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"]));
    rules.filter_map(|rule| Some(rule.get(kind)?.as_str()?.to_owned())).collect()
}

#[test]
fn every_rule_and_alert_is_documented() {
    let (recorded, alerts) = (rules("record"), rules("alert"));
    assert!(!recorded.is_empty() && !alerts.is_empty());
    let all: BTreeSet<String> = recorded.union(&alerts).cloned().collect();
    assert_eq!(names_in(&text(DOCUMENT), "Rules for Prometheus"), all);
}

/// Documents, manifests, rules and dashboards: all that names metrics.
fn project_files() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                walk(&entry, files);
            } else {
                files.push(entry);
            }
        }
    }
    let mut files = vec![path("README.md"), path("CHANGELOG.md"), path("CONTRIBUTING.md")];
    for folder in ["docs", "daemonset", "grafana/dashboards"] {
        walk(&path(folder), &mut files);
    }
    files.push(path("grafana/README.md"));
    files.retain(|file| {
        let kind = file.extension().and_then(|kind| kind.to_str());
        kind.is_some_and(|kind| ["md", "yaml", "json"].contains(&kind))
    });
    assert!(files.len() > 20, "{files:?}");
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect()
}

/// Words that are names of metrics by how they begin. One that ends in `_` stands for all that
/// begin with it.
fn metrics_named(text: &str) -> BTreeSet<String> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
    let mut found = BTreeSet::new();
    for word in text.split(|c: char| !(is_inner(c) || c.is_ascii_uppercase() || "/.-".contains(c)))
    {
        // A Rust path, a file or a word in a sentence that ends here.
        let word = word.trim_end_matches([':', '.']);
        let is_name = word.chars().all(is_inner) && !word.contains("::");
        if is_name && METRIC_PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
            found.insert(word.to_owned());
        }
    }
    found
}

#[test]
fn every_metric_that_is_named_is_made_by_somebody() {
    let served = served();
    let foreign = names_in(&text(DOCUMENT), "Metrics of others");
    let mut known: BTreeSet<String> = served.keys().cloned().collect();
    for (name, _) in served.iter().filter(|(_, family)| family.kind == "histogram") {
        known.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
    }
    known.extend(rules("record"));
    known.extend(foreign.iter().cloned());
    let mut used = BTreeSet::new();
    for (file, text) in project_files() {
        for name in metrics_named(&text) {
            let is_known = if name.ends_with('_') {
                known.iter().any(|other| other.starts_with(&name))
            } else {
                known.contains(&name) || NO_METRICS.contains(&&*name)
            };
            assert!(is_known, "{}: nobody makes {name}", file.display());
            if !file.ends_with(DOCUMENT) {
                used.insert(name);
            }
        }
        used.extend(text.contains("up{job=").then(|| "up".to_owned()));
    }
    let unused: Vec<&String> = foreign.difference(&used).collect();
    assert!(unused.is_empty(), "{DOCUMENT}: nobody asks for {unused:?}");
}

#[test]
fn metrics_are_found_in_a_text() {
    let text = "See `psi_agent_node_score`, psi_agent::contract, __meta_pod_container_name and \
                container_fs_{reads,writes}: rate(instance:a_b:max[5m]).";
    let expected = ["container_fs_", "instance:a_b:max", "psi_agent_node_score"];
    assert_eq!(metrics_named(text), expected.map(str::to_owned).into());
}
