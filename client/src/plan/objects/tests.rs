use serde::Deserialize;
use serde_json::json;

use super::*;

fn parse<T: for<'de> Deserialize<'de>>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn at(text: &str) -> Option<Timestamp> {
    Some(text.parse().unwrap())
}

#[test]
fn a_node_keeps_the_annotations_of_the_prefix() {
    let node = node(
        parse(json!({
            "metadata": {"name": "a", "labels": {"x": "y"},
                "annotations": {"psi-agent.io/score": "5", "other": "1"}},
            "spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {
                "capacity": {"cpu": "8"}, "allocatable": {"cpu": "7500m", "memory": "1Gi", "x": "?"},
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": null}],
            },
        })),
        &Prefix::default(),
    );
    assert_eq!(node.annotations.keys().collect::<Vec<_>>(), ["psi-agent.io/score"]);
    assert!(node.is_cordoned && node.is_ready && node.taints[0].key == "k");
    assert_eq!((node.cpus, node.allocatable["cpu"], node.allocatable["x"]), (8.0, 7.5, 0.0));
    assert_eq!(node.allocatable["memory"], f64::from(1 << 30));
}

#[test]
fn a_pod_requests_what_its_containers_need_together_or_its_start() {
    let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    let side_car = json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}});
    let cpu = |containers: Value, init: Value| {
        let spec = json!({
            "nodeName": "a", "containers": containers, "initContainers": init,
            "overhead": {"cpu": "250m"},
        });
        pod(parse(json!({ "spec": spec }))).requests["cpu"]
    };
    assert_eq!(cpu(json!([container("2"), container("500m")]), json!([])), 2.75);
    assert_eq!(cpu(json!([container("2")]), json!([side_car, container("500m")])), 3.25);
    assert_eq!(cpu(json!([container("2")]), json!([side_car, container("4")])), 5.25);
    assert_eq!(cpu(json!([container("?")]), json!([])), f64::INFINITY);
    let of_pod = json!({
        "nodeName": "a", "containers": [container("2"), container("1")], "resources": {"requests": {"cpu": "4"}},
    });
    assert_eq!(pod(parse(json!({ "spec": of_pod }))).requests["cpu"], 4.0);
}

#[test]
fn a_pod_keeps_its_vm_and_its_constraints() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let term = json!({"matchExpressions": [{"key": "k", "operator": "Exists"}]});
    let object = json!({
        "metadata": {
            "uid": "p", "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/migrationJobUID": "m"},
            "annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""},
            "ownerReferences": [{"kind": "VirtualMachineInstance", "uid": "v"}],
        },
        "spec": {
            "nodeName": "a",
            "affinity": {
                "nodeAffinity": {required: {"nodeSelectorTerms": [term]}},
                "podAntiAffinity": {required: [{"topologyKey": "zone", "labelSelector": {}}]},
            },
        },
        "status": {"phase": "Running"},
    });
    let found = pod(parse(object.clone()));
    assert_eq!((found.vm.as_deref(), found.migration.as_deref()), (Some("v"), Some("m")));
    assert_eq!((found.node.as_deref(), found.created), (Some("a"), at("2026-01-02T03:04:05Z")));
    assert_eq!(found.node_affinity.unwrap()[0].match_expressions.as_ref().unwrap()[0].key, "k");
    assert_eq!(found.anti_affinity[0].topology_key, "zone");
    assert!(found.prefers_no_eviction && !found.requires_other_pods);
    for (path, value) in [
        ("affinity", json!({"podAffinity": {required: [{"topologyKey": "zone"}]}})),
        ("topologySpreadConstraints", json!([{"whenUnsatisfiable": "DoNotSchedule"}])),
    ] {
        let mut changed = object.clone();
        changed["spec"][path] = value;
        assert!(pod(parse(changed)).requires_other_pods, "{path}");
    }
    let mut of_a_tenant = object;
    of_a_tenant["metadata"]["labels"] = json!({});
    assert_eq!(pod(parse(of_a_tenant)).vm, None);
}

/// A VM's pod on a Node, with this part of its specification.
fn pod_with(path: &str, value: Value) -> Pod {
    let mut object = json!({
        "metadata": {
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/migrationJobUID": "m"},
            "ownerReferences": [{"kind": "VirtualMachineInstance", "uid": "v"}],
        },
        "spec": {"nodeName": "a", "nodeSelector": {"k": "v"}},
        "status": {"phase": "Running"},
    });
    object["spec"][path] = value;
    pod(parse(object))
}

#[test]
fn requirements_of_a_pod_are_bounded_and_close_its_node_if_they_may_concern_others() {
    let keys: BTreeMap<String, String> =
        (0..1_000).map(|number| (format!("key-{number:014}"), String::new())).collect();
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    // As JSON these are short, and in memory long.
    let terms = json!({required: {"nodeSelectorTerms": vec![json!({}); 400]}});
    let others = json!({required: vec![json!({"topologyKey": "a"}); 400]});
    for (path, value, closes) in [
        ("tolerations", json!(vec![json!({"operator": "Exists"}); 1_000]), false),
        ("nodeSelector", json!(keys), false),
        ("affinity", json!({"nodeAffinity": terms}), false),
        ("affinity", json!({"podAntiAffinity": others}), true),
        ("containers", json!([{"resources": {"requests": keys}}]), true),
    ] {
        let found = pod_with(path, value);
        assert!(found.requires_other_pods, "{path}");
        assert!(found.tolerations.is_empty() && found.node_affinity.is_none(), "{path}");
        assert!(found.anti_affinity.is_empty() && found.node_selector.len() < 2, "{path}");
        let is_closed = found.requests == [("pods".to_owned(), f64::INFINITY)].into();
        assert_eq!(is_closed, closes, "{path}");
        let vm_and_migration = (found.vm.as_deref(), found.migration.as_deref());
        assert_eq!(vm_and_migration, (Some("v"), Some("m")), "{path}");
    }
    // On no Node it requires nothing of others, however many there are.
    let pending = pod_with("nodeName", json!(null));
    assert!(pending.labels.is_empty() && pending.node_selector.is_empty());
    assert_eq!((pending.vm.as_deref(), pending.migration.as_deref()), (Some("v"), Some("m")));
}

#[test]
fn a_vm_is_tied_by_hardware_and_local_volumes() {
    let with = |domain: Value, status: Value| {
        let volumes = domain.get("volumes").cloned().unwrap_or(json!([]));
        let affinity = domain.get("affinity").cloned().unwrap_or(json!({}));
        let spec = json!({"domain": domain, "volumes": volumes, "affinity": affinity});
        let object = json!({ "spec": spec, "status": status });
        vm(parse(object))
    };
    let none = || json!({});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let changes = json!({"type": "VolumesChange", "status": "True"});
    for (domain, status, tie) in [
        (json!({"cpu": {"dedicatedCpuPlacement": true}}), none(), "dedicated CPUs"),
        (json!({"memory": {"hugepages": {"pageSize": "2Mi"}}}), none(), "huge pages"),
        (json!({"devices": {"interfaces": [{"sriov": {}}]}}), none(), "SR-IOV interfaces"),
        (json!({"devices": {"hostDevices": [{"name": "x"}]}}), none(), "host devices"),
        (json!({"devices": {"gpus": [{"name": "x"}]}}), none(), "GPUs"),
        (json!({"volumes": [{"name": "v", "emptyDisk": {}}]}), none(), "local volumes"),
        (none(), json!({"conditions": [changes]}), "volumes that change"),
        (json!({"affinity": {"podAffinity": {required: [{}]}}}), none(), "required pod affinity"),
    ] {
        assert_eq!(with(domain, status).tied_by, Some(tie));
    }
    let volumes = json!([{"containerDisk": {"image": "i"}}, {"cloudInitNoCloud": {}}]);
    let interfaces = json!([{"masquerade": {}}]);
    let plain = with(json!({"devices": {"interfaces": interfaces}, "volumes": volumes}), none());
    assert_eq!((plain.tied_by, plain.vcpus, plain.exclusive_cpus), (None, 1.0, 0.0));
    let cpu = json!({"dedicatedCpuPlacement": true, "cores": 4, "model": "host-passthrough"});
    let dedicated = with(json!({ "cpu": cpu }), none());
    assert_eq!((dedicated.exclusive_cpus, &*dedicated.cpu_model), (4.0, "host-passthrough"));
    let terms = json!({required: {"nodeSelectorTerms": [{}, {}]}});
    let bound = with(json!({"affinity": {"nodeAffinity": terms}}), none());
    assert_eq!(bound.node_affinity.map(|terms| terms.len()), Some(2));
    let vcpus = |domain: Value, status: Value| with(domain, status).vcpus;
    assert_eq!(vcpus(json!({"cpu": {"cores": 2, "sockets": 3}}), none()), 6.0);
    assert_eq!(vcpus(json!({"resources": {"requests": {"cpu": "1500m"}}}), none()), 2.0);
    let plugged = json!({"currentCPUTopology": {"cores": 1, "sockets": 8, "threads": 1}});
    assert_eq!(vcpus(json!({"cpu": {"cores": 2}}), plugged), 8.0);
}

#[test]
fn a_migration_state_without_an_end_is_active() {
    let with = |status: Value| vm(parse(json!({ "status": status })));
    assert_eq!(with(json!({})).live_migratable, Err("condition LiveMigratable is missing".into()));
    let disks = json!({"type": "LiveMigratable", "status": "False", "reason": "Dis\u{1b}ks"});
    assert_eq!(with(json!({"conditions": [disks]})).live_migratable, Err("Disks".into()));
    let state = |state: Value| with(json!({ "migrationState": state })).migration.unwrap();
    let start = "2026-01-02T03:04:05Z";
    assert_eq!(state(json!({"startTimestamp": start, "targetNode": "b"})).ended, None);
    assert_eq!(state(json!({"startTimestamp": start, "failed": true})).ended, at(start));
    assert_eq!(state(json!({"endTimestamp": start, "targetNode": "b"})).target, "b");
}

#[test]
fn a_migration_belongs_to_a_plan_or_to_an_evacuation() {
    let with = |object: Value| migration(parse(object), &Prefix::default());
    let own = with(json!({
        "metadata": {"name": "psi-agent-a-1", "labels": {"psi-agent.io/planner": "true"}},
        "spec": {"vmiName": "a"},
        "status": {"phase": "Failed", "phaseTransitionTimestamps": [
            {"phase": "Pending", "phaseTransitionTimestamp": "2026-01-02T03:04:05Z"},
            {"phase": "Failed", "phaseTransitionTimestamp": "2026-01-02T03:05:05Z"},
        ]},
    }));
    assert!(own.is_own && !own.is_evacuation && own.vm == "a");
    assert_eq!(own.ended, at("2026-01-02T03:05:05Z"));
    let annotations = json!({"kubevirt.io/evacuationMigration": "node-a"});
    let evacuation = with(json!({"metadata": {"name": "x", "annotations": annotations}}));
    assert!(evacuation.is_evacuation && !evacuation.is_own && !evacuation.is_over_quota);
    let refused = json!({"type": "migrationRejectedByResourceQuota", "status": "True"});
    assert!(with(json!({"status": {"conditions": [refused]}})).is_over_quota);
    assert_eq!(evacuation.source.as_deref(), Some("node-a"));
}

#[test]
fn what_the_planner_cancels_by_is_kept() {
    let pod_with = |status: &str| {
        let scheduled = json!({
            "type": "PodScheduled", "status": status, "lastTransitionTime": "2026-01-02T03:04:05Z",
        });
        pod(parse(json!({"status": {"conditions": [scheduled]}}))).unscheduled_since
    };
    assert_eq!((pod_with("False"), pod_with("True")), (at("2026-01-02T03:04:05Z"), None));
    let of = |metadata: Value| {
        let spec = json!({"vmiName": "v", "addedNodeSelector": {HOSTNAME: "host-b", "a": "b"}});
        migration(parse(json!({"metadata": metadata, "spec": spec})), &Prefix::default())
    };
    let deleted = of(json!({"deletionTimestamp": "2026-01-02T03:04:05Z"}));
    assert_eq!((deleted.hostname.as_deref(), deleted.is_being_deleted), (Some("host-b"), true));
    assert!(!of(json!({})).is_being_deleted);
}
