//! The descheduler, fed by the score: its policies of docs/consumers.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::snippet;

const BY_CONTENTION: &str = "descheduler-contention.yaml";
const BY_LOAD: &str = "descheduler-load.yaml";

fn rules() -> String {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/prometheus/rules.yaml");
    fs::read_to_string(rules).unwrap()
}

/// What a policy asks Prometheus for.
fn query_of(name: &str) -> String {
    let policy: Value = serde_saphyr::from_str(&snippet(name)).unwrap();
    let plugins = policy["profiles"][0]["pluginConfig"].as_array().unwrap();
    let plugin = plugins.iter().find(|plugin| plugin["name"] == "LowNodeUtilization").unwrap();
    let source = &plugin["args"]["metricsUtilization"];
    source["prometheus"]["query"].as_str().unwrap().to_owned()
}

#[test]
fn the_policies_ask_for_a_rule_that_gives_every_node_a_value() {
    for name in [BY_CONTENTION, BY_LOAD] {
        let query = query_of(name);
        assert!(query.ends_with("_neutral"), "{query}");
        assert!(rules().contains(&format!("- record: {query}\n")), "{query}");
    }
}
