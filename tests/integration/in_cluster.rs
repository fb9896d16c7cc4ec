//! The agent and a real API server: series are labelled as pods come, change and go, and the loss
//! of the API server costs nobody what is known already.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cluster::Cluster;
use crate::support::exposition::{Series, parse};
use crate::support::wait_for;

const LIMIT: Duration = Duration::from_secs(20);

fn container_id(number: u32) -> String {
    format!("{number:064x}")
}

/// The account that the agent runs as, with no more rights than it uses, and its own pod.
fn account_and_rights() -> Vec<Value> {
    let named = |name: &str| json!({"name": name, "namespace": "psi-agent"});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "psi-agent"}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vms"}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named("psi-agent")}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "psi-agent"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "psi-agent"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "psi-agent",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "psi-agent", "namespace": "psi-agent"}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": named("psi-agent-node-a"),
            "spec": {
                "nodeName": "node-a", "serviceAccountName": "psi-agent",
                "containers": [{"name": "agent", "image": "psi-agent"}],
            },
        }),
    ]
}

fn launcher(vm: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("virt-launcher-{vm}"), "namespace": "vms",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/nodeName": node},
            "annotations": {"kubevirt.io/domain": vm},
        },
        "spec": {"nodeName": node, "containers": [{"name": "compute", "image": "launcher:v1"}]},
    })
}

fn running(id: &str) -> Value {
    json!({"phase": "Running", "containerStatuses": [{
        "name": "compute", "image": "launcher:v1", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": format!("containerd://{id}"), "state": {"running": {}},
    }]})
}

/// A node's worth of real cgroups beside the control plane.
struct Scene {
    cluster: Cluster,
    own: OwnCgroup,
}

impl Scene {
    fn start(name: &str) -> Self {
        let cluster = Cluster::start(name);
        cluster.apply(&account_and_rights());
        Self { cluster, own: OwnCgroup::new(name) }
    }

    /// Starts the agent with a token that is bound to its pod.
    fn start_agent(&self) -> Agent {
        let kubeconfig = self.agents_kubeconfig();
        let root = self.own.path.to_str().unwrap();
        let flags = ["--node-name", "node-a", "--cgroup-root", root, "--kubeconfig"];
        Agent::start(&[&flags[..], &[kubeconfig.to_str().unwrap()]].concat())
    }

    fn agents_kubeconfig(&self) -> PathBuf {
        let token = self.cluster.kubectl(
            &[
                "create",
                "token",
                "psi-agent",
                "-n",
                "psi-agent",
                "--bound-object-kind=Pod",
                "--bound-object-name=psi-agent-node-a",
            ],
            "",
        );
        self.cluster.write_kubeconfig("agent", token.trim())
    }

    /// What `once` and `check` say, run as the agent.
    fn run(&self, command: &str) -> String {
        let kubeconfig = self.agents_kubeconfig();
        let output = Command::new(BINARY)
            .args([command, "--node-name", "node-a", "--cgroup-root"])
            .arg(&self.own.path)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A VM's pod as the API server and the kernel come to know it.
    fn start_vm(&self, vm: &str, container: u32) -> String {
        self.cluster.apply(&[launcher(vm, "node-a")]);
        let name = format!("virt-launcher-{vm}");
        let uid = ["get", "pod", &name, "-n", "vms", "-o", "jsonpath={.metadata.uid}"];
        let uid = self.cluster.kubectl(&uid, "").replace('-', "_");
        let cgroup = format!("kubepods.slice/kubepods-pod{uid}.slice");
        self.start_container(vm, &cgroup, container);
        cgroup
    }

    fn start_container(&self, vm: &str, cgroup: &str, container: u32) {
        let id = container_id(container);
        self.own.make(&format!("{cgroup}/cri-containerd-{id}.scope"));
        self.cluster.set_status("vms", &format!("virt-launcher-{vm}"), &running(&id));
    }
}

/// The pods whose container `compute` has a series, with its runtime's name.
fn computes(agent: &Agent) -> Vec<(String, String)> {
    let series = parse(&agent.get("/metrics"));
    let wanted = |series: &&Series| {
        series.name == "container_pressure_cpu_waiting_seconds_total"
            && series.labels["container"] == "compute"
    };
    let mut found: Vec<(String, String)> = series
        .iter()
        .filter(wanted)
        .map(|series| (series.labels["pod"].clone(), series.labels["name"].clone()))
        .collect();
    found.sort();
    found
}

fn expect(agent: &Agent, what: &str, expected: &[(&str, u32)]) {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|(vm, container)| (format!("virt-launcher-{vm}"), container_id(*container)))
        .collect();
    wait_for(what, LIMIT, || (computes(agent) == expected).then_some(()));
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn series_follow_the_pods_of_this_node() {
    let mut scene = Scene::start("identity");
    let first = scene.start_vm("one", 1);
    scene.cluster.apply(&[
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}}),
        launcher("elsewhere", "node-b"),
    ]);
    let agent = scene.start_agent();
    expect(&agent, "a pod that was there", &[("one", 1)]);
    assert_eq!(agent.get("/readyz"), "ok\n");
    // The agent's own pod and the VM's, and not the one of the other node.
    assert!(agent.get("/metrics").contains("\npsi_agent_pods 2\n"));

    assert!(scene.run("once").contains("{container=\"compute\","));
    let check = scene.run("check");
    assert!(check.contains("ok    names      2 pods of this node are told\n"), "{check}");

    let second = scene.start_vm("two", 2);
    expect(&agent, "a new pod", &[("one", 1), ("two", 2)]);

    scene.own.remove(&format!("{first}/cri-containerd-{}.scope", container_id(1)));
    scene.start_container("one", &first, 3);
    expect(&agent, "a container that was made anew", &[("one", 3), ("two", 2)]);

    scene.own.remove(&second);
    let delete = ["delete", "pod", "virt-launcher-two", "-n", "vms", "--force", "--grace-period=0"];
    scene.cluster.kubectl(&delete, "");
    expect(&agent, "a pod that went", &[("one", 3)]);

    scene.cluster.kill_api_server();
    std::thread::sleep(Duration::from_secs(3));
    expect(&agent, "what was known before the API server went", &[("one", 3)]);
    scene.cluster.start_api_server_again();
    scene.start_vm("three", 4);
    // The watch comes back by itself, though later each time that it failed.
    wait_for("a pod after the API server came back", Duration::from_secs(60), || {
        (computes(&agent).len() == 2).then_some(())
    });
}

#[test]
#[ignore = "needs root and a cgroup2 mount"]
fn without_an_api_server_the_agent_serves_and_says_what_it_waits_for() {
    let own = OwnCgroup::new("alone");
    own.make(&format!("kubepods/pod1/{}", container_id(1)));
    let folder = std::env::temp_dir();
    let kubeconfig = folder.join(format!("psi-agent-{}-alone.kubeconfig", std::process::id()));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "test", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let root = own.path.to_str().unwrap();
    let agent = Agent::start(&[
        "--node-name",
        "node-a",
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--cgroup-root",
        root,
    ]);
    let waiting = agent.request("GET /readyz HTTP/1.1\r\nHost: test\r\n");
    assert_eq!((waiting.status, waiting.text().as_str()), (503, "waiting for the list of pods\n"));
    assert_eq!(agent.get("/livez"), "ok\n");
    assert!(computes(&agent).is_empty());
    let text = agent.get("/metrics");
    assert!(text.contains("container_pressure_cpu_waiting_seconds_total{container=\"\",id=\"/\""));
    assert!(text.contains("\npsi_agent_cgroups_without_pod 2\n"));
    wait_for("its failing is counted", LIMIT, || {
        let text = agent.get("/metrics");
        (!text.contains("\npsi_agent_pod_watch_errors_total 0\n")).then_some(())
    });
    std::fs::remove_file(&kubeconfig).unwrap();
}
