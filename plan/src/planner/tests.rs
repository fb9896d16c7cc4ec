use super::*;
use crate::cluster::{ClusterNode, Pod};
use crate::proposal::tests::{annotate, cluster, node, vm};
use crate::{Rules, propose};

fn start() -> Timestamp {
    "2026-01-02T12:00:00Z".parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    Timestamp::from_second(start().as_second() + seconds).unwrap()
}

fn own(name: &str, phase: &str, ended: Option<Timestamp>) -> Migration {
    Migration {
        namespace: "vms".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        vm: "big".into(),
        phase: phase.into(),
        is_own: true,
        hostname: Some("host-cool".into()),
        ended,
        ..Migration::default()
    }
}

/// A migration whose target's pod finds no Node since the start.
fn pending() -> (Migration, Pod) {
    let pod = Pod {
        namespace: "vms".into(),
        migration: Some("uid-p".into()),
        phase: "Pending".into(),
        unscheduled_since: Some(start()),
        ..Pod::default()
    };
    (own("p", "Scheduling", None), pod)
}

fn with_pending(change: impl FnOnce(&mut Migration, &mut Pod)) -> Cluster {
    let (mut migration, mut pod) = pending();
    change(&mut migration, &mut pod);
    let mut cluster = cluster();
    cluster.migrations.push(migration);
    cluster.pods.push(pod);
    cluster
}

#[test]
fn a_migration_without_a_node_for_a_minute_is_cancelled_and_its_vm_stays_for_an_hour() {
    let mut state = State::default();
    let with_it = with_pending(|_, _| {});
    assert!(state.review(&with_it, after(59)).is_empty());
    let cancelled = state.review(&with_it, after(60));
    assert_eq!(cancelled.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["p"]);
    assert_eq!(state.failed, ["vms/big"]);
    assert_eq!(state.left_alone["vms/big"], after(3_660));

    let without = |state: &State| Cluster { left_alone: state.left_alone.clone(), ..cluster() };
    let moves = |cluster: &Cluster| {
        let moves = propose(cluster, &Rules::default(), start()).moves;
        moves.into_iter().map(|one| (one.name, one.target)).collect::<Vec<_>>()
    };
    assert_eq!(moves(&cluster()), [("big".into(), "cool".into())]);
    // Another VM may go there.
    assert_eq!(moves(&without(&state)), [("small".into(), "cool".into())]);
    state.review(&cluster(), after(3_661));
    assert_eq!(moves(&without(&state)), [("big".into(), "cool".into())]);
}

#[test]
fn a_vm_stays_for_an_hour_even_if_its_migration_is_deleted() {
    let (mut state, mut cluster) = (State::default(), cluster());
    let moves = |cluster: &Cluster| propose(cluster, &Rules::default(), start()).moves;
    let [big] = &moves(&cluster)[..] else { panic!() };
    state.begin(&cluster, big, start());
    for (second, name) in [(3_599, "small"), (3_600, "big")] {
        state.review(&cluster, after(second));
        cluster.left_alone.clone_from(&state.left_alone);
        assert_eq!(moves(&cluster)[0].name, name);
    }
}

#[test]
fn only_own_migrations_that_wait_for_a_node_are_cancelled() {
    let changes: [fn(&mut Migration, &mut Pod); 8] = [
        |it, _| it.is_own = false,
        |it, _| it.is_being_deleted = true,
        |it, _| it.phase = "Failed".into(),
        |it, _| it.phase = "Running".into(),
        |_, pod| pod.namespace = "of-a-tenant".into(),
        |_, pod| pod.unscheduled_since = None,
        |_, pod| pod.node = Some("cool".into()),
        |_, pod| pod.migration = Some("uid-of-another".into()),
    ];
    for change in changes {
        assert!(State::default().review(&with_pending(change), after(600)).is_empty());
    }
    // A tenant gives the label to another pod.
    let mut with_another = with_pending(|_, pod| pod.node = Some("cool".into()));
    with_another.pods.extend([pending().1]);
    assert!(State::default().review(&with_another, after(600)).is_empty());
    // Anyone who may create migrations can give one the label of a plan's.
    let mut elsewhere = with_pending(|_, _| {});
    elsewhere.namespaces = Some(["others".to_owned()].into());
    assert!(State::default().review(&elsewhere, after(600)).is_empty());
}

#[test]
fn a_migration_that_hangs_is_cancelled() {
    let with = |phase: &str, hours: i64| {
        with_pending(|migration, pod| {
            migration.phase = phase.into();
            migration.created = Some(after(-3_600 * hours));
            (pod.node, pod.unscheduled_since) = (Some("cool".into()), None);
        })
    };
    let mut state = State::default();
    for (phase, hours) in [("Scheduling", 1), ("Running", 24)] {
        assert!(state.review(&with(phase, hours), start()).is_empty(), "{phase}");
        assert_eq!(state.review(&with(phase, hours), after(1)).len(), 1, "{phase}");
    }
    assert_eq!(state.failed, ["vms/big"], "the same VM twice");
}

#[test]
fn a_migration_without_a_pod_for_ten_minutes_is_cancelled() {
    let with = |phase: &str| {
        let mut cluster = cluster();
        let created = Some(start());
        cluster.migrations.push(Migration { created, ..own("p", phase, None) });
        cluster
    };
    for phase in ["", "Pending"] {
        let mut state = State::default();
        assert!(state.review(&with(phase), after(599)).is_empty());
        assert_eq!(state.review(&with(phase), after(600)).len(), 1);
        assert_eq!((state.failed.len(), state.left_alone.len()), (0, 1));
    }
    assert!(State::default().review(&with("Running"), after(600)).is_empty());
    // A pod that a quota forbids will not come.
    let mut over_quota = with("Pending");
    over_quota.migrations[0].is_over_quota = true;
    let mut state = State::default();
    assert!(state.review(&over_quota, after(59)).is_empty());
    assert_eq!((state.review(&over_quota, after(60)).len(), state.failed.len()), (1, 1));
}

#[test]
fn failures_of_three_vms_in_a_row_stop_the_planner_until_it_is_resumed() {
    let mut state = State::default();
    let mut cluster = cluster();
    let mut end = |state: &mut State, vm: &str, phase: &str, second| {
        let migration = own(&format!("m{second}"), phase, Some(after(second)));
        cluster.migrations.push(Migration { vm: vm.into(), ..migration });
        state.review(&cluster, after(second));
        state.failed.len()
    };
    // What ended before the first plan does not count.
    assert_eq!(end(&mut state, "big", "Failed", 0), 0);
    assert_eq!(end(&mut state, "big", "Failed", 10), 1);
    assert_eq!(end(&mut state, "small", "Failed", 20), 2);
    assert_eq!(end(&mut state, "big", "Succeeded", 30), 0);
    for second in [40, 41, 42] {
        assert_eq!(
            end(&mut state, "big", "Failed", second),
            1,
            "a VM that cannot move stops no other"
        );
    }
    state.fail("vms/third".into(), "migration of VM third was refused", after(45));
    assert_eq!((state.failed.len(), &state.stopped), (2, &None));
    assert_eq!(end(&mut state, "small", "Failed", 50), 3);
    let stopped = state.stopped.clone().unwrap();
    let last = "the last: migration vms/m50 of VM small to host-cool failed";
    let reason = format!("migrations of 3 VMs in a row failed; {last}");
    assert_eq!((stopped.at, stopped.reason), (after(50), reason));
    assert_eq!(end(&mut state, "fourth", "Failed", 60), 3, "no more is remembered");
    assert_eq!(state.stopped.as_ref().unwrap().at, after(50), "the first stop stands");
    assert!(state.resume().is_some() && state.resume().is_none());
    assert_eq!(end(&mut state, "big", "Failed", 70), 1);
}

#[test]
fn dates_of_a_clock_that_was_ahead_hold_nothing() {
    let (mut state, day) = (State::default(), 24 * 3_600);
    state.review(&cluster(), after(day));
    state.fail("vms/big".into(), "it was refused", after(day));
    let mut cluster = cluster();
    state.review(&cluster, start());
    assert_eq!(state.left_alone["vms/big"], after(3_600));
    let failed = Migration { vm: "small".into(), ..own("m", "Failed", Some(after(60))) };
    cluster.migrations.push(failed);
    state.review(&cluster, after(120));
    assert_eq!(state.failed, ["vms/big", "vms/small"]);
}

#[test]
fn a_vm_of_a_namespace_without_the_label_stays() {
    let mut cluster = cluster();
    cluster.namespaces = Some(["others".to_owned()].into());
    let proposal = propose(&cluster, &Rules::default(), start());
    assert_eq!(proposal.moves, []);
    let reason = "its namespace has no label psi-agent.io/plan: \"true\"";
    assert!(proposal.vms.iter().all(|one| one.reason == reason), "{:?}", proposal.vms);
    cluster.namespaces = Some(["vms".to_owned()].into());
    assert_eq!(propose(&cluster, &Rules::default(), start()).moves.len(), 1);
}

/// A cluster in which one agent claims to be calm, whatever arrives on its Node.
fn with_a_lure() -> Cluster {
    let mut cluster = Cluster { nodes: vec![node("lure", "0", "0")], ..Cluster::default() };
    for at in 0..20 {
        let name = format!("hot{at}");
        let (vm, pod) = vm(&name, &name);
        let mut hot = node(&name, "40", "40.00");
        let candidate = format!("uid={},demand=4.00,relief=4.00", pod.uid);
        annotate(&mut hot, &[("candidates", &candidate), ("waiting", "8.00")]);
        cluster.nodes.push(hot);
        cluster.vms.push(vm);
        cluster.pods.push(pod);
    }
    cluster
}

/// What the cluster is once a migration has succeeded: the VM's pod is a new one.
fn arrive(cluster: &mut Cluster, vm: &str, target: &str, now: Timestamp) {
    let at = cluster.vms.iter().position(|one| one.name == vm).unwrap();
    cluster.vms[at].node = target.into();
    cluster.pods[at].node = Some(target.into());
    cluster.pods[at].created = Some(now);
    let ended = Migration { created: Some(now), vm: vm.into(), ..own(vm, "Succeeded", Some(now)) };
    cluster.migrations.push(ended);
}

#[test]
fn an_agent_that_claims_to_be_calm_attracts_two_vms_an_hour() {
    let rules = Rules { most_active: 100, moves_per_hour: 100, ..Rules::default() };
    let mut cluster = with_a_lure();
    let mut arrivals = Vec::new();
    for second in (0..3 * 3_600).step_by(120) {
        let now = after(second);
        for node in &mut cluster.nodes {
            annotate(node, &[("observed-at", &now.to_string())]);
        }
        for one in propose(&cluster, &rules, now).moves {
            assert_eq!(one.target, "lure");
            arrive(&mut cluster, &one.name, &one.target, now);
            arrivals.push(second);
        }
    }
    assert!(arrivals.len() >= 4, "it attracts some: {arrivals:?}");
    for first in &arrivals {
        let within = arrivals.iter().filter(|at| (*first..first + 3_600).contains(at));
        assert!(within.count() <= 2, "{arrivals:?}");
    }
}

#[test]
fn a_target_takes_no_second_vm_before_the_first_has_a_pod() {
    let mut cluster = with_a_lure();
    let rules = Rules { most_active: 100, moves_per_hour: 100, ..Rules::default() };
    let created =
        Migration { vm: "hot0".into(), hostname: Some("host-lure".into()), ..own("m", "", None) };
    cluster.migrations.push(created);
    assert_eq!(propose(&cluster, &rules, start()).moves, []);
    cluster.migrations[0].hostname = None;
    assert_eq!(propose(&cluster, &rules, start()).moves.len(), 1);
}

#[test]
fn an_agent_moves_no_vm_of_another_node_whatever_it_publishes() {
    let mut cluster = with_a_lure();
    // Of the others none is a candidate; the false agent names their pods, and those that do not exist.
    let pods = cluster.pods.clone();
    for false_node in ["lure", "hot0"] {
        for node in &mut cluster.nodes {
            let uids = ["pod-hot1", "pod-hot2", "none"];
            let all = uids.map(|uid| format!("uid={uid},demand=99,relief=99")).join(";");
            let of_false = if node.name == false_node { all.as_str() } else { "" };
            annotate(node, &[("candidates", of_false), ("demand", "vms=99,others=0")]);
        }
        calm(&mut cluster.nodes, "hot19");
        let proposal = propose(&cluster, &Rules::default(), start());
        assert_eq!(proposal.moves, [], "{false_node}");
        assert_eq!(proposal.vms.len(), 3, "{proposal:?}");
    }
    // The same claims about a VM of its own Node move that VM.
    let own = format!("uid={},demand=99,relief=99", pods[0].uid);
    annotate(
        cluster.nodes.iter_mut().find(|it| it.name == "hot0").unwrap(),
        &[("candidates", &own)],
    );
    let moves = propose(&cluster, &Rules::default(), start()).moves;
    assert_eq!(moves.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["hot0"]);
}

fn calm(nodes: &mut [ClusterNode], name: &str) {
    let one = nodes.iter_mut().find(|node| node.name == name).unwrap();
    annotate(one, &[("cpu", "0"), ("demand", "vms=0,others=0")]);
}
