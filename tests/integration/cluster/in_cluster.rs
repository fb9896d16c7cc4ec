//! The agent and a real API server: labels follow pods as they are created, change and are deleted,
//! and known pods stay labelled while the API server is unreachable.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::agent::{Agent, BINARY};
use crate::support::cluster::Cluster;
use crate::support::exposition::{OWN_SERIES_OF_THE_MANIFEST, Series, own_series, parse};
use crate::support::staged_node::{StagedNode, agent_pod, container_id, launcher, running};
use crate::support::wait_for;

/// Much shorter than the time to the next rescan, so that the count of children and the watch are tested.
const LIMIT: Duration = Duration::from_secs(20);

const POD: &str = "psi-agent-node-a";

/// A control plane with the agent's rights, and the real cgroups of a node.
struct Scene {
    cluster: Cluster,
    node: StagedNode,
}

impl Scene {
    fn start(name: &str) -> Self {
        let cluster = Cluster::start(name);
        cluster.apply_folder("daemonset/base");
        cluster.add_node("node-a");
        cluster.add_namespace("vms");
        cluster.apply(&[agent_pod(POD, "node-a")]);
        Self { cluster, node: StagedNode::new(name, "node-a") }
    }

    fn start_agent(&self) -> Agent {
        self.node.start_agent(&self.cluster, POD, &[])
    }

    /// The output of `once`, `top` or `check`, run as the agent.
    fn run(&self, command: &str) -> String {
        let kubeconfig = self.cluster.agent_kubeconfig(POD);
        let output = Command::new(BINARY)
            .args([command, "--node-name", "node-a", "--cgroup-root"])
            .arg(&self.node.own.path)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            // No agent listens there, so `top` reads the kernel itself.
            .env("PSI_AGENT_LISTEN_ADDRESS", "127.0.0.1:1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Restarts the container of a VM in its pod.
    fn restart_container(&self, vm: &str, cgroup: &str, container: u32) {
        let (pod, _) = cgroup.rsplit_once('/').unwrap();
        self.node.own.remove(cgroup);
        let id = container_id(container);
        self.node.own.make(&format!("{pod}/cri-containerd-{id}.scope"));
        self.cluster.set_status("vms", &format!("virt-launcher-{vm}"), &running(&id));
    }

    /// Adds the target of a migration, with its container running; the name of its pod.
    fn migrate_here(&self, vm: &str, container: u32) -> String {
        let mut target = launcher(vm, "node-a");
        let labels = &mut target["metadata"]["labels"];
        labels["kubevirt.io/migrationJobUID"] = json!("a-migration");
        labels["kubevirt.io/nodeName"] = json!("node-b");
        self.cluster.apply(&[target]);
        let pod = format!("virt-launcher-{vm}");
        self.node.run_vm(&self.cluster, &pod, container);
        pod
    }

    /// The score that stands on the Node.
    fn published(&self) -> Option<String> {
        let node = self.cluster.get(&["node", "node-a"]);
        let score = &node["metadata"]["annotations"]["psi-agent.io/score"];
        score.as_str().map(str::to_owned)
    }
}

/// The VMs that run on this node, by the score.
fn vms(agent: &Agent) -> Vec<String> {
    let series = parse(&agent.get("/metrics")).into_iter();
    let info = series.filter(|series| series.name == "psi_agent_vmi_info");
    info.map(|series| series.labels["name"].clone()).collect()
}

fn publishes(agent: &Agent, result: &str) -> f64 {
    let series = parse(&agent.get("/metrics"));
    let mut found = series.iter().filter(|series| {
        series.name == "psi_agent_publishes_total" && series.labels["result"] == result
    });
    found.next().map_or(0.0, |series| series.value)
}

/// Waits until the snapshot shows this of publishing: the last written value, and the error that
/// keeps the next from being written.
fn expect_publish(agent: &Agent, is_so: impl Fn(&Value, &Value) -> bool) {
    wait_for("the state of publishing", LIMIT, || {
        let snapshot: Value = serde_json::from_str(&agent.get("/snapshot.json")).unwrap();
        let publish = &snapshot["agent"]["publish"];
        assert_eq!(publish["mode"], "on");
        is_so(&publish["last"], &publish["error"]).then_some(())
    });
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
    let first = scene.node.start_vm(&scene.cluster, "one", 1);
    scene.cluster.add_node("node-b");
    scene.cluster.apply(&[launcher("elsewhere", "node-b")]);
    let agent = scene.start_agent();
    expect(&agent, "a pod that was there", &[("one", 1)]);
    assert_eq!(agent.get("/readyz"), "ok\n");
    // The agent's own pod and the VM's, and not the one of the other node.
    let text = wait_for("two ticks", Duration::from_secs(60), || {
        let text = agent.get("/metrics");
        text.contains("\npsi_agent_hidden_containers").then_some(text)
    });
    assert!(text.contains("\npsi_agent_pods 2\n"));
    let series = parse(&text);
    let own = own_series(&series);
    assert_eq!(own.len(), OWN_SERIES_OF_THE_MANIFEST, "{own:?}");

    assert!(scene.run("once").contains("{container=\"compute\","));
    assert!(scene.run("top").contains("\nvms/one "));
    let check = scene.run("check");
    assert!(check.contains("ok    names      2 pods of this node listed\n"), "{check}");
    assert!(check.contains("ok    node       node-a is readable\n"), "{check}");

    let second = scene.node.start_vm(&scene.cluster, "two", 2);
    expect(&agent, "a new pod", &[("one", 1), ("two", 2)]);

    scene.restart_container("one", &first, 3);
    expect(&agent, "a restarted container", &[("one", 3), ("two", 2)]);

    let (pod, _) = second.rsplit_once('/').unwrap();
    scene.node.own.remove(pod);
    let delete = ["delete", "pod", "virt-launcher-two", "-n", "vms", "--force", "--grace-period=0"];
    scene.cluster.kubectl(&delete, "");
    expect(&agent, "a deleted pod", &[("one", 3)]);

    let moved = scene.migrate_here("moved", 5);
    expect(&agent, "a migration's target", &[("moved", 5), ("one", 3)]);
    wait_for("the VMs that run here", LIMIT, || (vms(&agent) == ["one"]).then_some(()));
    let label = ["label", "pod", &moved, "-n", "vms", "--overwrite", "kubevirt.io/nodeName=node-a"];
    scene.cluster.kubectl(&label, "");
    wait_for("its VM runs here now", LIMIT, || (vms(&agent) == ["moved", "one"]).then_some(()));

    outlive_an_outage(&mut scene, &agent);
}

/// Stops the API server until after the first value was due, and starts it again.
fn outlive_an_outage(scene: &mut Scene, agent: &Agent) {
    scene.cluster.kill_api_server();
    wait_for("the agent tries to publish", Duration::from_secs(60), || {
        (publishes(agent, "unreachable") >= 2.0).then_some(())
    });
    expect(agent, "pods known before the outage", &[("moved", 5), ("one", 3)]);
    expect_publish(agent, |last, error| {
        let message = error["message"].as_str().unwrap_or_default();
        last.is_null() && error["at_ms"].is_u64() && message.contains("cannot be reached")
    });
    scene.cluster.start_api_server_again();
    scene.node.start_vm(&scene.cluster, "three", 4);
    // Both recover by themselves, after up to a minute of backoff.
    wait_for("a pod after the API server came back", Duration::from_secs(120), || {
        (computes(agent).len() == 3).then_some(())
    });
    wait_for("the newest value after that", Duration::from_secs(90), || scene.published());
    expect_publish(agent, |last, error| last["observed_at_ms"].is_u64() && error.is_null());
    assert!(publishes(agent, "unreachable") <= 10.0);
    // One line each for the pods and for the score. An API server that has just started may also forbid everything.
    assert_eq!(agent.log().matches("cannot be reached").count(), 2, "{}", agent.log());
    assert!(agent.log().contains("The score is published again"));

    // While the agent is stopped, the version that it watches from expires.
    agent.signal("STOP");
    let pods = scene.cluster.kubectl(&["get", "--raw", "/api/v1/pods"], "");
    let pods: Value = serde_json::from_str(&pods).unwrap();
    let version = pods["metadata"]["resourceVersion"].as_str().unwrap();
    let last = scene.node.start_vm(&scene.cluster, "four", 6);
    scene.cluster.kill_api_server();
    scene.cluster.start_api_server_again();
    let watch = "/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion=";
    let watch = format!("{watch}{version}");
    let expired = scene.cluster.kubectl(&["get", "--raw", &watch], "");
    assert!(expired.contains("\"code\":410"), "{expired}");
    agent.signal("CONT");
    wait_for("a pod after the version expired", Duration::from_secs(120), || {
        (computes(agent).len() == 4).then_some(())
    });
    // It is a watch again, not a list.
    scene.restart_container("four", &last, 7);
    let new = ("virt-launcher-four".to_owned(), container_id(7));
    wait_for("a change after that", LIMIT, || computes(agent).contains(&new).then_some(()));
}

/// The API server accepts a token for a minute after it expires.
const LEEWAY: i64 = 60;

/// A token as the API server signs them, valid for so many seconds.
fn short_lived_token(scene: &Scene, seconds: i64) -> String {
    let uid = |arguments: &[&str]| scene.cluster.get(arguments)["metadata"]["uid"].clone();
    let account = uid(&["serviceaccount", "psi-agent", "-n", "psi-agent"]);
    let (pod, node) = (uid(&["pod", POD, "-n", "psi-agent"]), uid(&["node", "node-a"]));
    let now = jiff::Timestamp::now().as_second();
    let issuer = "https://kubernetes.default.svc";
    let claims = json!({
        "aud": [issuer], "iss": issuer, "iat": now - LEEWAY, "nbf": now - LEEWAY,
        "exp": now - LEEWAY + seconds,
        "sub": "system:serviceaccount:psi-agent:psi-agent",
        "kubernetes.io": {
            "namespace": "psi-agent",
            "serviceaccount": {"name": "psi-agent", "uid": account},
            "pod": {"name": POD, "uid": pod},
            "node": {"name": "node-a", "uid": node},
        },
    });
    scene.cluster.sign(&claims)
}

#[test]
#[ignore = "needs root, a cgroup2 mount, etcd and a kube-apiserver (tests/kubernetes/build)"]
fn a_token_that_expires_is_read_again_from_its_file() {
    let scene = Scene::start("token");
    scene.node.start_vm(&scene.cluster, "one", 1);
    let file = std::env::temp_dir().join(format!("psi-agent-{}-rotated.token", std::process::id()));
    std::fs::write(&file, short_lived_token(&scene, 30)).unwrap();
    let user = json!({"tokenFile": file});
    let kubeconfig = scene.cluster.write_kubeconfig_of("rotated", &user);
    let agent = scene.node.start_agent_with(&kubeconfig);
    expect(&agent, "a pod while the token is valid", &[("one", 1)]);
    wait_for("the token is refused", Duration::from_secs(120), || {
        (publishes(&agent, "unauthorized") >= 1.0).then_some(())
    });
    assert_eq!(scene.published(), None);
    // As the kubelet renews it.
    std::fs::write(&file, scene.cluster.bound_token("psi-agent", POD)).unwrap();
    wait_for("the new one is used", Duration::from_secs(150), || scene.published());
    scene.node.start_vm(&scene.cluster, "two", 2);
    let watched = || (computes(&agent).len() == 2).then_some(());
    wait_for("pods are listed as before", Duration::from_secs(60), watched);
    std::fs::remove_file(&file).unwrap();
}
