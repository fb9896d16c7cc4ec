//! Every combination of the components on a real API server: applied, applied again, removed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::manifests::check_arguments;
use crate::support::cluster::Cluster;
use crate::support::prometheus_operator::install_definitions;
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);
/// Components that need a cluster which knows resources that Kubernetes does not.
const WITH_CUSTOM_RESOURCES: [&str; 2] = ["monitoring", "openshift"];

/// Every component that there is, in an order in which a kustomization may name them.
pub(crate) fn components() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/daemonset/components");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    // The last also changes what the others bring, and others change what the first brings.
    names.sort_by_key(|name| (name == "auth", name != "planner", name.clone()));
    let known = [
        "planner",
        "bridge",
        "candidate",
        "label",
        "monitoring",
        "openshift",
        "restricted",
        "selinux",
        "taints",
        "without-host-proc",
        "auth",
    ];
    assert_eq!(names, known, "the tests of all combinations count on them");
    names
}

/// Of these one other component at most changes something.
const APART: [&str; 6] =
    ["bridge", "without-host-proc", "restricted", "candidate", "selinux", "planner"];

/// Every combination of them, also none. Each that stands apart is in every second one, so that it
/// is there and is not there whatever the others are, and whether or not the other one is.
fn combinations(names: &[String]) -> Vec<Vec<&str>> {
    let mut all = vec![Vec::new()];
    for name in names.iter().filter(|name| !APART.contains(&name.as_str())) {
        let with: Vec<Vec<&str>> =
            all.iter().map(|before| [&before[..], &[name.as_str()]].concat()).collect();
        all.extend(with);
    }
    for names in &mut all {
        let others = names.len();
        if others % 4 < 2 {
            names.push(APART[2]);
        }
        if [1, 2].contains(&(others % 4)) {
            names.insert(0, APART[1]);
        }
        if [0, 3].contains(&(others % 4)) {
            names.insert(0, APART[3]);
        }
        if others % 4 >= 2 {
            names.insert(0, APART[4]);
        }
        names.insert(0, if others % 2 == 1 { APART[0] } else { APART[5] });
    }
    all
}

/// All kinds of objects that the cluster knows, but events and leases, which servers create and delete
/// at any time.
fn kinds(cluster: &Cluster) -> String {
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list,delete", "-o", "name"], "");
    let passing = |kind: &&str| kind.starts_with("events") || kind.starts_with("leases.");
    kinds.lines().filter(|kind| !passing(kind)).collect::<Vec<_>>().join(",")
}

/// All objects of these kinds, but the accounts that controllers create for themselves once they need
/// them.
fn everything(cluster: &Cluster, kinds: &str) -> BTreeSet<String> {
    let columns = "-o=custom-columns=:.apiVersion,:.kind,:.metadata.namespace,:.metadata.name";
    let objects = cluster.kubectl(&["get", kinds, "-A", "--no-headers", columns], "");
    let objects = objects.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    objects.filter(|object| !object.starts_with("v1 ServiceAccount kube-system ")).collect()
}

/// Each namespace has what controllers give to every one.
fn wait_for_controllers(cluster: &Cluster) {
    let kinds = "namespaces,configmaps,serviceaccounts";
    wait_for("the controllers are at work", MINUTE, || {
        let all = everything(cluster, kinds);
        let count = |start: &str, end: &str| {
            all.iter().filter(|object| object.starts_with(start) && object.ends_with(end)).count()
        };
        let namespaces = count("v1 Namespace ", "");
        let given = count("v1 ConfigMap ", " kube-root-ca.crt");
        let accounts = count("v1 ServiceAccount ", " default") + 1;
        (namespaces == 4 && given == 4 && accounts == 4).then_some(())
    });
}

/// The base with these components comes, stays as it is when it comes again, says nothing that the
/// binary does not know, and goes without a trace.
fn check_combination(
    cluster: &Cluster,
    kinds: &str,
    components: &[&str],
    before: &BTreeSet<String>,
) {
    let rendered = cluster.render_with(components);
    let apply = ["apply", "--validate=strict", "-f", "-"];
    let first = cluster.kubectl(&apply, &rendered);
    assert!(first.lines().all(|line| line.ends_with(" created")), "{components:?}: {first}");
    let again = cluster.kubectl(&apply, &rendered);
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{components:?}: {again}");
    let daemonset = cluster.get(&["daemonset", "psi-agent", "-n", "psi-agent"]);
    check_arguments(&daemonset["spec"]["template"]["spec"]["containers"][0]);
    let is_apart = components.contains(&"restricted");
    let namespace = if is_apart { "psi-agent-restricted" } else { "psi-agent" };
    let job = cluster.get(&["cronjob", "psi-agent-reap", "-n", namespace]);
    check_arguments(&job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]);
    if components.contains(&"bridge") {
        let bridge = cluster.get(&["deployment", "psi-agent-bridge", "-n", namespace]);
        check_arguments(&bridge["spec"]["template"]["spec"]["containers"][0]);
    }
    // Waits until all of it is gone, the namespace with what is in it last.
    cluster.kubectl(&["delete", "-f", "-", "--ignore-not-found", "--timeout=60s"], &rendered);
    // Controllers delete the rest, such as pods of a namespace's Deployment, and replace their own objects.
    let started = Instant::now();
    loop {
        let now = everything(cluster, kinds);
        let differ: Vec<&String> = now.symmetric_difference(before).collect();
        if differ.is_empty() {
            break;
        }
        assert!(started.elapsed() < MINUTE, "left of {components:?}, or gone with it: {differ:#?}");
        thread::sleep(Duration::from_secs(1));
    }
}

/// Checks these combinations on a cluster of their own: those without custom resources before the
/// cluster knows any.
fn check_combinations(name: &str, combinations: Vec<Vec<&str>>) -> Cluster {
    let cluster = Cluster::start_whole(name);
    wait_for_controllers(&cluster);
    let (custom, plain): (Vec<_>, Vec<_>) = combinations
        .into_iter()
        .partition(|names| names.iter().any(|name| WITH_CUSTOM_RESOURCES.contains(name)));
    let check_each = |combinations: &[Vec<&str>]| {
        let kinds = kinds(&cluster);
        let before = everything(&cluster, &kinds);
        for components in combinations {
            check_combination(&cluster, &kinds, components, &before);
        }
    };
    check_each(&plain);
    install_definitions(&cluster);
    check_each(&custom);
    println!("{} combinations, {} with custom resources", plain.len() + custom.len(), custom.len());
    cluster
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/{prometheus-operator,openshift}/build make; takes 3 min"]
fn every_combination_of_components_comes_and_goes_without_a_trace() {
    let names = components();
    let elsewhere = |names: &Vec<&str>| !names.contains(&"openshift");
    let all = combinations(&names).into_iter().filter(elsewhere).collect();
    check_combinations("combinations", all);
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/{prometheus-operator,openshift}/build make; takes 3 min"]
fn every_combination_on_openshift_comes_and_goes_without_a_trace() {
    let names = components();
    let all = combinations(&names).into_iter().filter(|names| names.contains(&"openshift"));
    let cluster = check_combinations("on-openshift", all.collect());
    // No part of the component, since it reboots workers.
    let machine_config = "daemonset/openshift/machine-config.yaml";
    cluster.kubectl(&["apply", "--validate=strict", "-f", machine_config], "");
}
