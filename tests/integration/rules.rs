//! Prometheus' rules: what they say is proven by promtool (`tests/rules`), and here, that none is
//! without a test, a runbook or the metrics that it is made from.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::prometheus::{
    Prometheus, promtool, promtool_in_cluster, running_agent, scrape_by_hand,
};
use crate::support::wait_for;

/// Metrics that are not the agent's.
const FOREIGN: [&str; 2] = ["up", "kube_node_labels"];
/// What metrics and labels of others are compared with.
const FOREIGN_WORDS: [&str; 2] = ["psi-agent", "true"];
/// Alerts about the cluster, without a node to name.
const WITHOUT_NODE: [&str; 1] = ["PsiAgentNodesUnknown"];

const RULES: &str = "daemonset/prometheus/rules.yaml";
const SCRAPE: &str = "daemonset/prometheus/scrape.yaml";
const SCRAPE_AUTH: &str = "daemonset/prometheus/scrape-auth.yaml";
const POD_MONITOR: &str = "daemonset/components/monitoring/podmonitor.yaml";
const PROMETHEUS_RULE: &str = "daemonset/components/monitoring/prometheusrule.yaml";

/// What stands above the groups in [`PROMETHEUS_RULE`].
const PROMETHEUS_RULE_HEAD: &str = "\
# ../../prometheus/rules.yaml for the Prometheus operator; change it there, and write this anew by
# `UPDATE_GOLDEN=1 cargo test rules`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: psi-agent
  namespace: psi-agent
  labels:
    app.kubernetes.io/name: psi-agent
spec:
";

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn text(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

fn yaml(relative: &str) -> Value {
    serde_saphyr::from_str(&text(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key}: {value}"))
}

/// All rules, in the order in which they stand.
fn rules() -> Vec<Value> {
    let rules = yaml(RULES);
    list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"]).to_vec()).collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule.get("alert").is_some()).collect()
}

fn recorded() -> BTreeSet<String> {
    let rules = rules().into_iter();
    rules.filter_map(|rule| Some(rule.get("record")?.as_str()?.to_owned())).collect()
}

/// The files of promtool's tests.
fn test_files() -> Vec<PathBuf> {
    let files = fs::read_dir(path("tests/rules")).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

/// All of promtool's tests.
fn tests() -> Vec<Value> {
    let files = test_files().into_iter();
    let files = files.map(|file| fs::read_to_string(file).unwrap());
    let files = files.map(|text| serde_saphyr::from_str::<Value>(&text).unwrap());
    files.flat_map(|file| list(&file["tests"]).to_vec()).collect()
}

#[test]
#[ignore = "needs promtool (Debian's package prometheus, and tests/prometheus/build)"]
fn promtool_proves_the_rules_and_how_agents_are_found() {
    for file in [SCRAPE, SCRAPE_AUTH] {
        // The files that it names are in the pod of that Prometheus.
        promtool_in_cluster(&["check", "config", "--syntax-only", file]);
    }
    promtool(&["check", "rules", RULES]);
    for file in test_files() {
        promtool(&["test", "rules", file.to_str().unwrap()]);
    }
}

#[test]
#[ignore = "needs promtool (Debian's package prometheus)"]
fn promtool_accepts_the_documented_examples() {
    let document = text("docs/operations.md");
    let blocks = document.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let examples: Vec<&str> = blocks.filter(|block| block.starts_with("scrape_configs:")).collect();
    assert_eq!(examples.len(), 2);
    for (example, number) in examples.iter().zip(0..) {
        let name = format!("psi-agent-{}-example-{number}.yaml", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, example).unwrap();
        promtool(&["check", "config", file.to_str().unwrap()]);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn the_operators_rules_are_the_same() {
    let source = text(RULES);
    let (_, groups) = source.split_once("groups:\n").unwrap();
    let indented = groups
        .lines()
        .map(|line| if line.is_empty() { "\n".into() } else { format!("  {line}\n") });
    let expected = format!("{PROMETHEUS_RULE_HEAD}  groups:\n{}", indented.collect::<String>());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path(PROMETHEUS_RULE), &expected).unwrap();
    }
    let update = "`UPDATE_GOLDEN=1 cargo test rules` writes it anew";
    assert!(text(PROMETHEUS_RULE) == expected, "{PROMETHEUS_RULE} is not {RULES}: {update}");
    assert_eq!(yaml(PROMETHEUS_RULE)["spec"]["groups"], yaml(RULES)["groups"]);
}

#[test]
fn the_operator_scrapes_as_prometheus_by_itself_does() {
    let (scrape, monitor) = (yaml(SCRAPE), yaml(POD_MONITOR));
    let scrape = &scrape["scrape_configs"][0];
    let (selector, endpoint) =
        (&monitor["spec"]["selector"], &monitor["spec"]["podMetricsEndpoints"][0]);
    let (name, port) = (&selector["matchLabels"]["app.kubernetes.io/name"], word(endpoint, "port"));
    assert_eq!(scrape["relabel_configs"][0]["regex"], format!("{};{port}", name.as_str().unwrap()));
    assert_eq!(
        (&scrape["job_name"], word(&monitor["spec"], "jobLabel")),
        (name, "app.kubernetes.io/name")
    );
    assert_eq!((&scrape["honor_labels"], &endpoint["honorLabels"]), (&true.into(), &true.into()));
    let to_instance = |step: &&Value| {
        step.get("target_label").or(step.get("targetLabel")).is_some_and(|to| to == "instance")
    };
    let by_hand = list(&scrape["relabel_configs"]).iter().find(to_instance).unwrap();
    let by_operator = list(&endpoint["relabelings"]).iter().find(to_instance).unwrap();
    assert_eq!(by_hand["source_labels"], by_operator["sourceLabels"]);
}

#[test]
fn every_alert_names_the_node_and_has_a_runbook() {
    let runbooks = text("docs/runbooks.md");
    let headings = runbooks.lines().filter_map(|line| line.strip_prefix("## "));
    let mut sections: BTreeSet<&str> = headings.collect();
    for alert in alerts() {
        let (name, annotations) = (word(&alert, "alert"), &alert["annotations"]);
        assert!(["info", "warning", "critical"].contains(&word(&alert["labels"], "severity")));
        for key in ["summary", "description"] {
            let names_node = word(annotations, key).contains("{{ $labels.instance }}");
            assert_eq!(names_node, !WITHOUT_NODE.contains(&name), "{name}: {key}");
        }
        let link = format!("docs/runbooks.md#{}", name.to_lowercase());
        assert_eq!(word(annotations, "runbook_url"), link);
        assert!(sections.remove(name), "docs/runbooks.md has no section on {name}");
    }
    assert!(sections.is_empty(), "sections on no alert: {sections:?}");
}

#[test]
fn every_rule_has_a_test_of_promtools() {
    let tests = tests();
    let expressions = tests.iter().flat_map(|test| list(&test["promql_expr_test"]));
    let asked: BTreeSet<String> =
        expressions.flat_map(|test| metrics_of(word(test, "expr"))).collect();
    for name in recorded() {
        assert!(asked.contains(&name), "no test asks for {name}");
    }
    for alert in alerts() {
        let name = word(&alert, "alert");
        let of_alert = tests.iter().flat_map(|test| list(&test["alert_rule_test"]));
        let fires = of_alert.filter(|test| word(test, "alertname") == name);
        let fires: BTreeSet<bool> =
            fires.map(|test| !list(&test["exp_alerts"]).is_empty()).collect();
        assert_eq!(fires.len(), 2, "{name} is to be tested firing and not firing");
    }
}

#[test]
fn every_metric_comes_from_the_agent_a_rule_before_or_a_known_place() {
    let code = source_code(&path("src"));
    let emitted = |name: &str| code.contains(&format!("\"{name}\""));
    let mut known: BTreeSet<String> = FOREIGN.map(str::to_owned).into();
    for rule in rules() {
        for metric in metrics_of(word(&rule, "expr")) {
            assert!(known.contains(&metric) || emitted(&metric), "nobody makes {metric}");
        }
        for word in compared_words(word(&rule, "expr")) {
            let known = FOREIGN_WORDS.contains(&&*word) || emitted(&word);
            assert!(known, "{word} is no value of a label");
        }
        known.extend(rule.get("record").and_then(Value::as_str).map(str::to_owned));
    }
}

#[test]
fn metrics_are_found_in_an_expression() {
    let expression = "max by (instance) (rate(a{b=\"c|d\"}[5m])) >= 0.3 unless on (e) i:f:g * 2";
    assert_eq!(metrics_of(expression), ["a", "i:f:g"]);
    assert_eq!(compared_words(expression), ["c", "d"]);
}

/// Names of the metrics in an expression: what is neither a function, an operator, a label nor text.
fn metrics_of(expression: &str) -> Vec<String> {
    const OPERATORS: [&str; 3] = ["and", "or", "unless"];
    const BEFORE_LABELS: [&str; 4] = ["by", "on", "group_left", "without"];
    let mut metrics = Vec::new();
    let mut rest = without(&without(&without(expression, '"', '"'), '{', '}'), '[', ']');
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphanumeric()) {
        let end = |c: char| !(c.is_ascii_alphanumeric() || "_:.".contains(c));
        let length = rest[at..].find(end).unwrap_or(rest.len() - at);
        let (word, after) = rest[at..].split_at(length);
        let labels = BEFORE_LABELS.contains(&word);
        let is_call = ["(", "by ("].iter().any(|next| after.trim_start().starts_with(next));
        if !labels && !is_call && !OPERATORS.contains(&word) && word.parse::<f64>().is_err() {
            metrics.push(word.to_owned());
        }
        rest = match after.split_once(')') {
            Some((_, after)) if labels => after.to_owned(),
            _ => after.to_owned(),
        };
    }
    metrics
}

/// A text without what stands between two signs, and the signs.
fn without(text: &str, open: char, close: char) -> String {
    let mut inside = false;
    let kept = text.chars().filter(|&c| {
        let was_inside = inside;
        inside = if inside { c != close } else { c == open };
        !was_inside && !inside
    });
    kept.collect()
}

/// Values that labels are compared with in an expression, each alternative by itself.
fn compared_words(expression: &str) -> Vec<String> {
    let matchers = expression.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let quoted = matchers.flat_map(|matchers| matchers.split('"').skip(1).step_by(2));
    quoted.flat_map(|words| words.split('|')).map(str::to_owned).collect()
}

fn source_code(folder: &Path) -> String {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let texts = files.map(|file| {
        if file.is_dir() { source_code(&file) } else { fs::read_to_string(&file).unwrap() }
    });
    texts.collect()
}

/// A Prometheus with the rules, to which four pods are told at one address.
fn configuration(address: &str) -> Value {
    let [mut ended, mut port, mut pod] =
        ["evicted", "other-port", "other-pod"].map(|node| running_agent(node, address));
    ended["labels"]["__meta_kubernetes_pod_phase"] = "Failed".into();
    port["labels"]["__meta_kubernetes_pod_container_port_name"] = "probes".into();
    pod["labels"]["__meta_kubernetes_pod_label_app_kubernetes_io_name"] = "somebody".into();
    let mut config = scrape_by_hand(&[running_agent("node-a", address), ended, port, pod]);
    config["rule_files"] = serde_json::json!([path(RULES)]);
    config
}

#[test]
fn behind_closed_doors_the_same_is_scraped() {
    let mut closed = yaml(SCRAPE_AUTH);
    let job = closed["scrape_configs"][0].as_object_mut().unwrap();
    for more in ["scheme", "tls_config", "authorization"] {
        assert!(job.remove(more).is_some(), "{more}");
    }
    assert_eq!(closed, yaml(SCRAPE));
}

#[test]
#[ignore = "needs Prometheus (Debian's package prometheus); takes 10 s"]
fn prometheus_finds_the_agent_and_names_its_node() {
    let case = path("tests/cases/virt-launcher");
    let root = |name: &str| case.join(name).to_str().unwrap().to_owned();
    let agent = Agent::start(&[
        "--proc-root",
        &root("proc"),
        "--cgroup-root",
        &root("sys/fs/cgroup"),
        "--pods-file",
        &root("pods.json"),
    ]);
    let prometheus = Prometheus::start_with(&configuration(&agent.address).to_string());
    let seconds = std::time::Duration::from_secs;
    wait_for("a target", seconds(30), || {
        prometheus.query("up{job=\"psi-agent\",instance=\"node-a\"} == 1")
    });
    assert_eq!(prometheus.query("count(up)"), Some(1.0));
    // A container's series has its own pod, and the node's the node.
    let of_vm = "count(container_pressure_cpu_waiting_seconds_total{instance=\"node-a\",container=\"compute\",pod=~\"virt-launcher-.*\"}) > 0";
    wait_for("a VM's series", seconds(30), || prometheus.query(of_vm));
    // Rules are evaluated without an error, and alerts are pending where they should be.
    wait_for("an alert", seconds(60), || {
        prometheus.query("ALERTS{alertname=\"PsiAgentNoScore\",instance=\"node-a\"}")
    });
    assert_eq!(prometheus.own_counter("prometheus_rule_evaluation_failures_total"), 0.0);
}
