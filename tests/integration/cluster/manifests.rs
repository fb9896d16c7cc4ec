//! The manifests on a real API server, with the controllers that make pods of them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);
/// The image of daemonset/example.
const IMAGE: &str = concat!("registry.example/psi-agent:", env!("CARGO_PKG_VERSION"));
const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

fn start(name: &str) -> Cluster {
    let cluster = Cluster::start_whole(name);
    NODES.iter().for_each(|node| cluster.add_node(node));
    cluster
}

/// The agents' pods, once there is one on each node.
fn agents_everywhere(cluster: &Cluster) -> Vec<Value> {
    wait_for("an agent on each node", MINUTE, || {
        let list = ["pods", "-n", "psi-agent", "-l", "app.kubernetes.io/name=psi-agent"];
        let pods = cluster.get(&list)["items"].as_array().unwrap().clone();
        let mut nodes: Vec<&str> =
            pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        nodes.sort_unstable();
        (nodes == NODES).then_some(pods)
    })
}

/// What the agent's binary says of a container's arguments and environment: all must exist.
pub(crate) fn check_arguments(container: &Value) {
    let mut command = Command::new(BINARY);
    for argument in container["args"].as_array().unwrap() {
        command.arg(argument.as_str().unwrap());
    }
    let output = command.arg("--help").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let help = String::from_utf8(output.stdout).unwrap();
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap();
        assert!(help.contains(&format!("{name}=")), "{name} is in no help");
    }
}

#[test]
#[ignore = "needs etcd and a control plane (tests/kubernetes/build)"]
fn every_node_gets_an_agent_and_nothing_is_left_when_they_are_removed() {
    let cluster = start("manifests");
    let taint = ["taint", "node", "node-b", "other.io/taint=x:NoExecute"];
    cluster.kubectl(&taint, "");
    for folder in ["daemonset/base", "daemonset/example"] {
        cluster.apply_folder(folder);
        let again = cluster.apply_folder(folder);
        assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
        let pods = agents_everywhere(&cluster);
        let container = &pods[0]["spec"]["containers"][0];
        check_arguments(container);
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"]["drop"][0], "ALL");
        assert_eq!(container["resources"]["limits"].get("cpu"), None);
        let job = &cluster.get(&["cronjob", "psi-agent-reap", "-n", "psi-agent"])["spec"];
        check_arguments(&job["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]);
        cluster.remove_folder(folder);
        let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,\
                     validatingadmissionpolicybindings,namespaces";
        let left = cluster.kubectl(&["get", kinds, "-o", "name"], "");
        assert!(!left.contains("psi-agent"), "{left}");
    }
}

#[test]
#[ignore = "needs kubectl (tests/kubernetes/build)"]
fn components_add_what_they_say() {
    let cluster = Cluster::start("components");
    let rendered = cluster.kubectl(&["kustomize", "daemonset/example"], "");
    assert!(rendered.contains(IMAGE), "{rendered}");
    // The example writes scores alone.
    let with_all = cluster.render_with(&["label", "taints"]);
    for argument in ["--label", "--taint-levels=medium,high"] {
        assert!(!rendered.contains(argument), "{argument}: {rendered}");
        assert!(with_all.contains(argument), "{argument}: {with_all}");
    }
    // The base shows the agent the host's processes, and a component takes all of that away.
    let of_proc = |rendered: &str| rendered.matches("/host/proc").count();
    assert_eq!(of_proc(&cluster.render_with(&[])), 2, "the mount and the environment variable");
    let rendered = cluster.render_with(&["without-host-proc"]);
    assert!(of_proc(&rendered) == 0 && !rendered.contains("path: /proc"), "{rendered}");
    let rendered = cluster.render_with(&["openshift"]);
    for part in ["kind: SecurityContextConstraints", "openshift.io/node-selector: \"\""] {
        assert!(rendered.contains(part), "{part}: {rendered}");
    }
    // Only the agent may run as a user and with an SELinux type of its choice there.
    for part in ["runAsUser: 19942", "type: spc_t"] {
        assert_eq!(rendered.matches(part).count(), 1, "{part}: {rendered}");
    }
    let rendered = cluster.render_with(&["selinux"]);
    assert_eq!(rendered.matches("type: spc_t").count(), 1, "{rendered}");
    let rendered = cluster.render_with(&["openshift", "without-host-proc"]);
    assert!(!rendered.contains("spc_t"), "{rendered}");
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn authentication_fits_the_binary_and_the_api_server_and_each_other() {
    let cluster = Cluster::start("authentication-manifests");
    let rendered = cluster.render_with(&["auth"]);
    assert!(!rendered.contains("kind: PodMonitor"), "{rendered}");
    let apply = ["apply", "--validate=strict", "-f", "-"];
    cluster.kubectl(&apply, &rendered);
    let again = cluster.kubectl(&apply, &rendered);
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
    let pod =
        &cluster.get(&["daemonset", "psi-agent", "-n", "psi-agent"])["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    check_arguments(container);
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "probes", "without TLS");
    }
    // The files that the flags name are in the volume that is mounted, and the agent may read them.
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == "tls").unwrap()["mountPath"].clone();
    for file in ["tls-cert-file", "tls-private-key-file"] {
        let flag = format!("--{file}={}/tls.", mount.as_str().unwrap());
        let arguments = container["args"].as_array().unwrap();
        assert!(arguments.iter().any(|arg| arg.as_str().unwrap().starts_with(&flag)), "{flag}");
    }
    let volumes = pod["volumes"].as_array().unwrap();
    let secret = &volumes.iter().find(|volume| volume["name"] == "tls").unwrap()["secret"];
    assert_eq!(
        (&secret["secretName"], &secret["defaultMode"]),
        (&"psi-agent-tls".into(), &0o440.into())
    );
    let security = &pod["securityContext"];
    assert_eq!(security["fsGroup"], security["runAsGroup"]);

    // The operator's Prometheus asks by the names that the other manifests have.
    let rendered = cluster.render_with(&["monitoring", "auth", "label", "taints"]);
    let monitor = rendered.split("\n---\n").find(|part| part.contains("kind: PodMonitor")).unwrap();
    let monitor: Value = serde_saphyr::from_str(monitor).unwrap();
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["scheme"], "https");
    assert_eq!(endpoint["tlsConfig"]["ca"]["secret"]["name"], secret["secretName"]);
    assert_eq!(endpoint["tlsConfig"]["serverName"], "psi-agent.psi-agent.svc");
    let token = endpoint["authorization"]["credentials"]["name"].as_str().unwrap();
    let token = cluster.get(&["secret", token, "-n", "psi-agent"]);
    let account = &token["metadata"]["annotations"]["kubernetes.io/service-account.name"];
    let binding = cluster.get(&["clusterrolebinding", "psi-agent-metrics-reader"]);
    assert_eq!(binding["subjects"][0]["name"], *account);
    let service = cluster.get(&["service", "psi-agent", "-n", "psi-agent"]);
    let annotation = "service.beta.openshift.io/serving-cert-secret-name";
    assert_eq!(service["metadata"]["annotations"][annotation], secret["secretName"]);
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn reap_bridge_and_planner_satisfy_the_level_restricted_and_the_agent_does_not() {
    const RESTRICTED: &str = "psi-agent-restricted";
    let cluster = Cluster::start("restricted");
    let rendered = cluster.render_with(&["bridge", "planner", "restricted"]);
    cluster.kubectl(&["apply", "--validate=strict", "-f", "-"], &rendered);
    let label = "pod-security.kubernetes.io/enforce";
    let level =
        |namespace| cluster.get(&["namespace", namespace])["metadata"]["labels"][label].clone();
    assert_eq!((level(RESTRICTED), level("psi-agent")), ("restricted".into(), "privileged".into()));

    let folder = Folder::new("restricted");
    let create = |name: &str, template: &Value, namespace: &str| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
            "metadata": {"name": name, "namespace": namespace, "labels": template["metadata"]["labels"]}});
        fs::write(folder.join(name), pod.to_string()).unwrap();
        let file = folder.path(name);
        let create = ["create", "--dry-run=server", "-f", &file];
        let output = cluster.kubectl_as(&cluster.admin_kubeconfig(), &create);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let job = cluster.get(&["cronjob", "psi-agent-reap", "-n", RESTRICTED]);
    let [bridge, planner] = ["psi-agent-bridge", "psi-agent-planner"]
        .map(|name| cluster.get(&["deployment", name, "-n", RESTRICTED]));
    check_arguments(&planner["spec"]["template"]["spec"]["containers"][0]);
    for (name, template) in [
        ("reap", &job["spec"]["jobTemplate"]["spec"]["template"]),
        ("bridge", &bridge["spec"]["template"]),
        ("planner", &planner["spec"]["template"]),
    ] {
        assert_eq!(create(name, template, RESTRICTED), (true, String::new()), "{name}");
    }
    let agent = &cluster.get(&["daemonset", "psi-agent", "-n", "psi-agent"])["spec"]["template"];
    let (is_created, error) = create("agent", agent, RESTRICTED);
    assert!(!is_created && error.contains("violates PodSecurity \"restricted"), "{error}");
    assert_eq!(create("agent", agent, "psi-agent"), (true, String::new()));

    // The accounts have moved too, and so have the objects that grant them rights.
    for name in ["psi-agent-reap", "psi-agent-bridge", "psi-agent-planner"] {
        let binding = cluster.get(&["clusterrolebinding", name]);
        assert_eq!(binding["subjects"][0]["namespace"], RESTRICTED, "{name}");
        cluster.get(&["serviceaccount", name, "-n", RESTRICTED]);
        cluster.get(&["networkpolicy", name, "-n", RESTRICTED]);
    }
}
