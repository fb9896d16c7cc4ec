//! The source of the pods of this node.

use std::path::PathBuf;

use super::error::ConfigError;
use crate::cluster::Cluster;

/// Who tells of this node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// Nobody: the agent stands alone on a host.
    Nobody,
    /// A file.
    File(PathBuf),
    /// The API server.
    Cluster(Cluster),
}

impl PodSource {
    /// What was typed, and whether this process is a pod that has a service account.
    pub(super) fn of(
        pods_file: Option<PathBuf>,
        kubeconfig: Option<PathBuf>,
        node_name: Option<String>,
        in_cluster: bool,
    ) -> Result<Self, ConfigError> {
        match (pods_file, node_name) {
            (Some(file), _) => Ok(PodSource::File(file)),
            (None, Some(node_name)) if kubeconfig.is_some() || in_cluster => {
                Ok(PodSource::Cluster(Cluster { kubeconfig, node_name }))
            }
            (None, Some(_)) => Err(ConfigError::NodeWithoutCluster),
            (None, None) if kubeconfig.is_some() || in_cluster => {
                Err(ConfigError::ClusterWithoutNode)
            }
            (None, None) => Ok(PodSource::Nobody),
        }
    }
}
