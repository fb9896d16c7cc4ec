//! kube-scheduler's HTTP extender, verb `prioritize`: the Nodes that a pod fits on in, a score for
//! each out. Pure.

use serde::Deserialize;
use serde_json::{Value, json};

use super::table::Views;

/// What a scheduler gives at most. The least pressure gets it.
const BEST: f64 = 10.0;

/// A body that no scheduler sends.
#[derive(Debug, thiserror::Error)]
pub enum BadArguments {
    /// It is not JSON, or has other types in it.
    #[error("the body is no ExtenderArgs of kube-scheduler's: {0}")]
    NotJson(#[from] serde_json::Error),
    /// It names no Nodes in either form.
    #[error("the body has neither NodeNames (nodeCacheCapable: true) nor Nodes")]
    NoNodes,
}

/// `ExtenderArgs` as far as it is read. Its keys are the names of Go's fields.
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

/// The Nodes that a request is about: by name where the extender is `nodeCacheCapable`, else whole.
///
/// # Errors
/// [`BadArguments`].
pub fn candidates(body: &[u8]) -> Result<Vec<String>, BadArguments> {
    let Arguments { node_names, nodes } = serde_json::from_slice(body)?;
    let whole = |nodes: Nodes| nodes.items.into_iter().map(|node| node.metadata.name).collect();
    node_names.or_else(|| nodes.map(whole)).ok_or(BadArguments::NoNodes)
}

/// A score for each candidate, also for those that are not known, since a Node without one is taken
/// for the worst; `None` where no Node is known.
#[must_use]
pub fn answer(views: &Views, candidates: &[String]) -> Option<Value> {
    let score_of = |name: &String| Some(score(views.of(name)?.score.mean));
    let scores =
        candidates.iter().map(|name| Some(json!({"Host": name, "Score": score_of(name)?})));
    views.neutral.and_then(|_| scores.collect::<Option<Vec<_>>>()).map(Value::Array)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "points are within 0 and 100, so this is within 0 and 10"
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
    fn what_no_scheduler_sends_is_named() {
        let error = |body: &str| candidates(body.as_bytes()).unwrap_err().to_string();
        assert!(error(r#"{"Pod":{},"Nodes":null,"NodeNames":null}"#).contains("neither NodeNames"));
        assert!(error("[").contains("no ExtenderArgs"));
        assert!(error(r#"{"NodeNames":[1]}"#).contains("expected a string"));
        assert!(error(r#"{"Nodes":{"items":[{}]}}"#).contains("missing field `metadata`"));
    }

    #[test]
    fn the_least_pressure_is_best_and_what_is_not_known_is_between() {
        let views = views(&[("hot", Some(60.0)), ("calm", Some(0.0)), ("silent", None)]);
        let answer = answer(&views, &candidates(BY_NAME.as_bytes()).unwrap());
        let expected = json!([
            {"Host": "hot", "Score": 4}, {"Host": "silent", "Score": 7},
            {"Host": "calm", "Score": 10}, {"Host": "new", "Score": 7},
        ]);
        assert_eq!(answer, Some(expected));
    }

    #[test]
    fn where_no_node_is_known_there_is_no_score() {
        let nobody = views(&[("silent", None)]);
        assert_eq!(answer(&nobody, &["silent".to_owned()]), None);
        assert_eq!(answer(&nobody, &[]), None);
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_named(body: Vec<u8>) {
            let _ = candidates(&body);
        }

        #[test]
        fn scores_are_0_to_10_and_less_pressure_is_not_worse(a in 0.0_f64..=100.0, b in 0.0_f64..=100.0) {
            prop_assert!(score(a) <= 10 && score(b) <= 10);
            prop_assert!(a > b || score(a) >= score(b));
        }
    }
}
