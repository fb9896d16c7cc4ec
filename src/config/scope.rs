//! The cgroups that the metrics are about.

use clap::ValueEnum;

use super::error::ConfigError;
use super::pods::PodSource;
use crate::collector::Selection;

/// Which cgroups are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// Every cgroup but systemd's mount units
    All,
    /// The node, pods and their containers
    Pods,
    /// The node, and of the pods those that run VMs
    VirtLauncher,
}

impl Scope {
    pub(super) fn of(typed: Option<Self>, pods: &PodSource) -> Result<Self, ConfigError> {
        let knows_pods = *pods != PodSource::Nobody;
        match typed {
            Some(Scope::VirtLauncher) if !knows_pods => Err(ConfigError::ScopeWithoutPods),
            Some(scope) => Ok(scope),
            None => Ok(if knows_pods { Scope::VirtLauncher } else { Scope::All }),
        }
    }

    pub(super) fn selection(self, levels: &[CgroupLevel]) -> Selection {
        let level = |level| levels.contains(&level);
        Selection {
            everything: self == Scope::All,
            root: level(CgroupLevel::Root),
            pods: level(CgroupLevel::Pod),
            containers: level(CgroupLevel::Container),
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
