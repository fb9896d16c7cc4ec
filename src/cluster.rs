//! The API server: how it is reached, and its Nodes as far as they concern the agent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::contract::Prefix;

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
}

/// A client for the agent; nothing is asked of the API server yet.
///
/// # Errors
/// [`ClusterError`], each a sentence for people.
pub async fn connect(cluster: &Cluster) -> Result<Client, ClusterError> {
    let config = match &cluster.kubeconfig {
        None => Config::incluster()?,
        Some(path) => by_kubeconfig(path).await?,
    };
    Client::try_from(config).map_err(ClusterError::Client)
}

async fn by_kubeconfig(path: &PathBuf) -> Result<Config, ClusterError> {
    let named = |source| ClusterError::Kubeconfig { path: path.display().to_string(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(named)
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
    /// Connects by kubectl's rules: the file that was named, else KUBECONFIG, else
    /// `~/.kube/config`, else the service account.
    ///
    /// # Errors
    /// [`ClusterError`], each a sentence for people.
    pub fn open(kubeconfig: Option<&PathBuf>) -> Result<Self, ClusterError> {
        let runtime = event_loop()?;
        let client = runtime.block_on(async {
            let config = match kubeconfig {
                Some(path) => by_kubeconfig(path).await?,
                None => Config::infer().await?,
            };
            Client::try_from(config).map_err(ClusterError::Client)
        })?;
        Ok(Self { client, runtime })
    }
}

/// What of a Node concerns the agent.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeKeys {
    /// Its name.
    pub name: String,
    /// Its annotations, all of them.
    pub annotations: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    resource_version: Option<String>,
}

impl From<Node> for NodeKeys {
    fn from(node: Node) -> Self {
        let metadata = node.metadata;
        Self {
            name: metadata.name.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            taints: node.spec.and_then(|spec| spec.taints).unwrap_or_default(),
            resource_version: metadata.resource_version,
        }
    }
}

impl NodeKeys {
    /// Whether anything of the prefix's is on it.
    #[must_use]
    pub fn has_own_keys(&self, prefix: &Prefix) -> bool {
        let taints = self.taints.iter().map(|taint| &taint.key);
        let mut keys = self.annotations.keys().chain(self.labels.keys()).chain(taints);
        keys.any(|key| is_own(key, prefix))
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
        let foreign: Vec<&Taint> =
            self.taints.iter().filter(|taint| !is_own(&taint.key, prefix)).collect();
        if foreign.len() < self.taints.len()
            && let Some(patch) = patch.as_object_mut()
        {
            patch.insert("spec".into(), json!({ "taints": foreign }));
        }
        patch
    }
}

fn is_own(key: &str, prefix: &Prefix) -> bool {
    key.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// All Nodes.
///
/// # Errors
/// Where the API server does not list them.
pub fn list_nodes(connection: &Connection) -> Result<Vec<NodeKeys>, ClusterError> {
    let api: Api<Node> = Api::all(connection.client.clone());
    let listed = connection.runtime.block_on(api.list(&ListParams::default()));
    let refused = |source| ClusterError::Refused { what: "list the nodes".into(), source };
    Ok(listed.map_err(refused)?.items.into_iter().map(NodeKeys::from).collect())
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
    const NOT_FOUND: u16 = 404;
    const CONFLICT: u16 = 409;
    let api: Api<Node> = Api::all(connection.client.clone());
    let patch = Patch::Merge(seen.clearing_patch(prefix));
    let refused = |what: &str, source| ClusterError::Refused {
        what: format!("{what} node {}", seen.name),
        source,
    };
    connection.runtime.block_on(async {
        match api.patch(&seen.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(ClearOutcome::Cleared),
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(ClearOutcome::Gone),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {
                match api.get_opt(&seen.name).await {
                    Ok(Some(node)) => Ok(ClearOutcome::Changed(node.into())),
                    Ok(None) => Ok(ClearOutcome::Gone),
                    Err(source) => Err(refused("show", source)),
                }
            }
            Err(source) => Err(refused("let us change", source)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> NodeKeys {
        serde_json::from_value::<Node>(value).unwrap().into()
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
