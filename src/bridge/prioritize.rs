//! kube-scheduler's HTTP extender, verb `prioritize`: a score for each Node that a pod fits on.
//! Pure.

use serde::Deserialize;
use serde_json::{Value, json};

use super::table::Views;

/// The highest score of an extender, for the least pressure.
const BEST: f64 = 10.0;

#[derive(Debug, thiserror::Error)]
pub enum BadArguments {
    /// Not JSON, or of other types.
    #[error("the body is not an ExtenderArgs of kube-scheduler: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("the body has neither NodeNames (nodeCacheCapable: true) nor Nodes")]
    NoNodes,
}

/// The parts of `ExtenderArgs` that are used. Its keys are the names of Go's fields.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Arguments {
    node_names: Option<Vec<String>>,
    nodes: Option<Nodes>,
}

#[derive(Deserialize)]
struct Nodes {
    items: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// The Nodes of a request: by name with `nodeCacheCapable: true`, else whole.
pub fn candidates(body: &[u8]) -> Result<Vec<String>, BadArguments> {
    let Arguments { node_names, nodes } = serde_json::from_slice(body)?;
    let whole = |nodes: Nodes| nodes.items.into_iter().map(|node| node.metadata.name).collect();
    node_names.or_else(|| nodes.map(whole)).ok_or(BadArguments::NoNodes)
}

/// A score for each candidate; `None` if no Node is known. A Node without a value gets the average,
/// since the scheduler counts a missing score as 0.
pub fn answer(views: &Views, candidates: &[String]) -> Option<Value> {
    let score_of = |name: &String| Some(score(views.of(name)?.score.mean));
    let scores =
        candidates.iter().map(|name| Some(json!({"Host": name, "Score": score_of(name)?})));
    views.neutral.and_then(|_| scores.collect::<Option<Vec<_>>>()).map(Value::Array)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "points are between 0 and 100, so this is between 0 and 10"
)]
fn score(points: f64) -> u8 {
    (BEST - points / 100.0 * BEST).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::table::tests::views;
    use proptest::prelude::*;

    const BY_NAME: &str = r#"{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["hot","silent","calm","new"]}"#;
    const WHOLE: &str = r#"{"Pod":{"spec":{}},"Nodes":{"metadata":{},"items":[
        {"metadata":{"name":"calm","labels":{}},"status":{}},{"metadata":{"name":"hot"}}]},"NodeNames":null}"#;

    #[test]
    fn both_modes_of_an_extender_are_read() {
        assert_eq!(candidates(BY_NAME.as_bytes()).unwrap(), ["hot", "silent", "calm", "new"]);
        assert_eq!(candidates(WHOLE.as_bytes()).unwrap(), ["calm", "hot"]);
        assert!(candidates(br#"{"NodeNames":[]}"#).unwrap().is_empty());
    }

    #[test]
    fn malformed_bodies_are_errors() {
        let error = |body: &str| candidates(body.as_bytes()).unwrap_err().to_string();
        assert!(error(r#"{"Pod":{},"Nodes":null,"NodeNames":null}"#).contains("neither NodeNames"));
        assert!(error("[").contains("not an ExtenderArgs"));
        assert!(error(r#"{"NodeNames":[1]}"#).contains("expected a string"));
        assert!(error(r#"{"Nodes":{"items":[{}]}}"#).contains("missing field `metadata`"));
    }

    #[test]
    fn the_least_pressure_scores_10_and_an_unknown_node_the_average() {
        let views = views(&[("hot", Some(60.0)), ("calm", Some(0.0)), ("silent", None)]);
        let answer = answer(&views, &candidates(BY_NAME.as_bytes()).unwrap());
        let expected = json!([
            {"Host": "hot", "Score": 4}, {"Host": "silent", "Score": 7},
            {"Host": "calm", "Score": 10}, {"Host": "new", "Score": 7},
        ]);
        assert_eq!(answer, Some(expected));
    }

    #[test]
    fn without_a_known_node_there_is_no_score() {
        let unknown = views(&[("silent", None)]);
        assert_eq!(answer(&unknown, &["silent".to_owned()]), None);
        assert_eq!(answer(&unknown, &[]), None);
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body: Vec<u8>) {
            let _ = candidates(&body);
        }

        #[test]
        fn scores_are_0_to_10_and_less_pressure_never_scores_lower(a in 0.0_f64..=100.0, b in 0.0_f64..=100.0) {
            prop_assert!(score(a) <= 10 && score(b) <= 10);
            prop_assert!(a > b || score(a) >= score(b));
        }
    }
}
