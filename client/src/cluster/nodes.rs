//! Reads, patches, lists and watches Nodes, and the pods of one. Only names, annotations, labels and taints of Nodes
//! are kept: images and status are twenty times as large.

use std::collections::BTreeMap;

use futures_util::Stream;
use kube::api::{GetParams, ListParams, PatchParams, Request};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::{self, CallError, call};
use super::client::{ApiClient, OwnNode};
use super::streamed_list::streamed_list;
use super::watch::{Watch, WatchEvent};
use crate::contract::{Key, Prefix};
use crate::json::decode;
use crate::pod::Pod;

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";

type ReadPod = fn(&[u8]) -> serde_json::Result<Pod>;

/// An annotation outside the agent's prefix. It is sent in dry runs only, so it is never stored.
const FOREIGN_KEY: &str = "not-psi-agent.invalid/dry-run";

/// The part of a Node that the agent reads and writes.
#[derive(Debug, Clone, Deserialize)]
pub struct NodeKeys {
    pub metadata: NodeMetadata,
    #[serde(default)]
    pub spec: NodeSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeMetadata {
    pub name: String,
    pub annotations: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// As the API server sends them. A patch replaces the whole list.
    pub taints: Vec<Value>,
}

impl NodeKeys {
    /// Whether the Node has an annotation of the prefix, or a label or a taint of the agent.
    pub fn has_own_keys(&self, prefix: &Prefix) -> bool {
        let NodeMetadata { annotations, labels, .. } = &self.metadata;
        annotations.keys().any(|key| prefix.owns(key))
            || labels.keys().any(|key| is_own_label(prefix, key))
            || self.taint_keys().any(|key| is_own_taint(prefix, key))
    }

    pub fn taint_keys(&self) -> impl Iterator<Item = &str> {
        self.spec.taints.iter().map(key_of)
    }

    /// The taints of the agent, and all others.
    pub fn taints(&self, prefix: &Prefix) -> (Vec<&Value>, Vec<&Value>) {
        self.spec.taints.iter().partition(|taint| is_own_taint(prefix, key_of(taint)))
    }

    fn without_foreign_metadata(mut self, prefix: &Prefix) -> Self {
        self.metadata.annotations.retain(|key, _| prefix.owns(key));
        self.metadata.labels.retain(|key, _| prefix.owns(key));
        self
    }

    /// The merge patch that removes the [own keys](Self::has_own_keys). It contains the Node's resource
    /// version, so that the API server rejects it as a conflict if the Node has changed.
    pub fn clearing_patch(&self, prefix: &Prefix) -> Value {
        let nulls = |keys: &BTreeMap<String, String>, is_own: fn(&Prefix, &str) -> bool| {
            let own = keys.keys().filter(|key| is_own(prefix, key));
            own.map(|key| (key.clone(), Value::Null)).collect::<Map<_, _>>()
        };
        let NodeMetadata { annotations, labels, resource_version, .. } = &self.metadata;
        let mut patch = json!({"metadata": {
            "resourceVersion": resource_version,
            "annotations": nulls(annotations, Prefix::owns),
            "labels": nulls(labels, is_own_label),
        }});
        let (own, others) = self.taints(prefix);
        if !own.is_empty()
            && let Some(patch) = patch.as_object_mut()
        {
            patch.insert("spec".into(), json!({ "taints": others }));
        }
        patch
    }
}

fn key_of(taint: &Value) -> &str {
    taint.get("key").and_then(Value::as_str).unwrap_or_default()
}

/// Other labels and taints of the prefix are an administrator's, and the policies do not allow to
/// remove them.
fn is_own_label(prefix: &Prefix, key: &str) -> bool {
    Key::LABELS.iter().any(|own| own.of(prefix) == key)
}

fn is_own_taint(prefix: &Prefix, key: &str) -> bool {
    Key::TAINTS.iter().any(|own| own.of(prefix) == key)
}

impl ApiClient {
    /// The Nodes that match a label selector, with those annotations and labels that belong to the prefix.
    /// All Nodes match an empty one.
    pub async fn list_nodes(
        &self,
        prefix: &Prefix,
        selector: &str,
    ) -> anyhow::Result<Vec<NodeKeys>> {
        let own_keys = |node: NodeKeys| node.without_foreign_metadata(prefix);
        self.list_all(NODES, &ListParams::default().labels(selector), own_keys).await
    }

    /// Watches the annotations and labels with this prefix on the Nodes that match a label selector. The stream never
    /// ends.
    pub fn watch_nodes(
        &self,
        prefix: &Prefix,
        selector: &str,
    ) -> impl Stream<Item = WatchEvent<NodeMetadata>> + use<> {
        let prefix = prefix.clone();
        let read = move |json: &[u8]| {
            Ok(decode::<NodeKeys>(json)?.without_foreign_metadata(&prefix).metadata)
        };
        // Whole Nodes would be ten times as large.
        let selected = ListParams::default().labels(selector);
        Watch::new(&self.client, NODES, selected, true, read).events()
    }
}

impl OwnNode {
    /// The Node's pods, except those that have ended. The API server finds them by an index of its cache: a list
    /// without a version can read all pods of the cluster from etcd. They are parsed into a small type: whole pods
    /// would double the agent's memory, and a metadata-only watch has no container IDs.
    pub fn pods(&self) -> Watch<ReadPod> {
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", self.name);
        let selected = ListParams::default().fields(&selector).match_any();
        Watch::new(&self.api.client, PODS, selected, false, |json| decode(json))
    }

    pub async fn get(&self) -> Result<NodeKeys, CallError> {
        let request = Request::new(NODES).get(&self.name, &GetParams::default());
        call(&self.api.client, request).await
    }

    pub async fn patch(&self, patch: &Value) -> Result<(), CallError> {
        call::patch(&self.api.client, NODES, &self.name, patch, &PatchParams::default()).await
    }

    /// Tests by dry runs whether this account may write anything but the agent's keys on its own
    /// Node. Returns a sentence about such a write, which admission policies should deny; `None` if there
    /// is none. Other Nodes are found by their pods: if no pod runs on another Node, only the own Node is
    /// tested.
    pub async fn foreign_write(&self) -> Result<Option<String>, CallError> {
        let foreign_key = json!({"metadata": {"annotations": {FOREIGN_KEY: ""}}});
        if self.allows(&self.name, &foreign_key).await? {
            let any_key = "this account may change any key of a Node, so a stolen token could drain \
                           any Node";
            return Ok(Some(any_key.into()));
        }
        // If --node-name is wrong, the Node found below may be the one that the token is bound to.
        if !self.allows(&self.name, &json!({})).await? {
            return Ok(None);
        }
        let Some(other) = self.another_node().await? else { return Ok(None) };
        match self.allows(&other, &json!({})).await {
            Ok(true) => Ok(Some(format!(
                "this account may change other Nodes, such as {other}, so a stolen token could \
                 falsify any score"
            ))),
            Ok(false) => Ok(None),
            // The Node was deleted after its pod was listed.
            Err(CallError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The Node of any pod that runs on another Node.
    async fn another_node(&self) -> Result<Option<String>, CallError> {
        let elsewhere = format!("spec.nodeName!=,spec.nodeName!={}", self.name);
        // Some may be too long to be read.
        let params = ListParams::default().fields(&elsewhere).limit(8);
        let (list, read) = (Request::new(PODS).list(&params), |pod: &[u8]| decode::<Pod>(pod));
        let ((mut pods, errors), _) = streamed_list(&self.api.client, list, read).await?;
        if pods.is_empty() && !errors.is_empty() {
            return Err(call::unreachable("no pod of another node can be read"));
        }
        Ok(pods.pop().map(|pod| pod.spec.node_name))
    }

    /// Whether this account may apply a patch to a Node, by a dry run.
    async fn allows(&self, node: &str, patch: &Value) -> Result<bool, CallError> {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        match call::patch(&self.api.client, NODES, node, patch, &dry_run).await {
            Ok(()) => Ok(true),
            Err(CallError::Forbidden(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> NodeKeys {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_clearing_patch_leaves_foreign_keys_alone() {
        let node = node(json!({
            "metadata": {
                "name": "a", "resourceVersion": "7",
                "annotations": {"psi-agent.io/score": "5", "psi-agent.iox/score": "1", "x": "y"},
                "labels": {"psi-agent.io/pressure": "low", "psi-agent.io/enabled": "true",
                           "kubernetes.io/os": "linux"},
            },
            "spec": {"taints": [
                {"key": "psi-agent.io/pressure-high", "value": "true", "effect": "PreferNoSchedule"},
                {"key": "other", "effect": "NoSchedule"},
                {"key": "psi-agent.io/maintenance", "effect": "NoSchedule"},
            ]},
        }));
        let expected = json!({
            "metadata": {
                "resourceVersion": "7",
                "annotations": {"psi-agent.io/score": null},
                "labels": {"psi-agent.io/pressure": null},
            },
            "spec": {"taints": [
                {"key": "other", "effect": "NoSchedule"},
                {"key": "psi-agent.io/maintenance", "effect": "NoSchedule"},
            ]},
        });
        assert_eq!(node.clearing_patch(&Prefix::default()), expected);
        let slim = node.without_foreign_metadata(&Prefix::default());
        assert_eq!(slim.clearing_patch(&Prefix::default()), expected);
    }

    #[test]
    fn labels_and_taints_of_others_do_not_make_a_value() {
        let node = node(json!({
            "metadata": {"name": "a", "labels": {"psi-agent.io/enabled": "true"}},
            "spec": {"taints": [{"key": "psi-agent.io/maintenance", "effect": "NoSchedule"}]},
        }));
        assert!(!node.has_own_keys(&Prefix::default()));
    }

    #[test]
    fn without_own_taints_the_list_of_taints_is_not_written() {
        let node = node(json!({
            "metadata": {"name": "a", "annotations": {"psi-agent.io/score": "5"}},
            "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
        }));
        assert!(node.has_own_keys(&Prefix::default()));
        assert!(node.clearing_patch(&Prefix::default()).get("spec").is_none());
    }
}
