use super::*;
use crate::bridge::window::tests::{REACH, at};

/// The time of the expected responses.
pub(in crate::bridge) const NOW: &str = "2026-01-01T00:00:00Z";

/// Views of Nodes with this score, all of it from CPU; `None` is a Node without a value.
pub(in crate::bridge) fn views(nodes: &[(&str, Option<f64>)]) -> Views {
    let slow = |mean| {
        let steady = Slow { mean, deviation: 0.0 };
        let memory = Slow { mean: 0.0, deviation: 0.0 };
        SlowNode { score: steady, cpu: Some(steady), memory: Some(memory), headroom: None }
    };
    let view = |points: Option<f64>| points.map(slow).ok_or("missing");
    let known: Vec<SlowNode> = nodes.iter().filter_map(|(_, points)| points.map(slow)).collect();
    let nodes = nodes.iter().map(|(name, points)| ((*name).to_owned(), view(*points)));
    let nodes: BTreeMap<String, NodeView> = nodes.collect();
    Views { nodes: nodes.into_iter().collect(), neutral: average(&known) }
}

type Annotations = BTreeMap<String, String>;

fn annotations(score: &str, seconds: i64, basis: &str) -> Annotations {
    let observed_at = at(seconds).to_string();
    let values =
        [("score", score), ("cpu", score), ("observed-at", &observed_at), ("basis", basis)];
    values.map(|(key, value)| (format!("psi-agent.io/{key}"), value.to_owned())).into()
}

fn table(nodes: &[(&str, Annotations)], now: i64) -> Table {
    let mut table = Table::new(Prefix::default(), REACH);
    let listed = nodes.iter().map(|(name, annotations)| ((*name).to_owned(), annotations.clone()));
    table.replace(listed.collect(), at(now));
    table
}

fn standing_in(views: &Views, name: &str) -> &'static str {
    let (_, view) = views.nodes.iter().find(|(known, _)| known == name).unwrap();
    view.err().unwrap_or("known")
}

fn standing(table: &Table, name: &str, now: i64) -> &'static str {
    standing_in(&table.views(at(now)).unwrap(), name)
}

#[test]
fn a_node_without_a_value_gets_the_average_of_the_known_nodes() {
    let table = table(
        &[
            ("hot", annotations("60", 0, "psi/2")),
            ("calm", annotations("0", 0, "psi/2")),
            ("cool", annotations("30", 0, "psi/2")),
            ("old", annotations("100", -301, "psi/2")),
            ("young", annotations("100", 200, "psi/2")),
            ("empty", Annotations::new()),
            ("odd", annotations("NaN", 0, "psi/2")),
            ("ahead", annotations("100", 400, "psi/2")),
            ("other", annotations("100", 0, "run-delay/2")),
        ],
        300,
    );
    let views = table.views(at(300)).unwrap();
    let expected = [
        ("hot", "known"),
        ("calm", "known"),
        ("cool", "known"),
        ("old", "stale"),
        ("young", "new"),
        ("empty", "missing"),
        ("odd", "malformed"),
        ("ahead", "future"),
        ("other", "other_basis"),
    ];
    for (name, standing) in expected {
        assert_eq!(standing_in(&views, name), standing, "{name}");
        let mean = views.of(name).unwrap().score.mean;
        let own = [("hot", 60.0), ("calm", 0.0)].into_iter().find(|(known, _)| *known == name);
        assert_eq!(mean, own.map_or(30.0, |(_, mean)| mean), "{name}");
    }
    assert_eq!(views.of("not-selected"), views.neutral);
    assert_eq!(STANDINGS.map(|standing| views.count(standing)), [3, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn without_a_known_node_there_is_no_average() {
    let empty = table(&[], 0).views(at(0)).unwrap();
    assert_eq!((empty.neutral, empty.of("any")), (None, None));
    assert_eq!(Table::new(Prefix::default(), REACH).views(at(0)), None, "not listed yet");
    let young = table(&[("a", annotations("40", 0, "psi/2"))], 10);
    assert_eq!(young.views(at(10)).unwrap().of("a"), None);
}

#[test]
fn of_two_equally_common_bases_run_delay_and_the_newer_one_count() {
    let halves = [("a", annotations("40", 0, "psi/2")), ("b", annotations("40", 0, "run-delay/2"))];
    let mut table = table(&halves, 400);
    assert_eq!(standing(&table, "a", 400), "other_basis");
    assert_eq!(standing(&table, "b", 400), "known");
    table.apply("c".into(), &annotations("40", 0, "psi/2"), at(400));
    assert_eq!(standing(&table, "a", 400), "known");
    assert_eq!(standing(&table, "b", 400), "other_basis");
    // Stale values don't count.
    table.apply("d".into(), &annotations("40", -300, "run-delay/2"), at(400));
    assert_eq!(standing(&table, "a", 400), "known");
    let versions = [("a", annotations("40", 0, "psi/10")), ("b", annotations("40", 0, "psi/9"))];
    let table = self::table(&versions, 400);
    assert_eq!(standing(&table, "a", 400), "known");
    assert_eq!(standing(&table, "b", 400), "other_basis");
}

#[test]
fn an_unrelated_change_or_a_new_list_keeps_the_window() {
    let mut table = table(&[("a", annotations("40", 0, "psi/2"))], 0);
    table.apply("a".into(), &annotations("80", 300, "psi/2"), at(300));
    let before = table.views(at(400));
    let mut same = annotations("80", 300, "psi/2");
    same.insert("other.io/key".into(), "changed".into());
    table.apply("a".into(), &same, at(350));
    table.replace(vec![("a".into(), same)], at(390));
    assert_eq!(table.views(at(400)), before);
}

#[test]
fn a_value_from_the_future_stays_unusable() {
    let mut table = table(&[("a", annotations("40", 120, "psi/2"))], 0);
    assert_eq!(standing(&table, "a", 0), "future");
    assert_eq!(standing(&table, "a", 500), "future");
    table.apply("a".into(), &annotations("40", 180, "psi/2"), at(500));
    assert_eq!(standing(&table, "a", 500), "known");
}

#[test]
fn a_deleted_node_leaves_nothing_behind() {
    let mut table = table(&[("a", annotations("40", 0, "psi/2"))], 300);
    table.remove("a");
    assert!(table.views(at(300)).unwrap().nodes.is_empty());
    // A new Node of the same name starts without a history.
    table.apply("a".into(), &annotations("80", 290, "psi/2"), at(300));
    assert_eq!(standing(&table, "a", 300), "new");
    table.replace(Vec::new(), at(300));
    assert!(table.views(at(300)).unwrap().nodes.is_empty());
}
