//! A quota that forbids the pod of a target, for which KubeVirt waits without end.

use super::*;

#[test]
#[ignore = "starts a control plane"]
fn a_migration_whose_pod_a_quota_forbids_is_cancelled_after_a_minute() {
    let scene = Scene::start("quota");
    let kubevirt = &scene.kubevirt;
    kubevirt.add_node("node-a", 8);
    let pod = kubevirt.start_vm(&virtual_machine("first"));
    age(kubevirt, "first");
    kubevirt.add_node("node-b", 8);
    scene.publish(&pod);
    scene.label_namespace();
    let pods = json!({"pods": "1"});
    kubevirt.cluster.apply(&[json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "pods", "namespace": "vms"}, "spec": {"hard": pods},
    })]);
    // What kube-controller-manager counts.
    let status = json!({"status": {"hard": pods, "used": pods}}).to_string();
    let patch = ["patch", "resourcequota", "pods", "-n", "vms", "--subresource=status"];
    kubevirt.cluster.kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat(), "");

    let _planner = scene.start_planner("test", &["--apply"]);
    let created = wait_for("a migration", LIMIT, || scene.migrations().pop());
    assert_eq!(created["spec"]["vmiName"], "first");
    wait_for("it is cancelled", LIMIT, || (scene.failed() == 1).then_some(()));
    wait_for("it is gone", LIMIT, || scene.migrations().is_empty().then_some(()));
    assert!(scene.state()["leftAloneUntil"]["vms/first"].is_string());
}
