//! The API server: as a service account within the cluster, or by a kubeconfig that was named.

use std::path::PathBuf;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// How the API server is reached, and which of its nodes this is.
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
    /// No client can be made of it.
    #[error("cannot make a client for the API server: {0}")]
    Client(#[from] kube::Error),
}

/// A client; nothing is asked of the API server yet.
///
/// # Errors
/// [`ClusterError`], each a sentence for people.
pub async fn connect(cluster: &Cluster) -> Result<Client, ClusterError> {
    let config = match &cluster.kubeconfig {
        None => kube::Config::incluster()?,
        Some(path) => {
            let named =
                |source| ClusterError::Kubeconfig { path: path.display().to_string(), source };
            let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(named)?
        }
    };
    Ok(Client::try_from(config)?)
}
