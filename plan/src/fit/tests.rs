use k8s_openapi::api::core::v1::PodAffinityTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::*;
use crate::proposal::tests::{cluster, labels, node, vm};

/// Why the VM `big` does not fit on the Node `cool`.
fn obstacle(change: impl FnOnce(&mut Cluster)) -> Option<String> {
    let mut cluster = cluster();
    change(&mut cluster);
    let constraints =
        Constraints::of(&cluster, &cluster.vms[0], &cluster.pods[0], &cluster.nodes[0]);
    constraints.obstacle(&cluster.nodes[1], &Free::of(&cluster))
}

fn term(key: &str, value: &str, topology_key: &str) -> PodAffinityTerm {
    let selector = LabelSelector { match_labels: Some(labels(&[(key, value)])), ..<_>::default() };
    let label_selector = Some(selector);
    PodAffinityTerm { label_selector, topology_key: topology_key.into(), ..<_>::default() }
}

#[test]
fn requests_of_pods_that_have_not_ended_are_taken() {
    assert_eq!(obstacle(|_| {}), None);
    let taken = |cpu: f64, phase: &'static str| {
        obstacle(move |it| {
            let (_, mut pod) = vm("third", "cool");
            pod.requests.insert("cpu".into(), cpu);
            it.pods.push(Pod { phase: phase.into(), ..pod });
        })
    };
    assert_eq!(taken(31.0, "Running"), None);
    assert_eq!(taken(31.5, "Pending").as_deref(), Some("requests of cpu"));
    assert_eq!(taken(31.5, "Succeeded"), None);
    let pods = obstacle(|it| {
        it.nodes[1].allocatable.insert("pods".into(), 0.0);
    });
    assert_eq!(pods.as_deref(), Some("requests of pods"));
    let device = obstacle(|it| {
        it.pods[0].requests.insert("devices.kubevirt.io/kvm".into(), 1.0);
    });
    assert_eq!(device.as_deref(), Some("requests of devices.kubevirt.io/kvm"));
}

#[test]
fn the_selector_of_an_earlier_migration_does_not_count() {
    let selected =
        |key: &str, value: &str| obstacle(|it| it.pods[0].node_selector = labels(&[(key, value)]));
    assert_eq!(selected(HOSTNAME, "host-hot"), None);
    assert_eq!(selected("kubevirt.io/schedulable", "true"), None);
    let why = Some("node selector or affinity");
    assert_eq!(selected("kubernetes.io/arch", "arm64").as_deref(), why);
    // Such as what OpenShift adds for a project.
    assert_eq!(selected("env", "prod").as_deref(), why);
    assert_eq!(obstacle(|it| it.vms[0].node_selector = labels(&[("a", "b")])).as_deref(), why);
}

#[test]
fn a_vm_stays_on_cpus_of_one_vendor() {
    let vendor = |name: &str| labels(&[(&*format!("{VENDOR}{name}"), "true")]);
    let to = |name: &'static str| {
        obstacle(move |it| {
            it.nodes[0].labels.extend(vendor("Intel"));
            it.nodes[1].labels.extend(vendor(name));
        })
    };
    assert_eq!((to("Intel"), to("AMD").as_deref()), (None, Some("node selector or affinity")));
}

#[test]
fn a_vm_with_the_hosts_cpu_model_needs_a_node_that_can_run_it() {
    let with = |of_target: &'static [(&'static str, &'static str)]| {
        obstacle(move |it| {
            it.vms[0].cpu_model = "host-model".into();
            let of_source = [
                ("host-model-cpu.node.kubevirt.io/Skylake", "true"),
                ("host-model-required-features.node.kubevirt.io/apic", "true"),
            ];
            it.nodes[0].labels.extend(labels(&of_source));
            it.nodes[1].labels.extend(labels(of_target));
        })
    };
    let both = &[
        ("cpu-model-migration.node.kubevirt.io/Skylake", "true"),
        ("cpu-feature.node.kubevirt.io/apic", "true"),
    ];
    assert!(with(&[]).is_some() && with(&both[..1]).is_some() && with(&both[1..]).is_some());
    assert_eq!(with(both), None);
    let passed_through = |model: &'static str| {
        obstacle(move |it| {
            it.vms[0].cpu_model = "host-passthrough".into();
            let of = |model: &str| labels(&[(&*format!("{HOST_MODEL}{model}"), "true")]);
            it.nodes[0].labels.extend(of("Skylake"));
            it.nodes[1].labels.extend(of(model));
        })
    };
    assert!(passed_through("Broadwell").is_some() && passed_through("Skylake").is_none());
}

#[test]
fn pods_are_kept_apart_in_both_directions() {
    let neighbour = |it: &mut Cluster, own: bool| {
        it.nodes[1].labels.extend(labels(&[("zone", "z")]));
        it.nodes.push(node("fourth", "0", "0.00"));
        it.nodes[3].labels.extend(labels(&[("zone", "z")]));
        let (_, mut pod) = vm("third", "fourth");
        if own {
            pod.labels.extend(labels(&[("app", "db")]));
            it.pods[0].anti_affinity = vec![term("app", "db", "zone")];
        } else {
            it.pods[0].labels.extend(labels(&[("app", "db")]));
            pod.anti_affinity = vec![term("app", "db", "zone")];
        }
        it.pods.push(pod);
    };
    for own in [true, false] {
        assert_eq!(obstacle(|it| neighbour(it, own)).as_deref(), Some("pod anti-affinity"));
        let ended = obstacle(|it| {
            neighbour(it, own);
            it.pods[2].phase = "Failed".into();
        });
        assert_eq!(ended, None);
    }
    // What KubeVirt adds to the target of a migration does not keep the VM from moving on.
    let of_kubevirt = obstacle(|it| {
        let uid = it.vms[0].uid.clone();
        it.pods[0].anti_affinity = vec![term("kubevirt.io/created-by", &uid, HOSTNAME)];
        let (_, old) = vm("big", "cool");
        it.pods.push(Pod { phase: "Running".into(), ..old });
    });
    assert_eq!(of_kubevirt, None);
}
