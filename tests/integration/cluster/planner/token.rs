//! What a stolen token of the planner can do.

use super::*;

fn check_that_rights_grant_nothing_else(scene: &Scene, pod: &str) {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": "vms"},
    });
    let path = format!("/api/v1/namespaces/vms/pods/{}/eviction", pod);
    let file = scene.write(&eviction);
    let lease = "psi-agent-planner";
    let all: [&[&str]; 9] = [
        &["create", "--raw", &path, "-f", &file],
        &["delete", "pod", pod, "-n", "vms", "--wait=false"],
        &["annotate", "node", "node-a", "psi-agent.io/score=0"],
        &["cordon", "node-a"],
        &["annotate", "vmim", "foreign", "-n", "vms", "a=b"],
        &["delete", "vmi", "demo", "-n", "vms", "--wait=false"],
        &["label", "namespace", "default", "psi-agent.io/plan=true"],
        &["delete", "lease", lease, "-n", "psi-agent"],
        &["get", "secrets", "-n", "psi-agent"],
    ];
    for arguments in all {
        let error = scene.failure(arguments).unwrap_or_else(|| panic!("{arguments:?}"));
        assert!(error.contains("orbidden"), "{arguments:?}: {error}");
    }
    for verbs in scene.rights() {
        assert!(["list", "create", "delete"].contains(&verbs.as_str()), "{verbs}");
    }
}

#[test]
#[ignore = "starts a control plane"]
fn a_token_of_the_planner_moves_vms_of_labelled_namespaces_and_does_nothing_else() {
    let scene = Scene::start("planner-token");
    let kubevirt = &scene.kubevirt;
    let refused = |namespace: &str, migration: &Value, part: &str| {
        let error = scene.refusal(namespace, migration).expect(part);
        assert!(error.contains("psi-agent planner may only") && error.contains(part), "{error}");
    };
    let finalizers = json!(["kubevirt.io/migrationJobFinalize"]);
    let allowed = migration("allowed", &[("/metadata/finalizers", finalizers)]);
    refused("vms", &allowed, "in namespaces with the label");
    scene.label_namespace();
    wait_for("the API server knows the label", LIMIT, || {
        scene.refusal("vms", &allowed).is_none().then_some(())
    });
    refused("default", &allowed, "in namespaces with the label");
    let hostname = "kubernetes.io/hostname";
    let two_keys = json!({hostname: "node-b", "a": "b"});
    let image = json!({"kubevirt.io/func-test-migration-target-image-override": "evil"});
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "a", "uid": "a"});
    let (send, receive) =
        (json!({"migrationID": "m", "connectURL": "evil:1"}), json!({"migrationID": "m"}));
    for (path, value) in [
        ("/spec/addedNodeSelector", two_keys),
        ("/spec/addedNodeSelector", json!({"a": "b"})),
        ("/spec/addedNodeSelector", json!({})),
        ("/spec/addedNodeSelector", Value::Null),
        ("/spec/vmiName", Value::Null),
        ("/spec/sendTo", send),
        ("/spec/receive", receive),
        ("/spec/priority", json!("system-critical")),
        ("/metadata/annotations", image),
        ("/metadata/finalizers", json!(["example.org/never"])),
        ("/metadata/ownerReferences", json!([owner])),
    ] {
        refused("vms", &migration("other", &[(path, value)]), "may only name a VM");
    }
    for labels in [Value::Null, json!({"psi-agent.io/planner": "false"})] {
        let without = migration("other", &[("/metadata/labels", labels)]);
        refused("vms", &without, "with the label psi-agent.io/planner");
    }

    // Of those that exist it deletes its own, and changes none. virt-controller deletes migrations without a VM.
    kubevirt.add_node("node-a", 8);
    let pod = kubevirt.start_vm(&virtual_machine("demo"));
    let foreign = migration("foreign", &[("/metadata/labels", json!({}))]);
    kubevirt.cluster.kubectl(&["create", "-n", "vms", "-f", "-"], &foreign.to_string());
    kubevirt.cluster.kubectl(&["create", "-n", "vms", "-f", "-"], &allowed.to_string());
    let delete = |name: &str| scene.failure(&["delete", "vmim", name, "-n", "vms", "--wait=false"]);
    let error = delete("foreign").unwrap();
    assert!(error.contains("with the label psi-agent.io/planner"), "{error}");
    let in_labelled = "in namespaces with the label";
    kubevirt.cluster.kubectl(&["label", "namespace", "vms", "psi-agent.io/plan-"], "");
    wait_for("the API server knows that the label is gone", LIMIT, || {
        scene.refusal("vms", &migration("probe", &[])).filter(|error| error.contains(in_labelled))
    });
    let error = delete("allowed").unwrap();
    assert!(error.contains(in_labelled), "{error}");
    scene.label_namespace();
    wait_for("the API server knows the label again", LIMIT, || {
        delete("allowed").is_none().then_some(())
    });

    check_that_rights_grant_nothing_else(&scene, name(&pod));
}
