//! What agents and tenants write has bounds.

use super::*;

#[test]
fn what_an_agent_publishes_is_bounded() {
    let huge = |relief: &str| format!("uid=pod-big,demand=500,relief={relief}");
    let proposal = proposed(|it| annotate(&mut it.nodes[0], &[("candidates", &huge("9999"))]));
    let [one] = &proposal.moves[..] else { panic!("{proposal:?}") };
    assert!(one.demand == 4.0 && one.gain < 4.0, "4 vCPUs: {one:?}");
    let foreign = |it: &mut Cluster| it.pods[0].node = Some("mild".into());
    let proposal = proposed(foreign);
    assert_eq!(moves(&proposal), [("small", "cool")]);
    assert_eq!(reason(&proposal.vms, "pod pod-big"), "no running VM of the node has this pod");
    assert_eq!(moves(&proposed(|it| it.vms[0].node = "mild".into())), [("small", "cool")]);
    assert_eq!(moves(&proposed(|it| it.pods[0].phase = "Pending".into())), [("small", "cool")]);
    let mut cluster = cluster();
    annotate(&mut cluster.nodes[0], &[("waiting", "999999999")]);
    cluster.nodes[1].labels.remove(SCHEDULABLE);
    let waiting = nodes::waiting(&cluster, now());
    assert_eq!((waiting["hot"], waiting.get("cool")), (8.0, None), "two VMs have 4 vCPUs each");
}

#[test]
fn cpus_of_one_vm_are_no_room_for_others() {
    let with = |exclusive_cpus, requested| {
        proposed(|it| {
            let (dedicated, mut pod) = vm("dedicated", "cool");
            it.pods.push(Pod { namespace: "of-a-tenant".into(), ..pod.clone() });
            it.vms.push(Vm { exclusive_cpus, ..dedicated });
            pod.requests.insert("cpu".into(), requested);
            it.pods.push(pod);
        })
    };
    // Of 32 CPUs, 8 are left, and 4 of them are in use.
    assert_eq!(moves(&with(24.0, 24.0)), [("big", "mild")]);
    assert_eq!(moves(&with(4.0, 4.0)), [("big", "cool")]);
    // What a tenant writes into a VM takes no CPUs.
    assert_eq!(moves(&with(1_000.0, 1.0)), [("big", "cool")]);
}

#[test]
fn a_pod_of_another_namespace_names_no_vm() {
    let forged = proposed(|it| it.pods[0].namespace = "of-a-tenant".into());
    assert_eq!(moves(&forged), [("small", "cool")]);
    assert_eq!(reason(&forged.vms, "pod pod-big"), "no running VM of the node has this pod");
}
