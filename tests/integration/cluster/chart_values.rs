//! Each value of the Helm chart reaches the objects, and what the chart renders is valid.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::chart::{objects, rendered};
use super::manifests::check_arguments;
use crate::fixture::chart_files;
use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::helm::{IMAGE, helm_output};
use crate::support::prometheus::{debians_promtool, promtool};
use crate::support::prometheus_operator::install_definitions;

const POD: &str = "/spec/template/spec";
const JOB: &str = "/spec/jobTemplate/spec/template/spec";

/// Values, an object or an alert, a path in it, and what is there.
fn cases() -> impl Iterator<Item = [&'static str; 4]> {
    let lines = include_str!("chart_values.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        cells.try_into().unwrap_or_else(|_| panic!("not four cells: {line}"))
    })
}

/// Fails unless a path of an object has what is expected.
fn check(values: &str, object: Option<&Value>, path: &str, expected: &str) {
    let path = path.replacen("POD", POD, 1).replacen("JOB", JOB, 1);
    let found = object.and_then(|object| object.pointer(&path));
    if expected == "absent" {
        assert_eq!(found, None, "{values}");
        return;
    }
    let expected = expected.replace("VERSION", env!("CARGO_PKG_VERSION"));
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let found = found.unwrap_or_else(|| panic!("{values}: nothing at {path}"));
    if path.ends_with("/args") {
        assert!(found.as_array().unwrap().contains(&expected), "{values}: {found}");
    } else {
        assert_eq!(found, &expected, "{values}: {path}");
    }
}

fn alerts(objects: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let groups = objects["PrometheusRule psi-agent"]["spec"]["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let alerts = rules.filter_map(|rule| Some((rule["alert"].as_str()?.to_owned(), rule.clone())));
    alerts.collect()
}

#[test]
#[ignore = "needs what tests/helm/build makes"]
fn every_value_reaches_the_objects() {
    for [values, object, path, expected] in cases() {
        let objects = rendered(&values.split(' ').collect::<Vec<_>>());
        let object = match object.starts_with("PsiAgent") {
            true => alerts(&objects).remove(object),
            false => objects.get(object).cloned(),
        };
        check(values, object.as_ref(), path, expected);
    }
    let tested: String = cases().map(|[values, ..]| format!("{values} ")).collect();
    chart_files::expect_all_values(&tested);
}

#[test]
#[ignore = "needs what tests/helm/build makes, and promtool"]
fn rules_with_other_thresholds_are_valid_and_keep_their_thresholds_apart() {
    let values = [
        "monitoring.enabled=true",
        "monitoring.cpuReadyThreshold=0.2",
        "monitoring.alerts.PsiAgentDown.for=1h",
        "monitoring.dashboardUrl=https://grafana.example",
    ];
    let objects = rendered(&values);
    let spec = &objects["PrometheusRule psi-agent"]["spec"];
    let text = spec.to_string();
    assert!(text.contains("[10m])) >= 0.2") && !text.contains(">= 0.05"), "{text}");
    let folder = Folder::new("chart-rules");
    fs::write(folder.join("rules.json"), text).unwrap();
    promtool(&debians_promtool(), &["check", "rules", &folder.path("rules.json")]);
    // Labels that the rules select by stay.
    let others = rendered(&["monitoring.enabled=true", "fullnameOverride=b-psi-agent"]);
    let label = &others["DaemonSet b-psi-agent"]["spec"]["template"]["metadata"]["labels"];
    assert_eq!(label["app.kubernetes.io/name"], "psi-agent");
}

/// Sets of values whose objects the API server validates.
const SETS: &str = include_str!("../../chart/sets.txt");

#[test]
#[ignore = "needs etcd, a kube-apiserver and what tests/{helm,prometheus-operator,openshift}/build make"]
fn the_api_server_accepts_what_the_chart_renders() {
    let cluster = Cluster::start("chart-values");
    install_definitions(&cluster);
    for namespace in ["psi-agent", "psi-agent-restricted", "grafana"] {
        cluster.add_namespace(namespace);
    }
    for values in SETS.lines().filter(|line| !line.starts_with('#')) {
        let values: Vec<&str> = values.split_whitespace().chain([IMAGE]).collect();
        let of = |version: &str| helm_output("template", "psi-agent", &values, &[version]);
        let yaml = of("--kube-version=1.37");
        assert_eq!(yaml, of("--kube-version=1.32"), "{values:?}");
        // Pods of hooks name accounts that are not there.
        let no_pods = objects(&yaml).into_values().filter(|object| object["kind"] != "Pod");
        let list =
            json!({"apiVersion": "v1", "kind": "List", "items": no_pods.collect::<Vec<_>>()});
        let apply = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        let applied = cluster.kubectl(&apply, &list.to_string());
        assert!(applied.lines().count() > 10, "{applied}");
        for object in objects(&yaml).values() {
            for pod in [POD, JOB, "/spec"] {
                let Some(containers) = object.pointer(&format!("{pod}/containers")) else {
                    continue;
                };
                check_arguments(&containers[0]);
            }
        }
    }
}
