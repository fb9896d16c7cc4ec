//! Where real schedulers place VMs by the bridge's answers.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{A_WHILE, IN_CLUSTER, MINUTE, PLACES, Scene, answered, post};
use crate::support::agent::Agent;
use crate::support::cluster::{Cluster, Companion, unplaced_vm};
use crate::support::{built, snippet, wait_for};

/// The snippet with this bridge, more time for an answer on a busy machine, and without an election, which a single
/// scheduler does not need.
fn here(snippet: &str, bridge: &Agent) -> String {
    assert!(snippet.contains(IN_CLUSTER), "{snippet}");
    let here = snippet.replace(IN_CLUSTER, &format!("http://{}", bridge.address));
    let here = here.replace("httpTimeout: 300ms", "httpTimeout: 20s");
    let alone = if here.contains("leaderElect: false") {
        ""
    } else {
        "leaderElection: {leaderElect: false}\n"
    };
    here + alone
}

/// The pod of a VM that asks for virtualisation, as KubeVirt's do.
fn vm(name: &str) -> Value {
    let mut pod = unplaced_vm(name);
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    resources["requests"]["devices.kubevirt.io/kvm"] = json!("1");
    resources["limits"] = json!({"devices.kubevirt.io/kvm": "1"});
    pod
}

/// VMs go to the calm Node; where that takes none, to the one of which nothing is known, and never
/// to the hot one.
fn check_placing(scene: &Scene, name: &str, vm: &Value) {
    let named = |suffix: &str| {
        let mut vm = vm.clone();
        vm["metadata"]["name"] = json!(format!("{name}-{suffix}"));
        vm
    };
    assert_eq!(scene.cluster.place(&named("calm"), 6, PLACES), [6, 0, 0], "{name}");
    scene.cluster.kubectl(&["cordon", "calm"], "");
    assert_eq!(scene.cluster.place(&named("without-calm"), 6, PLACES), [0, 0, 6], "{name}");
    scene.cluster.kubectl(&["uncordon", "calm"], "");
}

#[test]
#[ignore = "needs etcd and a control plane (tests/kubernetes/build, tests/scheduler-plugins/build)"]
fn schedulers_that_ask_the_bridge_place_vms_on_the_calm_node() {
    let scene = Scene::start("bridge-schedulers", &PLACES);
    scene.write("calm", 0, A_WHILE);
    scene.write("hot", 60, A_WHILE);
    scene.write("silent", 0, 1_200);
    scene.wait_for_values(&[("calm", 0.0), ("hot", 0.6), ("silent", 0.315)]);

    let extender = here(&snippet("bridge-extender.yaml"), &scene.bridge);
    let by_extender = [("form", "prioritize"), ("result", "answered")];
    let asked = || scene.metric("psi_agent_bridge_requests_total", &by_extender);
    let scheduler = scene.cluster.start_scheduler(&extender, &scene.cluster.admin_kubeconfig());
    check_placing(&scene, "extender", &vm("extender"));
    assert_eq!(asked(), 12.0, "once for each VM");
    // What is no VM goes where it would have gone anyway.
    scene.cluster.place(&unplaced_vm("no-vm"), 3, PLACES);
    assert_eq!(asked(), 12.0);
    drop(scheduler);

    let configuration = here(&snippet("bridge-trimaran.yaml"), &scene.bridge);
    let scheduler = start_trimaran(&scene.cluster, &configuration);
    let mut trimaran = vm("trimaran");
    trimaran["spec"]["schedulerName"] = json!("kubevirt");
    check_placing(&scene, "trimaran", &trimaran);
    drop(scheduler);
    check_headroom(&scene, &extender);
}

/// A VM that does not fit the headroom of the calm Node goes to the hot one, where it does.
fn check_headroom(scene: &Scene, extender: &str) {
    for (node, score, headroom) in [("calm", 0, "1"), ("hot", 60, "8")] {
        let demand =
            [("headroom", headroom), ("demand", "vms=1.00,others=0.00"), ("waiting", "0.00")];
        scene.write_with(node, score, A_WHILE, &demand);
    }
    let large = json!({"containers": [{"resources": {"requests": {"cpu": "3"}}}]});
    let request = json!({"Pod": {"spec": large}, "NodeNames": ["calm", "hot"]}).to_string();
    wait_for("the bridge knows the headroom", MINUTE, || {
        let scores = answered(&post(&scene.bridge, "/prioritize", &request));
        (scores[0]["Score"].as_u64() < scores[1]["Score"].as_u64()).then_some(())
    });
    let admin = scene.cluster.admin_kubeconfig();
    let _scheduler = scene.cluster.start_scheduler(extender, &admin);
    let mut large = vm("large");
    large["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2900m");
    assert_eq!(scene.cluster.place(&large, 3, PLACES), [0, 3, 0]);
    assert_eq!(scene.cluster.place(&vm("small"), 3, PLACES), [3, 0, 0]);
}

/// The kube-scheduler with Trimaran's plugin in it.
fn start_trimaran(cluster: &Cluster, configuration: &str) -> Companion {
    let module = include_str!("../../../kubernetes/1.34/go.mod");
    let folder: PathBuf = built("scheduler-plugins", module, "sigs.k8s.io/scheduler-plugins");
    let program = folder.join("kube-scheduler");
    cluster.start_scheduler_of(&program, configuration, &cluster.admin_kubeconfig())
}
