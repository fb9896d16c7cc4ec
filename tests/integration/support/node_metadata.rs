//! A model of scheduler-plugins' NodeMetadata, which is in none of its releases yet: how it reads an
//! annotation, and how it scales the values of all Nodes that fit.

use serde_json::{Value, json};

use super::snippet;

/// The plugin's arguments.
pub(crate) struct Ranking {
    key: String,
}

impl Ranking {
    /// The arguments in docs/consumers.
    pub(crate) fn of_snippet() -> Self {
        let configuration: Value = serde_saphyr::from_str(&snippet("node-metadata.yaml")).unwrap();
        let profile = &configuration["profiles"][0];
        let enabled = &profile["plugins"]["score"]["enabled"];
        let plugin = &profile["pluginConfig"][0];
        assert_eq!(
            (&enabled[0]["name"], &plugin["name"]),
            (&json!("NodeMetadata"), &json!("NodeMetadata"))
        );
        let mut args = plugin["args"].clone();
        let key = args.as_object_mut().unwrap().remove("metadataKey").unwrap();
        // The model covers these arguments only.
        let rest = json!({
            "metadataSource": "Annotation", "metadataType": "Number", "scoringStrategy": "Lowest",
        });
        assert_eq!(args, rest);
        Self { key: key.as_str().unwrap().to_owned() }
    }

    /// Points from 1, the worst, to 100, the best. The values are scaled to this range. A Node without
    /// a number gets 0.
    pub(crate) fn rank(&self, nodes: &[Value]) -> Vec<i64> {
        let values: Vec<Option<i64>> = nodes.iter().map(|node| self.value(node)).collect();
        let numbers = || values.iter().flatten();
        let (Some(least), Some(most)) = (numbers().min(), numbers().max()) else {
            return vec![0; nodes.len()];
        };
        let rank = |value: &Option<i64>| match value {
            None => 0,
            Some(_) if least == most => 1,
            Some(value) => (most - value) * 99 / (most - least) + 1,
        };
        values.iter().map(rank).collect()
    }

    /// A float, truncated to an integer.
    fn value(&self, node: &Value) -> Option<i64> {
        let text = node["metadata"]["annotations"][&self.key].as_str()?;
        #[allow(clippy::cast_possible_truncation)]
        text.parse::<f64>().ok().map(|float| float as i64)
    }
}
