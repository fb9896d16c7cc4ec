//! The Helm chart: the same objects as kustomize's, installed, upgraded and removed on a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::manifests::check_arguments;
use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::helm::{IMAGE, helm, helm_output};
use crate::support::prometheus_operator::install_definitions;
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);

/// Values of the chart, and the components of daemonset/components that do the same.
const EQUIVALENTS: [(&[&str], &[&str]); 11] = [
    (&[], &[]),
    (&["agent.label=true"], &["label"]),
    (&["agent.taintLevels={medium,high}"], &["taints"]),
    (&["agent.hostProc=false"], &["without-host-proc"]),
    (&["agent.seLinuxType=spc_t"], &["selinux"]),
    (&["openshift.enabled=true", "bridge.enabled=true"], &["bridge", "openshift"]),
    (&["openshift.enabled=true", "agent.hostProc=false"], &["openshift", "without-host-proc"]),
    (&["agent.markCandidate=true"], &["candidate"]),
    (&["bridge.enabled=true"], &["bridge"]),
    (&["monitoring.enabled=true"], &["monitoring"]),
    (
        &["auth.enabled=true", "monitoring.enabled=true", "agent.label=true"],
        &["label", "monitoring", "auth"],
    ),
];

/// The objects of a YAML stream, by kind and name.
fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let objects = objects.into_iter().filter(|object| !object.is_null());
    let named = objects.map(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        (format!("{} {name}", object["kind"].as_str().unwrap()), object)
    });
    named.collect()
}

fn rendered(values: &[&str]) -> BTreeMap<String, Value> {
    let values = [&[IMAGE], values].concat();
    objects(&helm_output("template", "psi-agent", &values, &[]))
}

#[test]
#[ignore = "needs what tests/helm/build and tests/kubernetes/build make"]
fn the_chart_and_kustomize_make_the_same_objects() {
    let cluster = Cluster::start("chart-rendered");
    for (values, components) in EQUIVALENTS {
        let mut expected = objects(&cluster.render_with(components));
        // `helm install --create-namespace` creates it.
        expected.remove("Namespace psi-agent").unwrap();
        let mut chart = rendered(values);
        for object in chart.values_mut() {
            // kustomize leaves out the default, and has none for a whole namespace.
            let pod = match object["kind"].as_str().unwrap() {
                "CronJob" => "/spec/jobTemplate/spec/template/spec/containers/0",
                _ => "/spec/template/spec/containers/0",
            };
            if let Some(container) = object.pointer_mut(pod) {
                let policy = container.as_object_mut().unwrap().remove("imagePullPolicy");
                assert_eq!(policy.unwrap(), "IfNotPresent");
            }
        }
        assert_eq!(
            chart.keys().collect::<BTreeSet<_>>(),
            expected.keys().collect::<BTreeSet<_>>(),
            "{values:?}"
        );
        for (name, object) in &chart {
            assert_eq!(object, &expected[name], "{values:?}: {name}");
        }
    }
}

#[test]
#[ignore = "needs what tests/helm/build makes"]
fn values_are_checked_and_a_missing_repository_is_one_clear_message() {
    let refused = |values: &[&str]| {
        let output = helm("template", "psi-agent", values, &[]);
        assert!(!output.status.success(), "{values:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused(&[]);
    assert!(error.contains("image.repository is empty"), "{error}");
    for (value, reason) in [
        ("agent.label=maybe", "boolean"),
        ("agent.taintLevels={low}", "taintLevels"),
        ("agent.family=pressure", "family"),
        ("agent.seLinuxType=spc", "seLinuxType"),
        ("networkPolicy.apiServerPorts={0}", "apiServerPorts"),
        ("image.digest=abc", "digest"),
    ] {
        let error = refused(&[IMAGE, value]);
        assert!(error.contains(reason), "{value}: {error}");
    }
    let lint = helm_output("lint", "psi-agent", &[IMAGE], &["--strict"]);
    assert!(lint.contains("0 chart(s) failed"), "{lint}");
}

#[test]
#[ignore = "needs what tests/helm/build makes"]
fn values_reach_the_objects() {
    let digest = format!("image.digest=sha256:{}", "0".repeat(64));
    let all = rendered(&[
        &digest,
        "image.pullSecrets={registry}",
        "agent.nodeSelector.runs=vms",
        "agent.extraArgs={--levels=20\\,40}",
        "networkPolicy.apiServerPorts=null",
        "monitoring.enabled=true",
        "monitoring.labels.release=kube-prometheus-stack",
        "monitoring.runbooks=https://wiki.example/runbooks",
        "dashboards.enabled=true",
        "dashboards.namespace=grafana",
        "resourceQuota.enabled=true",
    ]);
    let spec = &all["DaemonSet psi-agent"]["spec"]["template"]["spec"];
    let image = spec["containers"][0]["image"].as_str().unwrap();
    assert!(image.starts_with("psi-agent.invalid/set-your-registry@sha256:0000"), "{image}");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "registry");
    assert_eq!(spec["nodeSelector"]["runs"], "vms");
    check_arguments(&spec["containers"][0]);
    assert_eq!(all["NetworkPolicy psi-agent"]["spec"]["egress"], serde_json::json!([{}]));
    for name in ["PodMonitor psi-agent", "PodMonitor psi-agent-bridge", "PrometheusRule psi-agent"]
    {
        let labels = &all[name]["metadata"]["labels"];
        assert_eq!(labels["release"], "kube-prometheus-stack", "{name}");
    }
    let links = all["PrometheusRule psi-agent"].to_string();
    assert!(links.contains("\"https://wiki.example/runbooks#psiagentdown\""), "{links}");
    assert!(!links.contains(env!("CARGO_PKG_REPOSITORY")), "{links}");
    let quota = &all["ResourceQuota psi-agent"]["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!(quota["values"][0], spec["priorityClassName"]);
    let dashboards: Vec<_> =
        all.iter().filter(|(name, _)| name.starts_with("ConfigMap psi-agent-dashboard")).collect();
    assert_eq!(dashboards.len(), 2);
    for (name, map) in dashboards {
        assert_eq!(map["metadata"]["namespace"], "grafana", "{name}");
        let files = map["data"].as_object().unwrap();
        let dashboard: Value =
            serde_json::from_str(files.values().next().unwrap().as_str().unwrap()).unwrap();
        assert!(dashboard["panels"].as_array().unwrap().len() > 5, "{name}");
    }
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/{helm,prometheus-operator}/build make"]
fn helm_installs_upgrades_rolls_back_and_uninstalls_in_any_namespace() {
    let cluster = Cluster::start_whole("chart");
    cluster.add_node("node-a");
    install_definitions(&cluster);
    let kubeconfig = cluster.admin_kubeconfig();
    let namespace = "elsewhere";
    let client = ["--kubeconfig", kubeconfig.to_str().unwrap()];
    let run = |verb: &str, values: &[&str], more: &[&str]| {
        let values: Vec<&str> =
            if values.is_empty() { vec![] } else { [&[IMAGE], values].concat() };
        helm_output(verb, namespace, &values, &[&client[..], more].concat())
    };
    let arguments = || {
        let daemonset = cluster.get(&["daemonset", "psi-agent", "-n", namespace]);
        daemonset["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    run("install", &["agent.label=false"], &["--create-namespace"]);
    wait_for("an agent's pod on the node", MINUTE, || {
        let list = ["pods", "-n", namespace, "-l", "app.kubernetes.io/name=psi-agent"];
        let pods = cluster.get(&list);
        pods["items"].as_array().filter(|pods| pods.len() == 1).map(drop)
    });
    assert!(!arguments().contains("--label"));
    let all =
        ["agent.label=true", "bridge.enabled=true", "monitoring.enabled=true", "auth.enabled=true"];
    run("upgrade", &all, &[]);
    assert!(arguments().contains("--label"));
    for monitor in ["psi-agent", "psi-agent-bridge"] {
        cluster.get(&["podmonitor", monitor, "-n", namespace]);
    }
    // Cluster roles belong to one release.
    let second =
        helm("install", "second", &[IMAGE], &[&client[..], &["--create-namespace"]].concat());
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("invalid ownership metadata"), "{error}");
    // To the first revision.
    run("rollback", &[], &["1"]);
    assert!(!arguments().contains("--label"));
    // What an agent leaves on its Node.
    for (verb, key) in [
        ("annotate", "psi-agent.io/score=35"),
        ("label", "psi-agent.io/pressure=high"),
        ("taint", "psi-agent.io/pressure-high=true:PreferNoSchedule"),
    ] {
        cluster.kubectl(&[verb, "node", "node-a", key], "");
    }
    run("uninstall", &[], &["--wait"]);
    let reap = Command::new(BINARY).args(["reap", "--all"]).args(client).status().unwrap();
    assert!(reap.success());
    let mut node = cluster.get(&["node", "node-a"]);
    node["metadata"]["managedFields"].take();
    assert!(!node.to_string().contains("psi-agent"), "{node}");
    let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings,serviceaccounts,daemonsets,cronjobs,deployments,\
                 services,networkpolicies,secrets,podmonitors,prometheusrules";
    let left = cluster.kubectl(&["get", kinds, "-A", "-o", "name"], "");
    let left: Vec<&str> = left.lines().filter(|name| name.contains("psi-agent")).collect();
    assert_eq!(left, Vec::<&str>::new());
}
