//! load-watcher's document. It has the CPU and memory contention of each Node over the window, in
//! percent, in the fields from which Trimaran's plugins read utilization. Pure.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::document::{self, Document};
use super::table::Views;
use super::window::{Slow, SlowNode};

/// The document of all Nodes. If none has a known score, it has no Nodes, so that Trimaran scores all Nodes the
/// same. After an error, Trimaran would use its last document.
pub fn document(views: Arc<Views>, now: Timestamp, window: Duration) -> Document {
    let end = now.as_second();
    let rollup = format!("{:#}", SignedDuration::try_from(window).unwrap_or_default());
    let start = end.saturating_sub_unsigned(window.as_secs());
    let times = json!({"duration": rollup, "start": start, "end": end});
    let head = format!(
        r#"{{"timestamp":{end},"window":{times},"source":"psi-agent","data":{{"NodeMetricsMap":{{"#
    );
    let all = 0..views.nodes.len();
    let entry = move |at: usize| {
        let (name, view) = views.nodes.get(at)?;
        let neutral = views.neutral?;
        let metrics = metrics(&view.unwrap_or(neutral), &neutral, &rollup);
        let node = json!({"metrics": metrics, "tags": {}, "metadata": {"dataCenter": ""}});
        Some(format!("{}:{node}", json!(name)))
    };
    document::document(head, all.filter_map(entry), "}}}")
}

/// A resource without a value gets the average of other Nodes, if there is one.
fn metrics(node: &SlowNode, neutral: &SlowNode, rollup: &str) -> Vec<Value> {
    let (cpu, memory) = (node.cpu.or(neutral.cpu), node.memory.or(neutral.memory));
    let of = |name: &str, kind: &str, slow: Option<Slow>| {
        let operators = slow.map(|slow| [("AVG", slow.mean), ("STD", slow.deviation)]);
        let metrics = operators.into_iter().flatten().map(|(operator, value)| {
            json!({"name": name, "type": kind, "operator": operator, "rollup": rollup, "value": value})
        });
        metrics.collect::<Vec<_>>()
    };
    [of("psi_cpu", "CPU", cpu), of("psi_memory", "Memory", memory)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::document::tests::parsed;
    use crate::bridge::table::tests::{NOW, views};

    const WINDOW: Duration = Duration::from_secs(900);

    fn of(views: &Views) -> Value {
        parsed(document(Arc::new(views.clone()), NOW.parse().unwrap(), WINDOW))
    }

    /// The score of LoadVariationRiskBalancing for a Node: the lower of both resources' scores, with
    /// margin and sensitivity 1, for a pod that requests this share of the Node's CPUs.
    fn risk_balanced(document: &Value, node: &str, requested: f64) -> f64 {
        let metrics = document["data"]["NodeMetricsMap"][node]["metrics"].as_array().unwrap();
        let of = |kind: &str, operator: &str| {
            let is = |it: &&Value| it["type"] == kind && it["operator"] == operator;
            metrics.iter().find(is).unwrap()["value"].as_f64().unwrap() / 100.0
        };
        let score = |kind, requested: f64| {
            let mean = (of(kind, "AVG") + requested).clamp(0.0, 1.0);
            (1.0 - f64::midpoint(mean, of(kind, "STD"))) * 100.0
        };
        f64::min(score("CPU", requested), score("Memory", 0.0))
    }

    #[test]
    fn the_document_has_the_form_of_load_watchers() {
        let mut views = views(&[("hot", Some(50.0))]);
        if let Some(slow) = views.nodes.first_mut().and_then(|(_, view)| view.as_mut().ok()) {
            slow.cpu = Some(Slow { mean: 50.0, deviation: 10.0 });
            slow.memory = Some(Slow { mean: 0.4, deviation: 0.1 });
        }
        let metric = |name: &str, kind: &str, operator: &str, value: f64| json!({"name": name, "type": kind, "operator": operator, "rollup": "15m", "value": value});
        let expected = json!({
            "timestamp": 1_767_225_600, "source": "psi-agent",
            "window": {"duration": "15m", "start": 1_767_224_700, "end": 1_767_225_600},
            "data": {"NodeMetricsMap": {"hot": {
                "metrics": [
                    metric("psi_cpu", "CPU", "AVG", 50.0), metric("psi_cpu", "CPU", "STD", 10.0),
                    metric("psi_memory", "Memory", "AVG", 0.4),
                    metric("psi_memory", "Memory", "STD", 0.1),
                ],
                "tags": {}, "metadata": {"dataCenter": ""},
            }}},
        });
        let hot = of(&views);
        assert_eq!(hot, expected);
        // The pod requests one of 32 CPUs.
        let score = risk_balanced(&hot, "hot", 1.0 / 32.0);
        assert_eq!((score * 10.0).round(), 684.0);
    }

    #[test]
    fn a_node_without_a_value_scores_between_the_others() {
        let views = views(&[("calm", Some(0.0)), ("hot", Some(60.0)), ("silent", None)]);
        let document = of(&views);
        let score = |node| risk_balanced(&document, node, 0.0);
        assert!(score("calm") > score("silent") && score("silent") > score("hot"), "{document}");
    }

    #[test]
    fn without_a_known_node_the_document_has_none() {
        let document = of(&views(&[("silent", None)]));
        assert_eq!(document["data"]["NodeMetricsMap"], json!({}));
    }
}
