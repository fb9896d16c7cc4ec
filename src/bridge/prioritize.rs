//! kube-scheduler's HTTP extender, verb `prioritize`: a score for each Node that a pod fits on.
//! Pure.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use super::document::{Document, document};
use super::table::Views;

/// The highest score of an extender, for the least pressure.
const BEST: f64 = 10.0;

/// Maximum number of Nodes in a request, which is more than Kubernetes supports in a cluster.
const MAX_CANDIDATES: usize = 20_000;

/// The parts of `ExtenderArgs` that are used. Its keys are the names of Go's fields.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Arguments {
    node_names: Option<BoundedList<String>>,
    nodes: Option<Nodes>,
}

#[derive(Deserialize)]
struct Nodes {
    items: BoundedList<Node>,
}

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// A list of at most [`MAX_CANDIDATES`]. A body of 4 MiB can name a million Nodes.
struct BoundedList<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = BoundedList<T>;

            fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
                write!(formatter, "a list of at most {MAX_CANDIDATES}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    if list.len() == MAX_CANDIDATES {
                        return Err(A::Error::invalid_length(list.len() + 1, &self));
                    }
                    list.push(item);
                }
                Ok(BoundedList(list))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// The Nodes of a request: by name with `nodeCacheCapable: true`, else whole. The error is the reason
/// why the body is refused.
pub fn candidates(body: &[u8]) -> Result<Vec<String>, String> {
    let Arguments { node_names, nodes } = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not an ExtenderArgs of kube-scheduler: {error}"))?;
    let whole = |nodes: Nodes| nodes.items.0.into_iter().map(|node| node.metadata.name).collect();
    let names = node_names.map(|names| names.0).or_else(|| nodes.map(whole));
    names.ok_or("the body has neither NodeNames (nodeCacheCapable: true) nor Nodes".to_owned())
}

/// A score for each candidate; `None` if no Node has a known score. A Node without a value gets the
/// average, since the scheduler counts a missing score as 0.
pub fn answer(views: Arc<Views>, candidates: Vec<String>) -> Option<Document> {
    views.neutral?;
    let host = move |name: String| {
        let score = score(views.of(&name)?.score.mean);
        Some(json!({"Host": name, "Score": score}).to_string())
    };
    Some(document("[".to_owned(), candidates.into_iter().filter_map(host), "]"))
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
    use crate::bridge::document::tests::parsed;
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
    fn more_candidates_than_any_cluster_has_are_refused() {
        let names =
            |count: usize| format!("{{\"NodeNames\":[{}\"a\"]}}", "\"a\",".repeat(count - 1));
        assert_eq!(candidates(names(MAX_CANDIDATES).as_bytes()).unwrap().len(), MAX_CANDIDATES);
        let error = candidates(names(MAX_CANDIDATES + 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("expected a list of at most 20000"), "{error}");
    }

    #[test]
    fn the_least_pressure_scores_10_and_an_unknown_node_the_average() {
        let views = views(&[("hot", Some(60.0)), ("calm", Some(0.0)), ("silent", None)]);
        let answer = answer(views.into(), candidates(BY_NAME.as_bytes()).unwrap()).map(parsed);
        let expected = json!([
            {"Host": "hot", "Score": 4}, {"Host": "silent", "Score": 7},
            {"Host": "calm", "Score": 10}, {"Host": "new", "Score": 7},
        ]);
        assert_eq!(answer, Some(expected));
    }

    #[test]
    fn without_a_known_node_there_is_no_score() {
        let unknown = Arc::new(views(&[("silent", None)]));
        for candidates in [vec!["silent".to_owned()], Vec::new()] {
            assert!(answer(Arc::clone(&unknown), candidates).is_none());
        }
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
