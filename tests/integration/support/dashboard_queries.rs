//! The queries of the dashboards, as Grafana sends them.

use serde_json::Value;

/// A query of a panel or of an annotation, with the variables replaced.
pub(crate) struct PanelQuery {
    pub(crate) panel: Value,
    pub(crate) letter: String,
    pub(crate) text: String,
    pub(crate) instant: bool,
}

/// Panels, also those of collapsed rows.
pub(crate) fn panels(dashboard: &Value) -> Vec<Value> {
    let all = dashboard["panels"].as_array().unwrap().iter();
    let inside = all.clone().flat_map(|row| row["panels"].as_array().into_iter().flatten());
    all.chain(inside).filter(|panel| panel["type"] != "row").cloned().collect()
}

/// The queries of all panels and annotations.
pub(crate) fn queries(dashboard: &Value, variables: &[(&str, &str)]) -> Vec<PanelQuery> {
    let mut found = Vec::new();
    for panel in panels(dashboard) {
        for target in panel["targets"].as_array().unwrap() {
            found.push(PanelQuery {
                panel: panel.clone(),
                letter: target["refId"].as_str().unwrap().into(),
                text: expanded(target["expr"].as_str().unwrap(), variables),
                instant: target["instant"] == true,
            });
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().into_iter().flatten() {
        found.push(PanelQuery {
            panel: serde_json::json!({"id": "annotations", "type": "annotation",
                "title": annotation["name"]}),
            letter: "A".into(),
            text: expanded(annotation["expr"].as_str().unwrap(), variables),
            instant: false,
        });
    }
    found
}

/// Fails for a variable that has no value here.
pub(crate) fn expanded(query: &str, variables: &[(&str, &str)]) -> String {
    let query =
        variables.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
    assert!(!query.contains('$'), "a variable without a value: {query}");
    query
}
