//! Kustomizations that users write: components in any order, and another namespace.

use serde_json::{Value, json};

use crate::support::cluster::{Cluster, with_components};
use crate::support::project::text;
use crate::support::prometheus_operator::install_definitions;

const NAMESPACE: &str = "node-pressure";

/// The objects of a YAML stream.
fn objects(yaml: &str) -> Vec<Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

#[test]
#[ignore = "needs kubectl (tests/kubernetes/build)"]
fn components_in_the_wrong_order_are_an_error_that_names_both() {
    let cluster = Cluster::start("order");
    for [first, second] in [
        ["monitoring", "auth"],
        ["monitoring", "restricted"],
        ["bridge", "restricted"],
        ["bridge", "openshift"],
        ["planner", "restricted"],
        ["planner", "openshift"],
    ] {
        let rendered = cluster.render_with(&[first, second]);
        if second == "auth" {
            assert!(rendered.contains("scheme: https"), "{rendered}");
        }
        // The one that changes the other also stands alone.
        cluster.render_with(&[second]);
        let refused = cluster.try_render(&with_components(&[second, first]).to_string());
        let error = String::from_utf8(refused.stderr).unwrap();
        let message = format!("list components.{second} after components.{first}");
        assert!(!refused.status.success() && error.contains(&message), "{error}");
    }
}

/// The part of a kustomization that docs/install.md shows for another namespace.
fn documented_part() -> Value {
    let text = text("docs/install.md");
    let block = text.split("```yaml\n").find(|block| block.starts_with("namespace: NAMESPACE\n"));
    let block = block.unwrap().split("```").next().unwrap();
    serde_saphyr::from_str(&block.replace("NAMESPACE", NAMESPACE)).unwrap()
}

/// The namespaces that an object names, but the one of OpenShift's Prometheus.
fn namespaces(object: &Value) -> Vec<&str> {
    let subjects = object["subjects"].as_array().into_iter().flatten();
    let metadata = std::iter::once(&object["metadata"]);
    let named = subjects.chain(metadata).filter_map(|part| part["namespace"].as_str());
    named.filter(|namespace| *namespace != "openshift-monitoring").collect()
}

#[test]
#[ignore = "needs etcd, a kube-apiserver and what tests/{prometheus-operator,openshift}/build make"]
fn every_component_follows_another_namespace() {
    let cluster = Cluster::start("another-namespace");
    install_definitions(&cluster);
    // All but restricted, which has a namespace of its own.
    let components = [
        "bridge",
        "planner",
        "label",
        "monitoring",
        "taints",
        "without-host-proc",
        "selinux",
        "openshift",
        "auth",
    ];
    let mut kustomization = with_components(&components);
    let part = documented_part();
    kustomization.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    let rendered = cluster.render(&kustomization.to_string());
    let mut count = 0;
    for object in objects(&rendered) {
        let name = &object["metadata"]["name"];
        if object["kind"] == "Namespace" {
            assert_eq!(name, NAMESPACE);
        }
        for namespace in namespaces(&object) {
            assert_eq!(namespace, NAMESPACE, "{} {name}", object["kind"]);
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
    assert!(!rendered.contains("psi-agent.psi-agent"), "an address of the other namespace");
    cluster.kubectl(&["apply", "--validate=strict", "-f", "-"], &rendered);
    // The label is on the daemonset's pods, whatever their namespace.
    let monitor = cluster.get(&["podmonitor", "psi-agent", "-n", NAMESPACE]);
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let name = format!("psi-agent.{NAMESPACE}.svc");
    assert_eq!(endpoint["tlsConfig"]["serverName"], json!(name));
}

/// The specification of the pods of an object.
fn pods_of(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "CronJob" => object.pointer("/spec/jobTemplate/spec/template/spec"),
        "DaemonSet" | "Deployment" => object.pointer("/spec/template/spec"),
        _ => None,
    }
}

/// The rules by which OpenShift admits pods, without OpenShift: the constraints of the component for the
/// agent, and of `restricted-v2`, which every account may use, for the others.
#[test]
#[ignore = "needs kubectl (tests/kubernetes/build)"]
fn openshift_admits_the_agent_by_its_own_constraints_and_the_others_by_the_default_ones() {
    let cluster = Cluster::start("constraints");
    let objects = objects(&cluster.render_with(&["bridge", "planner", "openshift", "auth"]));
    let constraints = objects.iter().find(|it| it["kind"] == "SecurityContextConstraints").unwrap();
    let mut seen = Vec::new();
    for (object, pod) in objects.iter().filter_map(|object| Some((object, pods_of(object)?))) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let (of_pod, of_container) =
            (&pod["securityContext"], &pod["containers"][0]["securityContext"]);
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            assert_eq!(pod.get(field), None, "{name}: {field}");
        }
        assert_eq!(of_container["capabilities"], json!({"drop": ["ALL"]}), "{name}");
        assert_eq!(of_container["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(of_pod["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        assert_eq!(of_pod["runAsNonRoot"], true, "{name}");
        let volumes = pod["volumes"].as_array().into_iter().flatten();
        let mut kinds: Vec<&str> = volumes
            .flat_map(|volume| volume.as_object().unwrap().keys().filter(|key| *key != "name"))
            .map(String::as_str)
            .collect();
        if name == "psi-agent" {
            assert_eq!(
                of_container["readOnlyRootFilesystem"],
                constraints["readOnlyRootFilesystem"]
            );
            // Of every pod with an account.
            kinds.push("projected");
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(json!(kinds), constraints["volumes"]);
            // Another strategy compares the pod's options with its own, also the level.
            assert_eq!(of_container["seLinuxOptions"], json!({"type": "spc_t"}));
            assert_eq!(constraints["seLinuxContext"]["type"], "RunAsAny");
        } else {
            // A user or group of its own would be refused, as would a volume of the host.
            for field in ["runAsUser", "runAsGroup", "fsGroup", "seLinuxOptions"] {
                assert_eq!(of_pod.get(field), None, "{name}: {field}");
            }
            assert!(kinds.is_empty(), "{name}: {kinds:?}");
        }
        seen.push(name.to_owned());
    }
    seen.sort();
    assert_eq!(seen, ["psi-agent", "psi-agent-bridge", "psi-agent-planner", "psi-agent-reap"]);
    assert_eq!(constraints["requiredDropCapabilities"], json!(["ALL"]));
    for field in ["allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts"] {
        assert_eq!(constraints[field], false, "{field}");
    }
}
