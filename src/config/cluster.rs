//! The settings whose defaults depend on whether the agent runs in a cluster.

use std::path::PathBuf;

use clap::ValueEnum;

use super::error::ConfigError;
use crate::client::cluster::Cluster;
use crate::identity::selection::Selection;

/// Source of this node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// None: the agent runs stand-alone on a host.
    Standalone,
    File(PathBuf),
    Cluster(Cluster),
}

impl PodSource {
    /// The source that the flags name. `in_cluster`: this process has a service account.
    pub(super) fn new(
        pods_file: Option<PathBuf>,
        kubeconfig: Option<PathBuf>,
        node_name: Option<String>,
        in_cluster: bool,
    ) -> Result<Self, ConfigError> {
        let has_cluster = kubeconfig.is_some() || in_cluster;
        match (pods_file, node_name) {
            (Some(file), _) => Ok(PodSource::File(file)),
            (None, Some(node_name)) if has_cluster => {
                Ok(PodSource::Cluster(Cluster { kubeconfig, node_name }))
            }
            (None, Some(_)) => Err(ConfigError::NodeWithoutCluster),
            (None, None) if has_cluster => Err(ConfigError::ClusterWithoutNode),
            (None, None) => Ok(PodSource::Standalone),
        }
    }
}

/// The cgroups that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// All cgroups except systemd's mount units
    All,
    /// The node, pods and their containers
    Pods,
    /// The node, and the pods that run VMs with their containers
    VirtLauncher,
}

impl Scope {
    pub(super) fn new(typed: Option<Self>, pods: &PodSource) -> Result<Self, ConfigError> {
        match (typed, pods) {
            (Some(Scope::VirtLauncher), PodSource::Standalone) => {
                Err(ConfigError::ScopeWithoutPods)
            }
            (Some(scope), _) => Ok(scope),
            (None, PodSource::Standalone) => Ok(Scope::All),
            (None, PodSource::File(_) | PodSource::Cluster(_)) => Ok(Scope::VirtLauncher),
        }
    }

    pub(super) fn selection(self, levels: &[CgroupLevel]) -> Selection {
        Selection {
            everything: self == Scope::All,
            root: levels.contains(&CgroupLevel::Root),
            pods: levels.contains(&CgroupLevel::Pod),
            containers: levels.contains(&CgroupLevel::Container),
            vms_only: self == Scope::VirtLauncher,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CgroupLevel {
    /// The root cgroup, which is the node
    Root,
    /// Pods
    Pod,
    /// Containers
    Container,
}

/// Whether the score is published on the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Publish {
    /// The score is written on the Node
    On,
    /// The score is logged and counted as if it were written
    DryRun,
    /// The score is not written
    Off,
}

impl Publish {
    pub(super) fn new(typed: Option<Self>, pods: &PodSource) -> Self {
        let in_cluster = matches!(pods, PodSource::Cluster(_));
        typed.unwrap_or(if in_cluster { Publish::On } else { Publish::DryRun })
    }

    pub(super) fn check(self, pods: &PodSource) -> Result<(), ConfigError> {
        match (self, pods) {
            (Publish::On, PodSource::Standalone) => Err(ConfigError::PublishWithoutCluster),
            (Publish::On, PodSource::File(_)) => Err(ConfigError::WithPodsFile("--publish on")),
            (Publish::On | Publish::DryRun | Publish::Off, _) => Ok(()),
        }
    }
}
