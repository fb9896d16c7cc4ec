//! How many moves may begin now.

use super::*;

#[test]
fn moves_are_limited_by_what_runs_already() {
    let migration = |phase: &str, is_own, created| Migration {
        phase: phase.into(),
        is_own,
        created,
        ended: ago(30),
        ..Migration::default()
    };
    let because = |all: Vec<Migration>| proposed(|it| it.migrations = all).none_because;
    let waits = because(vec![migration("Pending", false, ago(1))]);
    assert_eq!(waits.as_deref(), Some("1 other migrations wait to start"));
    assert_eq!(because(vec![migration("Running", false, ago(1))]), None);
    // What has waited for over an hour waits for something else.
    assert_eq!(because(vec![migration("Pending", false, ago(61))]), None);
    let unlabelled = proposed(|it| {
        it.namespaces = Some(["vms".to_owned()].into());
        it.migrations = vec![migration("Pending", true, ago(1))];
    });
    assert_eq!(unlabelled.none_because, waits, "of a plan in a namespace without the label");
    let two = because(vec![migration("Running", true, ago(1)), migration("", true, ago(1))]);
    assert_eq!(two.as_deref(), Some("2 own migrations are active, the limit"));
    // Those that hang are cancelled, and take no place.
    let hang =
        because(vec![migration("Running", true, ago(25 * 60)), migration("", true, ago(61))]);
    assert_eq!(hang, None);
    let ten = |minutes| vec![migration("Succeeded", true, ago(minutes)); 10];
    assert!(because(ten(59)).is_some_and(|why| why.starts_with("10 own migrations began")));
    // Those that were deleted.
    let tried = |count: usize| {
        let left_alone = |vm: usize| (vm.to_string(), now());
        proposed(|it| it.left_alone = (0..count).map(left_alone).collect()).none_because
    };
    assert!(tried(10).is_some_and(|why| why.starts_with("10 own migrations began")));
    assert_eq!(tried(9), None);
    assert_eq!(because(ten(61)), None);
}

#[test]
fn migrations_of_vms_that_are_left_alone_count_whatever_their_labels() {
    let proposal = |moved: &[&str], deleted: usize| {
        proposed(|it| {
            let deleted = (0..deleted).map(|number| format!("vms/deleted-{number}"));
            let vms = moved.iter().map(|name| format!("vms/{name}")).chain(deleted);
            it.left_alone = vms.map(|vm| (vm, now())).collect();
            let migration = |name: &&str| Migration {
                namespace: "vms".into(),
                vm: (*name).into(),
                phase: "Running".into(),
                created: ago(1),
                ..Migration::default()
            };
            it.migrations = moved.iter().map(migration).collect();
        })
    };
    let because = |moved: &[&str], deleted| proposal(moved, deleted).none_because.unwrap();
    assert_eq!(because(&["big", "small"], 0), "2 own migrations are active, the limit");
    assert!(because(&["small"], 9).starts_with("10 own migrations began"));
}

#[test]
fn a_descheduler_at_work_stops_the_plan_and_a_drain_does_not() {
    let because = |is_cordoned: Option<bool>, minutes: i64| {
        let proposal = proposed(|it| {
            it.nodes.extend(
                is_cordoned
                    .map(|is_cordoned| ClusterNode { is_cordoned, ..node("drained", "0", "0.00") }),
            );
            it.migrations = vec![Migration {
                namespace: "vms".into(),
                vm: "third".into(),
                phase: "Succeeded".into(),
                is_evacuation: true,
                created: ago(minutes),
                ended: ago(minutes),
                source: Some("drained".into()),
                ..Migration::default()
            }];
        });
        proposal.none_because
    };
    let expected = "vms/third was evicted within an hour from a Node that is not cordoned: a descheduler may be at work";
    assert_eq!(because(Some(false), 59).as_deref(), Some(expected));
    assert_eq!((because(Some(true), 59), because(Some(false), 61)), (None, None));
    // An autoscaler drains a Node, and deletes it.
    assert_eq!(because(None, 59), None);
}
