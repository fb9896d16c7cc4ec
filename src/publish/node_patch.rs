//! The merge patch of the Node: sets or removes all own keys, and leaves other keys alone.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::score::PublishedScore;
use crate::client::cluster::NodeKeys;
use crate::config::OutputFlags;
use crate::contract::{Key, Level, Prefix};

/// The patch. It contains the Node's resource version only if it writes the list of taints, which
/// is always replaced as a whole. Without the version, concurrent writes, such as those of the
/// kubelet, are not conflicts.
pub fn node_patch(
    prefix: &Prefix,
    node: &NodeKeys,
    PublishedScore { pressure, level, demand }: &PublishedScore,
    outputs: &OutputFlags,
) -> Value {
    let points = |points: Option<u8>| points.map(|points| points.to_string());
    let annotations = [
        (Key::Score, points(Some(pressure.score))),
        (Key::Cpu, points(pressure.cpu)),
        (Key::Memory, points(pressure.memory)),
        (Key::Io, points(pressure.io)),
        (Key::ObservedAt, Some(format!("{:.0}", pressure.observed_at))),
        (Key::Basis, Some(pressure.basis.to_string())),
    ];
    let of_demand = match demand {
        Some(demand) => demand.annotations(),
        None => Key::OF_DEMAND.map(|key| (key, None)),
    };
    let class = demand.as_ref().map(|demand| demand.headroom_class().to_string());
    let labels = [
        (Key::Pressure, outputs.label.then(|| level.word().to_owned())),
        (Key::Headroom, class.filter(|_| outputs.label)),
    ];
    let (mut patch, mut metadata) = (Map::new(), Map::new());
    let annotations = annotations.into_iter().chain(of_demand);
    let annotations = changes(prefix, annotations, &node.metadata.annotations);
    metadata.insert("annotations".into(), annotations.into());
    let labels = changes(prefix, labels, &node.metadata.labels);
    if !labels.is_empty() {
        metadata.insert("labels".into(), labels.into());
    }
    if let Some(taints) = taints(prefix, node, *level, outputs) {
        metadata.insert("resourceVersion".into(), json!(node.metadata.resource_version));
        patch.insert("spec".into(), json!({ "taints": taints }));
    }
    patch.insert("metadata".into(), metadata.into());
    patch.into()
}

/// The same patch without the label of the headroom, which admission policies of earlier releases deny.
pub fn without_headroom_label(prefix: &Prefix, patch: &Value) -> Value {
    let mut patch = patch.clone();
    let labels = patch.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    if let Some(labels) = labels {
        labels.remove(&Key::Headroom.of(prefix));
    }
    patch
}

/// Sets the keys that have a value, and removes the others where the Node has them.
fn changes(
    prefix: &Prefix,
    wanted: impl IntoIterator<Item = (Key, Option<String>)>,
    present: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let wanted = wanted.into_iter().map(|(key, value)| (key.of(prefix), value));
    let changes = wanted.filter(|(key, value)| value.is_some() || present.contains_key(key));
    changes.map(|(key, value)| (key, value.into())).collect()
}

/// The whole list of taints; `None` if it needs no change.
fn taints(
    prefix: &Prefix,
    node: &NodeKeys,
    level: Level,
    outputs: &OutputFlags,
) -> Option<Vec<Value>> {
    let is_wanted = |raised: &Level| *raised <= level && outputs.taint_levels.contains(raised);
    let taint =
        |key: Key| json!({"key": key.of(prefix), "value": "true", "effect": "PreferNoSchedule"});
    let wanted = Level::RAISED.into_iter().zip(Key::TAINTS).filter(|(raised, _)| is_wanted(raised));
    let wanted: Vec<Value> = wanted.map(|(_, key)| taint(key)).collect();
    let (own, others) = node.taints(prefix);
    if own.len() == wanted.len() && wanted.iter().all(|taint| own.contains(&taint)) {
        return None;
    }
    Some(others.into_iter().cloned().chain(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Basis, Candidate, NodeDemand, NodePressure};

    fn node(value: Value) -> NodeKeys {
        serde_json::from_value(value).unwrap()
    }

    fn published(level: Level) -> PublishedScore {
        let pressure = NodePressure {
            score: 40,
            cpu: Some(40),
            memory: Some(0),
            io: None,
            observed_at: jiff::Timestamp::from_millisecond(1_767_323_045_678).unwrap(),
            basis: Basis::Psi(8),
        };
        PublishedScore { pressure, level, demand: None }
    }

    fn with_demand(headroom: u32) -> PublishedScore {
        let candidate =
            Candidate { uid: "a-1".into(), demand: 1.5, relief: 0.5, memory: Some(4096) };
        let demand = NodeDemand {
            headroom,
            vms: 3.0,
            others: 0.5,
            waiting: 1.0,
            candidates: vec![candidate],
        };
        PublishedScore { demand: Some(demand), ..published(Level::High) }
    }

    fn outputs(label: bool, taint_levels: &[Level]) -> OutputFlags {
        OutputFlags { label, taint_levels: taint_levels.to_vec() }
    }

    const BOTH: &[Level] = &[Level::Medium, Level::High];

    fn taint(key: &str) -> Value {
        json!({"key": key, "value": "true", "effect": "PreferNoSchedule"})
    }

    fn patched(node_value: Value, level: Level, outputs: &OutputFlags) -> Value {
        let (node, published) = (node(node_value), published(level));
        node_patch(&Prefix::default(), &node, &published, outputs)
    }

    #[test]
    fn annotations_alone_name_no_version() {
        let bare = json!({"metadata": {"name": "a", "resourceVersion": "7",
            "annotations": {"psi-agent.io/io": "5", "other": "x"}}});
        let expected = json!({"metadata": {"annotations": {
            "psi-agent.io/score": "40", "psi-agent.io/cpu": "40", "psi-agent.io/memory": "0",
            "psi-agent.io/io": null, "psi-agent.io/observed-at": "2026-01-02T03:04:05Z",
            "psi-agent.io/basis": "psi/8",
        }}});
        assert_eq!(patched(bare, Level::High, &OutputFlags::default()), expected);
    }

    #[test]
    fn taints_are_written_whole_beside_foreign_ones_and_only_when_they_change() {
        let foreign = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule",
            "timeAdded": "2026-01-01T00:00:00Z"});
        let with = |taints: &[&Value]| json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"taints": taints}});
        let (medium, high) =
            (taint("psi-agent.io/pressure-medium"), taint("psi-agent.io/pressure-high"));
        let write = |taints: &[&Value], level, outputs: &OutputFlags| {
            let patch = patched(with(taints), level, outputs);
            let version = patch["metadata"].get("resourceVersion").cloned();
            assert_eq!(version.is_some(), patch.get("spec").is_some());
            patch.get("spec").map(|spec| spec["taints"].clone())
        };
        let both = outputs(false, BOTH);
        assert_eq!(write(&[&foreign], Level::Low, &both), None);
        assert_eq!(write(&[&foreign], Level::Medium, &both), Some(json!([foreign, medium])));
        assert_eq!(write(&[&medium, &foreign], Level::Medium, &both), None);
        assert_eq!(
            write(&[&medium, &foreign], Level::High, &both),
            Some(json!([foreign, medium, high]))
        );
        assert_eq!(write(&[&medium, &high], Level::Low, &both), Some(json!([])));
        // With the taint high only, medium is removed.
        let only_high = outputs(false, &[Level::High]);
        assert_eq!(write(&[&medium], Level::High, &only_high), Some(json!([high])));
        // A taint that is switched off or has another effect is corrected.
        assert_eq!(
            write(&[&high, &foreign], Level::High, &outputs(false, &[])),
            Some(json!([foreign]))
        );
        let mut wrong = high.clone();
        wrong["effect"] = json!("NoSchedule");
        assert_eq!(write(&[&wrong], Level::High, &only_high), Some(json!([high])));
    }

    #[test]
    fn the_label_is_the_level_and_is_removed_when_it_is_switched_off() {
        let labels = |node_value: Value, label| {
            let patch = patched(node_value, Level::Medium, &outputs(label, &[]));
            patch["metadata"].get("labels").cloned()
        };
        let bare = json!({"metadata": {"name": "a"}});
        let labelled =
            json!({"metadata": {"name": "a", "labels": {"psi-agent.io/pressure": "high"}}});
        let medium = Some(json!({"psi-agent.io/pressure": "medium"}));
        assert_eq!(labels(bare.clone(), true), medium);
        assert_eq!(labels(labelled.clone(), true), medium);
        assert_eq!(labels(labelled, false), Some(json!({"psi-agent.io/pressure": null})));
        assert_eq!(labels(bare, false), None);
    }

    #[test]
    fn the_demand_is_written_with_the_score_and_removed_when_it_is_unknown() {
        let prefix = Prefix::default();
        let patch = |value: Value, published: &PublishedScore, label| {
            node_patch(&prefix, &node(value), published, &outputs(label, &[]))
        };
        let bare = json!({"metadata": {"name": "a"}});
        let written = patch(bare.clone(), &with_demand(5), true);
        let annotations = &written["metadata"]["annotations"];
        assert_eq!(annotations["psi-agent.io/score"], "40");
        assert_eq!(annotations["psi-agent.io/headroom"], "5");
        assert_eq!(annotations["psi-agent.io/demand"], "vms=3.00,others=0.50");
        assert_eq!(annotations["psi-agent.io/waiting"], "1.00");
        let candidates = "uid=a-1,demand=1.50,relief=0.50,memory=4096";
        assert_eq!(annotations["psi-agent.io/candidates"], candidates);
        let labels = json!({"psi-agent.io/pressure": "high", "psi-agent.io/headroom": "4"});
        assert_eq!(written["metadata"]["labels"], labels);

        let unlabelled = patch(bare.clone(), &with_demand(5), false);
        assert_eq!(unlabelled["metadata"].get("labels"), None);
        let present = json!({"metadata": {"name": "a", "labels": {"psi-agent.io/headroom": "4"},
            "annotations": {"psi-agent.io/headroom": "5", "psi-agent.io/candidates": candidates}}});
        let removed = patch(present.clone(), &published(Level::High), true);
        let annotations = &removed["metadata"]["annotations"];
        assert_eq!(annotations["psi-agent.io/headroom"], Value::Null);
        assert!(annotations.get("psi-agent.io/waiting").is_none());
        assert_eq!(removed["metadata"]["labels"]["psi-agent.io/headroom"], Value::Null);

        // Demand that stays under a new date would be taken for today's.
        let earlier = without_headroom_label(&prefix, &written);
        assert_eq!(earlier["metadata"]["annotations"], written["metadata"]["annotations"]);
        assert_eq!(earlier["metadata"]["labels"], json!({"psi-agent.io/pressure": "high"}));
    }
}
