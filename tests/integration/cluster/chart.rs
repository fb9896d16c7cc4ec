//! The Helm chart: the same objects as kustomize's, installed, upgraded and removed on a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::helm::{IMAGE, REUSE, helm, helm_output, last_release};
use crate::support::prometheus_operator::install_definitions;
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);
/// Another one than that of the manifests.
const NAMESPACE: &str = "elsewhere";

/// Values that add objects.
const ALL: [&str; 7] = [
    "agent.label=true",
    "agent.markCandidate=true",
    "bridge.enabled=true",
    "planner.enabled=true",
    "monitoring.enabled=true",
    "dashboards.enabled=true",
    "auth.enabled=true",
];

/// Values of the chart, and the components of daemonset/components that do the same.
const EQUIVALENTS: [(&[&str], &[&str]); 12] = [
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
        &["restricted.enabled=true", "bridge.enabled=true", "monitoring.enabled=true"],
        &["bridge", "monitoring", "restricted"],
    ),
    (
        &["auth.enabled=true", "monitoring.enabled=true", "agent.label=true"],
        &["label", "monitoring", "auth"],
    ),
];

/// The objects of a YAML stream, by kind and name.
pub(super) fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let objects = objects.into_iter().filter(|object| !object.is_null());
    let named = objects.map(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        (format!("{} {name}", object["kind"].as_str().unwrap()), object)
    });
    named.collect()
}

pub(super) fn rendered(values: &[&str]) -> BTreeMap<String, Value> {
    let values = [&[IMAGE], values].concat();
    objects(&helm_output("template", "psi-agent", &values, &["--kube-version=1.32"]))
}

fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"].get("helm.sh/hook").is_some()
}

/// The chart has more labels than kustomize's objects: they become the same where all of these are there.
fn check_labels(chart: &mut Value, expected: &Value) {
    for metadata in
        ["/metadata", "/spec/template/metadata", "/spec/jobTemplate/spec/template/metadata"]
    {
        let Some(metadata_of_chart) = chart.pointer_mut(metadata) else { continue };
        let Some(labels) = metadata_of_chart["labels"].as_object_mut() else { continue };
        assert_eq!(labels["app.kubernetes.io/instance"], "psi-agent");
        assert_eq!(labels["app.kubernetes.io/part-of"], "psi-agent");
        if metadata == "/metadata" {
            assert_eq!(labels["helm.sh/chart"], concat!("psi-agent-", env!("CARGO_PKG_VERSION")));
            assert_eq!(labels["app.kubernetes.io/version"], env!("CARGO_PKG_VERSION"));
            assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm");
            assert!(labels["app.kubernetes.io/name"].as_str().unwrap().starts_with("psi-agent"));
        }
        let expected = expected.pointer(metadata).and_then(|it| it["labels"].as_object());
        labels.retain(|key, _| expected.is_some_and(|labels| labels.contains_key(key)));
        if labels.is_empty() {
            metadata_of_chart.as_object_mut().unwrap().remove("labels");
        }
    }
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
        chart.retain(|_, object| !is_hook(object));
        assert_eq!(
            chart.keys().collect::<BTreeSet<_>>(),
            expected.keys().collect::<BTreeSet<_>>(),
            "{values:?}"
        );
        for (name, object) in &mut chart {
            // kustomize leaves out the default, and has none for a whole namespace.
            let pod = match object["kind"].as_str().unwrap() {
                "CronJob" => "/spec/jobTemplate/spec/template/spec/containers/0",
                _ => "/spec/template/spec/containers/0",
            };
            if let Some(container) = object.pointer_mut(pod) {
                let policy = container.as_object_mut().unwrap().remove("imagePullPolicy");
                assert_eq!(policy.unwrap(), "IfNotPresent");
            }
            check_labels(object, &expected[name]);
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
        ("nameOverride=vms", "nameOverride"),
        ("fullnameOverride=psi-agent-2", "fullnameOverride"),
        ("monitoring.monitor=all", "monitor"),
        ("monitoring.alerts.Down.for=1m", "Down"),
        ("monitoring.dashboardUrl=grafana", "dashboardUrl"),
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
#[ignore = "needs etcd, a control plane and what tests/{helm,prometheus-operator}/build make"]
fn helm_installs_upgrades_rolls_back_and_uninstalls_in_any_namespace() {
    let cluster = Cluster::start_whole("chart");
    cluster.add_node("node-a");
    install_definitions(&cluster);
    let kubeconfig = cluster.admin_kubeconfig();
    let namespace = NAMESPACE;
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
    let own = "--log-level=debug";
    let values = [IMAGE, &format!("agent.extraArgs={{{own}}}")];
    last_release("install", namespace, &values, &[&client[..], &["--create-namespace"]].concat());
    wait_for("an agent's pod on the node", MINUTE, || {
        let list = ["pods", "-n", namespace, "-l", "app.kubernetes.io/name=psi-agent"];
        let pods = cluster.get(&list);
        pods["items"].as_array().filter(|pods| pods.len() == 1).map(drop)
    });
    assert!(arguments().contains(own) && !arguments().contains("--label"));
    run("upgrade", &ALL, &[REUSE]);
    assert!(arguments().contains(own) && arguments().contains("--label"));
    for monitor in ["psi-agent", "psi-agent-bridge"] {
        cluster.get(&["podmonitor", monitor, "-n", namespace]);
    }
    // Cluster roles belong to one release.
    let second =
        helm("install", "second", &[IMAGE], &[&client[..], &["--create-namespace"]].concat());
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("invalid ownership metadata"), "{error}");
    thread::scope(|scope| {
        let test = scope.spawn(|| run("test", &[], &[]));
        run_test(&cluster);
        test.join().unwrap();
    });
    // To the last release, and to this chart again.
    run("rollback", &[], &["1"]);
    assert!(arguments().contains(own) && !arguments().contains("--label"));
    assert_eq!(cluster.kubectl(&["get", "podmonitors", "-A", "-o", "name"], ""), "");
    run("rollback", &[], &["2"]);
    assert!(arguments().contains("--label"));
    // What an agent leaves on its Node, besides the score.
    for (verb, key) in [
        ("label", "psi-agent.io/pressure=high"),
        ("taint", "psi-agent.io/pressure-high=true:PreferNoSchedule"),
    ] {
        cluster.kubectl(&[verb, "node", "node-a", key], "");
    }
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| run("uninstall", &[], &[]));
        let pod = hooks_pod(&cluster, "psi-agent-reap-cleanup");
        assert!(!uninstall.is_finished());
        run_cleanup(&cluster, &pod);
        uninstall.join().unwrap();
    });
    check_that_nothing_is_left(&cluster);
}

fn check_that_nothing_is_left(cluster: &Cluster) {
    let mut node = cluster.get(&["node", "node-a"]);
    node["metadata"]["managedFields"].take();
    assert!(!node.to_string().contains("psi-agent"), "{node}");
    let kinds = "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings,serviceaccounts,daemonsets,cronjobs,jobs,\
                 deployments,services,networkpolicies,secrets,configmaps,leases,podmonitors,\
                 prometheusrules";
    wait_for("nothing is left", MINUTE, || {
        let left = cluster.kubectl(&["get", kinds, "-A", "-o", "name"], "");
        let left: Vec<&str> = left.lines().filter(|name| name.contains("psi-agent")).collect();
        left.is_empty().then_some(())
    });
}

/// The test fails before there is a score, and ends once each score is fresh.
fn run_test(cluster: &Cluster) {
    let pod = hooks_pod(cluster, "psi-agent-test");
    let failed = container(cluster, &pod).output().unwrap();
    let error = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && error.contains("no node has a score"), "{error}");
    let now = jiff::Timestamp::now();
    for annotation in [
        "psi-agent.io/score=35".to_owned(),
        "psi-agent.io/basis=psi/1".to_owned(),
        format!("psi-agent.io/observed-at={now:.0}"),
    ] {
        cluster.kubectl(&["annotate", "node", "node-a", "--overwrite", &annotation], "");
    }
    let passed = container(cluster, &pod).output().unwrap();
    assert!(passed.status.success(), "{}", String::from_utf8_lossy(&passed.stderr));
    end(cluster, &pod);
}

/// The pod of a hook, once there is one.
fn hooks_pod(cluster: &Cluster, label: &str) -> Value {
    wait_for(label, MINUTE, || {
        let label = format!("app.kubernetes.io/name={label}");
        let pods = cluster.get(&["pods", "-n", NAMESPACE, "-l", &label]);
        pods["items"].as_array().unwrap().first().cloned()
    })
}

/// A container of a pod, as a command in this test, with the account of that pod.
fn container(cluster: &Cluster, pod: &Value) -> Command {
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let create = ["create", "token", account, "-n", NAMESPACE];
    let kubeconfig = cluster.write_kubeconfig(account, cluster.kubectl(&create, "").trim());
    let mut command = Command::new(BINARY);
    for argument in pod["spec"]["containers"][0]["args"].as_array().unwrap() {
        command.arg(argument.as_str().unwrap());
    }
    command.arg("--kubeconfig").arg(kubeconfig).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends a hook's pod as its kubelet would.
fn end(cluster: &Cluster, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    cluster.set_status(NAMESPACE, name, &json!({"phase": "Succeeded"}));
}

/// The cleanup waits for the end of the agents, has the rights that it needs, and may not add keys.
fn run_cleanup(cluster: &Cluster, pod: &Value) {
    let mut cleanup = container(cluster, pod).spawn().unwrap();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(cleanup.try_wait().unwrap(), None, "an agent's pod is left");
    let add = ["annotate", "node", "node-a", "psi-agent.io/score=90", "--overwrite"];
    let kubeconfig = cluster.write_kubeconfig("cleanup", &cluster_token(cluster));
    let refused = cluster.kubectl_as(&kubeconfig, &add);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("psi-agent reap may only remove keys"), "{error}");
    let agents = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=psi-agent"];
    let delete = ["delete", "pods", "--force", "--grace-period=0"];
    cluster.kubectl(&[&delete[..], &agents].concat(), "");
    let output = cleanup.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "node-a: cleared\n1 of 1 nodes with a value cleared\n");
    end(cluster, pod);
}

fn cluster_token(cluster: &Cluster) -> String {
    let create = ["create", "token", "psi-agent-reap-cleanup", "-n", NAMESPACE];
    cluster.kubectl(&create, "").trim().to_owned()
}
