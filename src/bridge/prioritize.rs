//! kube-scheduler's HTTP extender, verb `prioritize`: a score for each Node that a pod fits on. Nodes with
//! enough headroom for its vCPUs come before all others. Pure.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::document::{Document, document};
use super::table::Views;
use crate::client::json::decode;
use crate::client::pod::Spec;

/// The lowest and the highest score of Nodes whose headroom is enough, unknown or too small. The highest
/// is for the least contention. Within these, Nodes with more headroom score no better: schedulers would
/// send all pods to the same one.
const FITS: [f64; 2] = [6.0, 10.0];
const UNKNOWN: [f64; 2] = [0.0, 5.0];
const TOO_SMALL: [f64; 2] = [0.0, 4.0];
/// The same where no agent publishes headroom. 10 is the highest score of an extender.
const BY_CONTENTION: [f64; 2] = [0.0, 10.0];

/// Maximum number of commas in a body, which bounds its lists: 4 MiB can name a million Nodes or containers.
/// Kubernetes supports 5,000 Nodes in a cluster.
const MAX_COMMAS: usize = 50_000;

/// The parts of `ExtenderArgs` that are used. Its keys are the names of Go's fields.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Arguments {
    pod: Option<Pod>,
    node_names: Option<Vec<String>>,
}

/// Of a pod, nothing else is parsed: Go writes `null` for a date that is missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    spec: Spec,
}

/// The pod and the Nodes of a request.
#[derive(Debug)]
pub struct Asked {
    /// CPU request of the pod, rounded up; at least 1, since KubeVirt requests a tenth of a CPU for each
    /// vCPU by default.
    vcpus: u32,
    pub nodes: Vec<String>,
}

/// Parses a request, which names the Nodes. The error is the reason why the body is refused.
pub fn parse(body: &[u8]) -> Result<Asked, String> {
    if body.split(|&byte| byte == b',').nth(MAX_COMMAS + 1).is_some() {
        return Err(format!(
            "the body has more than {MAX_COMMAS} commas: set nodeCacheCapable: true"
        ));
    }
    let Arguments { pod, node_names } = decode(body)
        .map_err(|error| format!("the body is not an ExtenderArgs of kube-scheduler: {error}"))?;
    let nodes = node_names
        .ok_or("the body has no NodeNames: set nodeCacheCapable: true for this extender")?;
    let thousandths = pod.unwrap_or_default().spec.cpu_requests();
    let vcpus = u32::try_from(thousandths.div_ceil(1000).max(1)).unwrap_or(u32::MAX);
    Ok(Asked { vcpus, nodes })
}

/// A score for each Node; `None` if no Node has a known score. A Node without a value gets the average,
/// since the scheduler counts a missing score as 0.
pub fn answer(views: Arc<Views>, Asked { vcpus, nodes }: Asked) -> Option<Document> {
    views.neutral?;
    let has_headroom =
        nodes.iter().any(|name| views.of(name).is_some_and(|node| node.headroom.is_some()));
    let host = move |name: String| {
        let node = views.of(&name)?;
        let score = score(node.score.mean, node.headroom, has_headroom, vcpus);
        Some(json!({"Host": name, "Score": score}).to_string())
    };
    Some(document("[".to_owned(), nodes.into_iter().filter_map(host), "]"))
}

/// The score, 0 to 10, of a Node with this average of contention, 0 to 100, and this headroom. `has_headroom`: whether
/// any Node has.
#[allow(clippy::cast_possible_truncation, reason = "this is between 0 and 10")]
pub fn score(points: f64, headroom: Option<u32>, has_headroom: bool, vcpus: u32) -> u8 {
    let [least, most] = match headroom {
        _ if !has_headroom => BY_CONTENTION,
        None => UNKNOWN,
        Some(headroom) if headroom >= vcpus => FITS,
        Some(_) => TOO_SMALL,
    };
    (most - points / 100.0 * (most - least)).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::document::tests::parsed;
    use crate::bridge::table::tests::views;
    use proptest::prelude::*;

    const BY_NAME: &str = r#"{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["hot","silent","calm","new"]}"#;
    const WHOLE: &str =
        r#"{"Pod":{"spec":{}},"Nodes":{"items":[{"metadata":{"name":"hot"}}]},"NodeNames":null}"#;

    fn names(body: &str) -> Vec<String> {
        parse(body.as_bytes()).unwrap().nodes
    }

    #[test]
    fn the_nodes_of_a_request_are_read_by_name() {
        assert_eq!(names(BY_NAME), ["hot", "silent", "calm", "new"]);
        assert!(names(r#"{"NodeNames":[]}"#).is_empty());
        let undated = r#"{"Pod":{"metadata":{"creationTimestamp":null}},"NodeNames":["a"]}"#;
        assert_eq!(names(undated), ["a"]);
    }

    #[test]
    fn the_vcpus_of_a_pod_are_its_cpu_request_rounded_up() {
        let vcpus = |containers: serde_json::Value| {
            let body = json!({"Pod": {"spec": {"containers": containers}}, "NodeNames": []});
            parse(body.to_string().as_bytes()).unwrap().vcpus
        };
        let requests = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        assert_eq!(vcpus(json!([])), 1);
        assert_eq!(vcpus(json!([{"name": "c"}, requests("200m")])), 1);
        assert_eq!(vcpus(json!([requests("4"), requests("100m")])), 5);
        assert_eq!(vcpus(json!([requests("many")])), 1);
    }

    #[test]
    fn malformed_bodies_are_errors() {
        let error = |body: &str| parse(body.as_bytes()).unwrap_err();
        assert!(error(WHOLE).contains("nodeCacheCapable: true"));
        assert!(error("[").contains("not an ExtenderArgs"));
        assert!(error(r#"{"NodeNames":[1]}"#).contains("expected a string"));
    }

    #[test]
    fn bodies_with_longer_lists_than_any_cluster_has_are_refused() {
        let body =
            |count: usize| format!("{{\"NodeNames\":[{}\"a\"]}}", "\"a\",".repeat(count - 1));
        assert_eq!(names(&body(MAX_COMMAS + 1)).len(), MAX_COMMAS + 1);
        let error = parse(body(MAX_COMMAS + 2).as_bytes()).unwrap_err();
        assert!(error.contains("more than 50000 commas"), "{error}");
    }

    #[test]
    fn the_least_pressure_scores_10_and_an_unknown_node_the_average() {
        let views = views(&[("hot", Some(60.0)), ("calm", Some(0.0)), ("silent", None)]);
        let answer = answer(views.into(), parse(BY_NAME.as_bytes()).unwrap()).map(parsed);
        let expected = json!([
            {"Host": "hot", "Score": 4}, {"Host": "silent", "Score": 7},
            {"Host": "calm", "Score": 10}, {"Host": "new", "Score": 7},
        ]);
        assert_eq!(answer, Some(expected));
    }

    #[test]
    fn without_a_known_node_there_is_no_score() {
        let unknown = Arc::new(views(&[("silent", None)]));
        for nodes in [vec!["silent".to_owned()], Vec::new()] {
            assert!(answer(Arc::clone(&unknown), Asked { vcpus: 1, nodes }).is_none());
        }
    }

    #[test]
    fn nodes_with_enough_headroom_score_above_all_others_and_alike() {
        let names = ["full", "hot", "large", "new", "small"];
        let contention = [20.0, 40.0, 0.0, 0.0, 0.0].map(Some);
        let mut views = views(&std::iter::zip(names, contention).collect::<Vec<_>>());
        for ((_, view), headroom) in
            views.nodes.iter_mut().zip([Some(0), Some(8), Some(64), None, Some(4)])
        {
            view.as_mut().unwrap().headroom = headroom;
        }
        let views = Arc::new(views);
        let scores = |vcpus| {
            let nodes = names.map(str::to_owned).into();
            let answer = parsed(answer(Arc::clone(&views), Asked { vcpus, nodes }).unwrap());
            let scores = answer.as_array().unwrap().iter().map(|node| node["Score"].as_u64());
            scores.map(Option::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(scores(4), [3, 8, 10, 5, 10]);
        assert_eq!(scores(5), [3, 8, 10, 5, 4]);
        assert_eq!(scores(100), [3, 2, 4, 5, 4]);
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body: Vec<u8>) {
            let _ = parse(&body);
        }

        #[test]
        fn scores_are_0_to_10_and_less_pressure_never_scores_lower(a in 0.0_f64..=100.0, b in 0.0_f64..=100.0) {
            for (headroom, is_known) in [(Some(2), true), (None, true), (Some(1), true), (None, false)] {
                let score = |points| score(points, headroom, is_known, 2);
                prop_assert!(score(a) <= 10 && score(b) <= 10);
                prop_assert!(a > b || score(a) >= score(b));
            }
        }
    }
}
