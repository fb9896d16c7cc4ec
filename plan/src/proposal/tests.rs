use super::*;
use crate::cluster::{Amounts, ClusterNode, Labels, LatestMigration, Migration, SCHEDULABLE};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint};

type Change = fn(&mut Cluster);
type ChangeOfVm = fn(&mut Vm, &mut Pod);

fn now() -> Timestamp {
    "2026-01-02T12:00:00Z".parse().unwrap()
}

/// So many minutes ago.
fn ago(minutes: i64) -> Option<Timestamp> {
    Some(Timestamp::from_second(now().as_second() - minutes * 60).unwrap())
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn amounts(cpu: f64, memory: f64) -> Amounts {
    [("cpu", cpu), ("memory", memory), ("pods", 100.0)].map(|(name, it)| (name.into(), it)).into()
}

pub(crate) fn annotate(node: &mut ClusterNode, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        node.annotations.insert(format!("psi-agent.io/{key}"), (*value).into());
    }
}

/// A Node with 32 CPUs.
pub(crate) fn node(name: &str, score: &str, vms: &str) -> ClusterNode {
    let mut node = ClusterNode {
        name: name.into(),
        labels: labels(&[(HOSTNAME, &format!("host-{name}")), (SCHEDULABLE, "true")]),
        is_ready: true,
        cpus: 32.0,
        allocatable: amounts(32.0, 1e9),
        ..ClusterNode::default()
    };
    annotate(
        &mut node,
        &[
            ("score", score),
            ("cpu", score),
            ("memory", "0"),
            ("observed-at", "2026-01-02T11:58:00Z"),
            ("basis", "run-delay/1"),
            ("headroom", "0"),
            ("demand", &format!("vms={vms},others=0")),
            ("waiting", "0"),
        ],
    );
    node
}

pub(crate) fn vm(name: &str, node: &str) -> (Vm, Pod) {
    let vm = Vm {
        namespace: "vms".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        node: node.into(),
        vcpus: 4.0,
        exclusive_cpus: 0.0,
        live_migratable: Ok(()),
        eviction_strategy: Some("LiveMigrate".into()),
        node_selector: Labels::new(),
        node_affinity: None,
        cpu_model: String::new(),
        tied_by: None,
        migration: None,
    };
    let mut requests = amounts(1.0, 1e6);
    requests.remove("pods");
    let pod = Pod {
        namespace: "vms".into(),
        uid: format!("pod-{name}"),
        node: Some(node.into()),
        vm: Some(vm.uid.clone()),
        created: ago(600),
        phase: "Running".into(),
        requests,
        labels: labels(&[("kubevirt.io/created-by", &vm.uid)]),
        ..Pod::default()
    };
    (vm, pod)
}

/// `hot` is contended and names two candidates; `cool` and `mild` are not.
pub(crate) fn cluster() -> Cluster {
    let mut hot = node("hot", "40", "40.00");
    let candidates = "uid=pod-big,demand=4.00,relief=4.00;uid=pod-small,demand=2.00,relief=2.00";
    annotate(&mut hot, &[("candidates", candidates), ("waiting", "8.00")]);
    let nodes = vec![hot, node("cool", "0", "4.00"), node("mild", "5", "20.00")];
    let (vms, pods) = [vm("big", "hot"), vm("small", "hot")].into_iter().unzip();
    Cluster { nodes, vms, pods, ..Cluster::default() }
}

fn proposed(change: impl FnOnce(&mut Cluster)) -> Proposal {
    let mut cluster = cluster();
    change(&mut cluster);
    propose(&cluster, &Rules::default(), now())
}

/// VM and target of each move.
fn moves(proposal: &Proposal) -> Vec<(&str, &str)> {
    proposal.moves.iter().map(|one| (one.name.as_str(), one.target.as_str())).collect()
}

fn reason<'a>(all: &'a [LeftOut], name: &str) -> &'a str {
    all.iter().find(|one| one.name == name).map_or("", |one| &one.reason)
}

#[test]
fn the_vm_with_the_most_relief_goes_to_the_emptiest_node() {
    let proposal = proposed(|_| {});
    let [one] = &proposal.moves[..] else { panic!("{proposal:?}") };
    assert_eq!(
        (one.name.as_str(), one.source.as_str(), one.target.as_str()),
        ("big", "hot", "cool")
    );
    assert_eq!(one.hostname, "host-cool");
    assert_eq!(one.source_demand, Load { before: 40.0, after: 36.0, cpus: 32.0 });
    assert_eq!(one.target_demand, Load { before: 4.0, after: 8.0, cpus: 32.0 });
    assert!(one.gain > 3.5 && one.gain < 3.7, "{one:?}");
    assert_eq!(one.reason, "most gain of 4 possible moves");
    assert_eq!(reason(&proposal.vms, "vms/small"), "a move with a larger gain comes first");
    assert_eq!(proposal.nodes, []);
    assert_eq!(proposal.none_because, None);
}

#[test]
fn a_node_without_a_usable_value_or_at_rest_takes_no_vm() {
    let changes: [(&str, Change); 12] = [
        ("score is stale: 11 min old", |it| {
            annotate(&mut it.nodes[1], &[("observed-at", "2026-01-02T11:49:00Z")]);
        }),
        ("future", |it| annotate(&mut it.nodes[1], &[("observed-at", "2026-01-02T12:49:00Z")])),
        ("not ready", |it| it.nodes[1].is_ready = false),
        ("basis psi/8", |it| annotate(&mut it.nodes[1], &[("basis", "psi/8")])),
        ("expected CPUs", |it| annotate(&mut it.nodes[1], &[("waiting", "x")])),
        ("no published score", |it| it.nodes[1].annotations.clear()),
        ("unknown CPU contention", |it| {
            it.nodes[1].annotations.remove("psi-agent.io/cpu");
        }),
        ("cordoned", |it| it.nodes[1].is_cordoned = true),
        ("not schedulable for KubeVirt", |it| {
            it.nodes[1].labels.insert(SCHEDULABLE.into(), "false".into());
        }),
        ("memory contention 15", |it| annotate(&mut it.nodes[1], &[("memory", "15")])),
        ("unknown memory", |it| {
            it.nodes[1].annotations.remove("psi-agent.io/memory");
        }),
        ("2 VMs arrived within an hour", |it| {
            for name in ["a", "b"] {
                let (vm, pod) = vm(name, "cool");
                it.vms.push(vm);
                it.pods.push(Pod { created: ago(59), ..pod });
            }
        }),
    ];
    for (expected, change) in changes {
        let proposal = proposed(change);
        let found = reason(&proposal.nodes, "cool");
        assert!(found.contains(expected), "{found}, not {expected}");
        assert_eq!(moves(&proposal), [("big", "mild")], "{expected}");
    }
}

#[test]
fn a_node_rests_after_a_migration() {
    let migration = |phase: &str, ended| Migration {
        uid: "m".into(),
        namespace: "vms".into(),
        vm: "third".into(),
        phase: phase.into(),
        ended,
        target: Some("cool".into()),
        is_own: true,
        ..Migration::default()
    };
    let target =
        |it: Migration| proposed(|cluster| cluster.migrations = vec![it]).moves[0].target.clone();
    assert_eq!(target(migration("Running", None)), "mild");
    assert_eq!(target(migration("Failed", ago(9))), "mild");
    assert_eq!(target(migration("Succeeded", ago(11))), "cool");
    let queued = |minutes| Migration { created: ago(minutes), ..migration("Pending", None) };
    assert_eq!((target(queued(59)), target(queued(61))), ("mild".into(), "cool".into()));
    let running = |hours: i64| Migration { created: ago(60 * hours), ..migration("Running", None) };
    // It is no longer part of one that hangs.
    let hangs = |hours| target(Migration { target: Some("cool".into()), ..running(hours) });
    assert_eq!((hangs(23), hangs(25)), ("mild".into(), "cool".into()));
    let bound = Pod {
        namespace: "vms".into(),
        node: Some("cool".into()),
        migration: Some("m".into()),
        phase: "Pending".into(),
        ..Pod::default()
    };
    let proposal = proposed(|it| {
        it.migrations = vec![Migration { target: None, ..migration("Scheduling", None) }];
        it.pods.push(bound);
    });
    assert_eq!(moves(&proposal), [("big", "mild")]);
    let by_vm = proposed(|it| {
        let (mut third, _) = vm("third", "mild");
        let (source, target) = ("hot".into(), "mild".into());
        third.migration = Some(LatestMigration { ended: ago(5), source, target });
        it.vms.push(third);
    });
    assert_eq!(moves(&by_vm), []);
    let rest = "part of a migration now or in the last 10 min";
    assert_eq!([reason(&by_vm.nodes, "hot"), reason(&by_vm.nodes, "mild")], [rest, rest]);
    // Its status is what a tenant wrote: about other Nodes, of a year to come, or without a pod.
    let forged = |node: &str, ended| {
        let mut cluster = cluster();
        let (mut forged, pod) = vm("forged", node);
        let (source, target) = ("hot".into(), "cool".into());
        forged.migration = Some(LatestMigration { ended, source, target });
        cluster.vms.push(forged);
        cluster.pods.extend((node == "mild").then_some(pod));
        cluster.forget_vms_without_pods();
        moves(&propose(&cluster, &Rules::default(), now())).len()
    };
    assert_eq!(forged("mild", ago(5)), 1);
    assert_eq!(forged("cool", "2099-01-01T00:00:00Z".parse().ok()), 1);
    assert_eq!(forged("cool", ago(5)), 1);
}

#[test]
fn without_values_of_two_thirds_of_the_nodes_there_is_no_plan() {
    let without = |nodes: &[usize]| {
        proposed(|it| nodes.iter().for_each(|at| it.nodes[*at].is_ready = false)).none_because
    };
    assert_eq!(without(&[2]), None);
    let expected = "2 of 3 nodes have no usable value, more than a third";
    assert_eq!(without(&[1, 2]).as_deref(), Some(expected));
    // A Node without virt-handler does not count.
    let proposal = proposed(|it| it.nodes.extend([ClusterNode::default(), ClusterNode::default()]));
    assert_eq!(moves(&proposal), [("big", "cool")]);
}

#[test]
fn a_vm_that_may_not_move_is_left_out_with_its_reason() {
    let changes: [(&str, ChangeOfVm); 11] = [
        ("started within 6 h", |_, pod| pod.created = ago(359)),
        ("started within 6 h", |_, pod| pod.created = None),
        ("migrated, or tried to, within 6 h", |vm, _| {
            vm.migration = Some(LatestMigration { ended: ago(359), ..LatestMigration::default() });
        }),
        // A forged end of a migration hides no start.
        ("started within 6 h", |vm, pod| {
            pod.created = ago(10);
            vm.migration = Some(LatestMigration { ended: ago(-61), ..LatestMigration::default() });
        }),
        ("not live-migratable: DisksNotLiveMigratable", |vm, _| {
            vm.live_migratable = Err("DisksNotLiveMigratable".into());
        }),
        ("huge pages", |vm, _| vm.tied_by = Some("huge pages")),
        ("eviction strategy is None", |vm, _| vm.eviction_strategy = Some("None".into())),
        ("eviction strategy is External", |vm, _| vm.eviction_strategy = Some("External".into())),
        ("prefers no eviction", |_, pod| pod.prefers_no_eviction = true),
        ("topology spread", |_, pod| pod.requires_other_pods = true),
        ("pinned to its node", |vm, _| vm.node_selector = labels(&[(HOSTNAME, "host-hot")])),
    ];
    for (expected, change) in changes {
        let proposal = proposed(|it| change(&mut it.vms[0], &mut it.pods[0]));
        let found = reason(&proposal.vms, "vms/big");
        assert!(found.contains(expected), "{found}, not {expected}");
        assert_eq!(moves(&proposal), [("small", "cool")], "{expected}");
    }
    let migration = |phase: &str, ended| Migration {
        namespace: "vms".into(),
        vm: "big".into(),
        phase: phase.into(),
        ended,
        ..Migration::default()
    };
    // It failed before it was in the VM's status.
    let failed = proposed(|it| it.migrations = vec![migration("Failed", ago(359))]);
    assert_eq!(reason(&failed.vms, "vms/big"), "it migrated, or tried to, within 6 h");
    assert_eq!(moves(&failed), [("small", "cool")]);
    // A state without an end is that of a migration that was deleted.
    let deleted = proposed(|it| it.vms[0].migration = Some(LatestMigration::default()));
    assert_eq!(moves(&deleted), [("big", "cool")]);
    let long_ago = proposed(|it| it.migrations = vec![migration("Failed", ago(361))]);
    assert_eq!(moves(&long_ago), [("big", "cool")]);
    // The end of a migration counts, not the start of its pod.
    let migrated = proposed(|it| {
        it.pods[0].created = ago(10);
        it.vms[0].migration =
            Some(LatestMigration { ended: ago(361), ..LatestMigration::default() });
    });
    assert_eq!(moves(&migrated), [("big", "cool")]);
    // Its node does not rest while it waits for so long.
    let active = proposed(|it| {
        it.migrations = vec![Migration { created: ago(61), ..migration("Pending", None) }];
    });
    assert_eq!(reason(&active.vms, "vms/big"), "a migration is active");
    assert_eq!(moves(&active), [("small", "cool")]);
}

#[test]
fn a_vm_pinned_by_affinity_stays() {
    let is_in = |values: &[&str]| NodeSelectorRequirement {
        key: HOSTNAME.into(),
        operator: "In".into(),
        values: Some(values.iter().map(|value| (*value).into()).collect()),
    };
    let of_pod = |it: &mut Cluster, terms| it.pods[0].node_affinity = Some(terms);
    // It was changed while the VM ran.
    let of_vm = |it: &mut Cluster, terms| it.vms[0].node_affinity = Some(terms);
    for set in [of_pod, of_vm] {
        let with = |values: &[&str]| {
            let match_expressions = Some(vec![is_in(values)]);
            let term = NodeSelectorTerm { match_expressions, ..<_>::default() };
            proposed(|it| set(it, vec![term]))
        };
        assert!(reason(&with(&["host-hot"]).vms, "vms/big").starts_with("pinned"));
        assert_eq!(moves(&with(&["host-hot", "host-mild"])), [("big", "mild")]);
    }
    let proposal = proposed(|it| {
        it.nodes[1].taints =
            vec![Taint { key: "gpu".into(), effect: "NoSchedule".into(), ..Taint::default() }];
        it.nodes[2].allocatable.insert("memory".into(), 1.0);
    });
    let found = reason(&proposal.vms, "vms/big");
    assert_eq!(found, "no node fits: requests of memory (1), taint gpu (1)");
    assert_eq!(proposal.none_because.as_deref(), Some("no candidate has a target that gains"));
}

#[test]
fn an_empty_plan_says_why() {
    let because = |change: fn(&mut Cluster)| proposed(change).none_because.unwrap_or_default();
    let calm = because(|it| {
        it.nodes[0].annotations.remove("psi-agent.io/candidates");
    });
    assert_eq!(calm, "no node that may lose a VM has candidates: none is contended");
    let none = because(|it| it.vms.iter_mut().for_each(|vm| vm.tied_by = Some("host devices")));
    assert_eq!(none, "no candidate may move");
    assert_eq!(because(|it| it.nodes.clear()), "no Node can run VMs of KubeVirt");
    let full = proposed(|it| {
        annotate(&mut it.nodes[1], &[("demand", "vms=45,others=1")]);
        annotate(&mut it.nodes[2], &[("demand", "vms=46,others=0")]);
    });
    assert!(reason(&full.vms, "vms/big").starts_with("no target gains 0.5 CPUs"), "{full:?}");
    let as_contended = proposed(|it| {
        annotate(&mut it.nodes[1], &[("cpu", "25")]);
        annotate(&mut it.nodes[2], &[("cpu", "25")]);
    });
    assert!(reason(&as_contended.vms, "vms/big").contains("25 points less"), "{as_contended:?}");
}

mod bounds;
mod limits;
