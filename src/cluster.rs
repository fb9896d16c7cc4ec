//! The API server: how it is reached, and its Nodes as far as they concern the agent.

pub mod call;
pub mod node_watch;
pub mod own_node;
pub mod reviews;

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::contract::Prefix;
use call::CallError;

/// Where Nodes are at the API server.
const NODES: &str = "/api/v1/nodes";

/// How the agent reaches the API server, and which of its nodes this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The kubeconfig; `None` for the pod's own service account.
    pub kubeconfig: Option<PathBuf>,
    /// This node's name.
    pub node_name: String,
}

/// Why there is no way to the API server. Its not answering is none of these.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig does not read.
    #[error("cannot use the kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// The service account's files are not where a pod has them.
    #[error(
        "cannot use the service account: {0}: name a --kubeconfig, or let the pod mount its token"
    )]
    ServiceAccount(#[from] kube::config::InClusterError),
    /// Neither a kubeconfig where kubectl looks for one, nor a service account.
    #[error("no way to a cluster: {0}: name a --kubeconfig, or set KUBECONFIG")]
    Nowhere(#[from] kube::config::InferConfigError),
    /// No client can be made of it.
    #[error("cannot make a client for the API server: {0}")]
    Client(#[source] kube::Error),
    /// No event loop to ask from.
    #[error("cannot start the event loop: {0}")]
    EventLoop(std::io::Error),
    /// It answered something else.
    #[error("the API server did not {what}: {source}")]
    Refused {
        /// What was asked.
        what: String,
        /// What it answered.
        source: kube::Error,
    },
    /// It did not let us change a Node, or look at it.
    #[error("cannot {what} node {name}: {why}")]
    NotCleared {
        /// What was asked.
        what: &'static str,
        /// The Node.
        name: String,
        /// What it answered.
        why: CallError,
    },
}

/// A client for the agent; nothing is asked of the API server yet.
///
/// # Errors
/// [`ClusterError`], each a sentence for people.
pub async fn connect(cluster: &Cluster) -> Result<Client, ClusterError> {
    let mut config = match &cluster.kubeconfig {
        None => Config::incluster()?,
        Some(path) => by_kubeconfig(path).await?,
    };
    // Tries are counted and spread by the agent, which knows what is worth trying again.
    config.default_retry = false;
    Client::try_from(config).map_err(ClusterError::Client)
}

async fn by_kubeconfig(path: &PathBuf) -> Result<Config, ClusterError> {
    let named = |source| ClusterError::Kubeconfig { path: path.display().to_string(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(named)
}

/// A client for people, by kubectl's rules: the file that was named, else KUBECONFIG, else
/// `~/.kube/config`, else the service account. Nothing is asked of the API server yet.
///
/// # Errors
/// [`ClusterError`], each a sentence for people.
pub async fn connect_as_kubectl(kubeconfig: Option<&PathBuf>) -> Result<Client, ClusterError> {
    let config = match kubeconfig {
        Some(path) => by_kubeconfig(path).await?,
        None => Config::infer().await?,
    };
    Client::try_from(config).map_err(ClusterError::Client)
}

/// An event loop for a command that asks, waits and ends.
///
/// # Errors
/// When the system gives none.
pub fn event_loop() -> Result<tokio::runtime::Runtime, ClusterError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(ClusterError::EventLoop)
}

/// A connection for a command that asks, waits and ends.
pub struct Connection {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Connection {
    /// Connects as [`connect_as_kubectl`] does.
    ///
    /// # Errors
    /// [`ClusterError`], each a sentence for people.
    pub fn open(kubeconfig: Option<&PathBuf>) -> Result<Self, ClusterError> {
        let runtime = event_loop()?;
        let client = runtime.block_on(connect_as_kubectl(kubeconfig))?;
        Ok(Self { client, runtime })
    }
}

/// What of a Node concerns the agent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ReadNode")]
pub struct NodeKeys {
    /// Its name.
    pub name: String,
    /// Its annotations, all of them.
    pub annotations: BTreeMap<String, String>,
    /// Its labels, all of them.
    pub labels: BTreeMap<String, String>,
    /// Its taints as the API server has them: the list can only be written back whole.
    pub taints: Vec<Value>,
    /// The version of all that.
    pub resource_version: Option<String>,
}

/// A Node as far as it is read: one with its images would be twenty times as much.
#[derive(Deserialize)]
struct ReadNode {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ReadSpec,
}

#[derive(Default, Deserialize)]
struct ReadSpec {
    #[serde(default)]
    taints: Vec<Value>,
}

impl From<ReadNode> for NodeKeys {
    fn from(ReadNode { metadata, spec }: ReadNode) -> Self {
        Self {
            name: metadata.name.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            taints: spec.taints,
            resource_version: metadata.resource_version,
        }
    }
}

impl NodeKeys {
    /// Whether anything of the prefix's is on it.
    #[must_use]
    pub fn has_own_keys(&self, prefix: &Prefix) -> bool {
        let taints = self.taints.iter().map(key_of);
        let keys = self.annotations.keys().chain(self.labels.keys()).map(String::as_str);
        keys.chain(taints).any(|key| is_own(key, prefix))
    }

    /// Whether it has a taint of this key.
    #[must_use]
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| key_of(taint) == key)
    }

    /// The merge patch that leaves no trace of the prefix. It names the version that it was made
    /// for, so that a value renewed meanwhile stays.
    fn clearing_patch(&self, prefix: &Prefix) -> Value {
        let nulls = |keys: &BTreeMap<String, String>| {
            let own = keys.keys().filter(|key| is_own(key, prefix));
            own.map(|key| (key.clone(), Value::Null)).collect::<serde_json::Map<_, _>>()
        };
        let mut patch = json!({"metadata": {
            "resourceVersion": self.resource_version,
            "annotations": nulls(&self.annotations),
            "labels": nulls(&self.labels),
        }});
        let foreign: Vec<&Value> =
            self.taints.iter().filter(|taint| !is_own(key_of(taint), prefix)).collect();
        if foreign.len() < self.taints.len()
            && let Some(patch) = patch.as_object_mut()
        {
            patch.insert("spec".into(), json!({ "taints": foreign }));
        }
        patch
    }
}

fn key_of(taint: &Value) -> &str {
    taint.get("key").and_then(Value::as_str).unwrap_or_default()
}

fn is_own(key: &str, prefix: &Prefix) -> bool {
    key.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

#[derive(Deserialize)]
struct ReadNodes {
    items: Vec<NodeKeys>,
}

/// All Nodes.
///
/// # Errors
/// Where the API server does not list them.
pub fn list_nodes(connection: &Connection) -> Result<Vec<NodeKeys>, ClusterError> {
    let refused = |source| ClusterError::Refused { what: "list the nodes".into(), source };
    let request = Request::new(NODES).list(&ListParams::default());
    let request = request.map_err(|error| refused(kube::Error::BuildRequest(error)))?;
    let listed: ReadNodes =
        connection.runtime.block_on(connection.client.request(request)).map_err(refused)?;
    Ok(listed.items)
}

/// What came of clearing a Node.
#[derive(Debug)]
pub enum ClearOutcome {
    /// Nothing of the prefix's is left.
    Cleared,
    /// It has changed since it was seen, to this; nothing was cleared.
    Changed(NodeKeys),
    /// There is no such Node any more.
    Gone,
}

/// Takes all that is the prefix's from a Node, if it is still as it was seen.
///
/// # Errors
/// Where the API server refuses.
pub fn clear_node(
    connection: &Connection,
    prefix: &Prefix,
    seen: &NodeKeys,
) -> Result<ClearOutcome, ClusterError> {
    let node = own_node::OwnNode::new(connection.client.clone(), seen.name.clone());
    let refused = |what: &'static str| {
        let name = seen.name.clone();
        move |why| ClusterError::NotCleared { what, name, why }
    };
    connection.runtime.block_on(async {
        match node.patch(&seen.clearing_patch(prefix)).await {
            Ok(()) => Ok(ClearOutcome::Cleared),
            Err(CallError::NotFound) => Ok(ClearOutcome::Gone),
            Err(CallError::Conflict) => match node.look().await {
                Ok(node) => Ok(ClearOutcome::Changed(node)),
                Err(CallError::NotFound) => Ok(ClearOutcome::Gone),
                Err(why) => Err(refused("look at")(why)),
            },
            Err(why) => Err(refused("clear")(why)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> NodeKeys {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_clearing_patch_leaves_foreign_keys_alone() {
        let seen = node(json!({
            "metadata": {
                "name": "a", "resourceVersion": "7",
                "annotations": {"psi-agent.io/score": "5", "psi-agent.iox/score": "1", "x": "y"},
                "labels": {"psi-agent.io/pressure": "low", "kubernetes.io/os": "linux"},
            },
            "spec": {"taints": [
                {"key": "psi-agent.io/pressure-high", "value": "true", "effect": "PreferNoSchedule"},
                {"key": "other", "effect": "NoSchedule"},
            ]},
        }));
        let expected = json!({
            "metadata": {
                "resourceVersion": "7",
                "annotations": {"psi-agent.io/score": null},
                "labels": {"psi-agent.io/pressure": null},
            },
            "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
        });
        assert_eq!(seen.clearing_patch(&Prefix::default()), expected);
    }

    #[test]
    fn without_own_taints_the_list_of_taints_is_not_written() {
        let seen = node(json!({
            "metadata": {"name": "a", "annotations": {"psi-agent.io/score": "5"}},
            "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
        }));
        assert!(seen.has_own_keys(&Prefix::default()));
        assert!(seen.clearing_patch(&Prefix::default()).get("spec").is_none());
    }
}
