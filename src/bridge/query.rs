//! The part of Prometheus' `/api/v1/query` that deschedulers use: two expressions, both of which
//! return the current slow score of each Node. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::document::{Document, document};
use super::table::Views;

/// Points added to the average for Nodes without a value, as in the recording rules. The
/// descheduler truncates values to whole percent, so a Node with exactly the average could count as
/// underutilized.
const ABOVE_AVERAGE: f64 = 1.5;

/// The slow score by its own name, and by that of the recording rule with the same meaning.
const EXPRESSIONS: [&str; 2] = ["slow-score", "node:psi_agent_node_score_ratio:avg10m_neutral"];

/// Checks a URL-encoded form (`query=…`). The error is the reason why it is refused. Other parameters are ignored:
/// the response has the values of now.
pub fn check(form: &[u8]) -> Result<(), String> {
    let query =
        form_urlencoded::parse(form).find_map(|(name, value)| (name == "query").then_some(value));
    if !EXPRESSIONS.contains(&query.unwrap_or_default().trim()) {
        return Err(format!(
            "the parameter query is missing, empty or unsupported: the bridge supports only {}; \
             query Prometheus for others",
            EXPRESSIONS.join(" and ")
        ));
    }
    Ok(())
}

/// The instant vector; `None` if no Node has a known score.
pub fn answer(views: Arc<Views>, now: Timestamp) -> Option<Document> {
    let neutral = (views.neutral?.score.mean + ABOVE_AVERAGE).min(100.0);
    let time = now.as_millisecond() as f64 / 1000.0;
    let all = 0..views.nodes.len();
    let sample = move |at: usize| {
        let (name, view) = views.nodes.get(at)?;
        let points = view.map_or(neutral, |slow| slow.score.mean);
        Some(json!({"metric": {"instance": name}, "value": [time, share(points)]}).to_string())
    };
    let head = r#"{"status":"success","data":{"resultType":"vector","result":["#;
    Some(document(head.to_owned(), all.filter_map(sample), "]}}"))
}

/// Converts points from 0 to 100 to a value from 0 to 1. Clients that truncate `value * 100` get
/// the same whole points. Values such as 0.29 are corrected for this: it is below 29 / 100 in
/// binary, and would become 28.
fn share(points: f64) -> String {
    let share = points / 100.0;
    let nearest = format!("{share:.6}");
    let truncated = nearest.parse::<f64>().map(|value| (value * 100.0).trunc());
    let text = match truncated {
        Ok(truncated) if truncated >= points.floor() => nearest,
        Ok(_) | Err(_) => format!("{:.6}", share + 1e-6),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::document::tests::parsed;
    use crate::bridge::table::tests::{NOW, views};
    use proptest::prelude::*;

    /// Computes percent as the descheduler does.
    fn percent(value: &str) -> f64 {
        (value.parse::<f64>().unwrap() * 100.0).trunc()
    }

    #[test]
    fn the_response_is_an_instant_vector_by_instance() {
        let expected = json!({"status": "success", "data": {"resultType": "vector", "result": [
            {"metric": {"instance": "calm"}, "value": [1_767_225_600.0, "0"]},
            {"metric": {"instance": "hot"}, "value": [1_767_225_600.0, "0.55"]},
            {"metric": {"instance": "silent"}, "value": [1_767_225_600.0, "0.290001"]},
        ]}});
        let views = views(&[("hot", Some(55.0)), ("calm", Some(0.0)), ("silent", None)]);
        let now = NOW.parse().unwrap();
        assert_eq!(answer(views.into(), now).map(parsed), Some(expected));
        let unknown = self::views(&[("silent", None)]);
        assert_eq!(answer(unknown.into(), now).map(parsed), None);
    }

    #[test]
    fn no_point_is_lost_by_truncation() {
        for points in 0..=100 {
            assert_eq!(percent(&share(f64::from(points))), f64::from(points));
        }
        // These would lose a point without a correction.
        for (points, expected) in [(29.0, "0.290001"), (57.0, "0.570001"), (58.0, "0.580001")] {
            assert_eq!(share(points), expected);
        }
        assert_eq!(
            (share(0.0), share(100.0), share(28.5)),
            ("0".into(), "1".into(), "0.285".into())
        );
    }

    #[test]
    fn a_node_without_a_value_is_neither_under_nor_overutilized() {
        for known in [[0.0, 0.0, 60.0], [100.0, 100.0, 100.0], [5.0, 5.0, 10.0], [0.0, 0.0, 0.0]] {
            let nodes = [("a", Some(known[0])), ("b", Some(known[1])), ("c", Some(known[2]))];
            for silent in 1..4 {
                let silent = ["x", "y", "z"].into_iter().take(silent).map(|name| (name, None));
                let nodes: Vec<_> = nodes.into_iter().chain(silent).collect();
                let answer = answer(views(&nodes).into(), NOW.parse().unwrap());
                let answer = parsed(answer.unwrap());
                let result = answer["data"]["result"].as_array().unwrap();
                let percents: Vec<(&str, f64)> = result
                    .iter()
                    .map(|it| {
                        let value = it["value"][1].as_str().unwrap();
                        (it["metric"]["instance"].as_str().unwrap(), percent(value))
                    })
                    .collect();
                let sum: f64 = percents.iter().map(|(_, percent)| percent).sum();
                let average = sum / percents.len() as f64;
                for (name, percent) in percents.iter().filter(|(name, _)| *name >= "x") {
                    assert!(
                        *percent > average || average >= 100.0,
                        "{name} is under: {percents:?}"
                    );
                    assert!(*percent <= average + 10.0, "{name} is over: {percents:?}");
                }
            }
        }
    }

    #[test]
    fn a_form_needs_a_documented_expression() {
        for right in [
            "query=slow-score&time=1767225600.25",
            "query=node%3Apsi_agent_node_score_ratio%3Aavg10m_neutral",
            "time=yesterday&query=+slow-score+",
            "query=slow-score&time=&timeout=30s",
        ] {
            assert_eq!(check(right.as_bytes()), Ok(()), "{right}");
        }
        for missing in ["", "query=", "query=%20", "time=1767225600", "{\"query\":\"x\"}"] {
            let error = check(missing.as_bytes()).unwrap_err();
            assert!(error.contains("query is missing, empty or unsupported"), "{missing}: {error}");
        }
        for other in [
            "up",
            "x",
            "slow-score{instance=\"a\"}",
            "node:psi_agent_node_load_ratio:avg10m_neutral",
            "1-node:psi_agent_node_score_ratio:avg10m_neutral",
            "rate(node_pressure_cpu_waiting_seconds_total[1m])",
        ] {
            let form = form_urlencoded::Serializer::new(String::new())
                .append_pair("query", other)
                .finish();
            let error = check(form.as_bytes()).unwrap_err();
            assert!(error.contains("supports only slow-score and node:psi"), "{other}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_form_is_accepted_or_refused(form: Vec<u8>) {
            let _ = check(&form);
        }

        #[test]
        fn a_share_is_between_0_and_1_and_truncates_to_its_points(points in 0.0_f64..=100.0) {
            let points = (points * 10_000.0).round() / 10_000.0;
            let text = share(points);
            prop_assert!((0.0..=1.0).contains(&text.parse::<f64>().unwrap()), "{text}");
            prop_assert_eq!(percent(&text), points.floor());
        }
    }
}
