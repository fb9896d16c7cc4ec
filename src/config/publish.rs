//! Whether the score is written on the Node.

use clap::ValueEnum;

use super::command::Command;
use super::error::ConfigError;
use super::pods::PodSource;

/// What happens to the score, besides being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Publish {
    /// It is written on the Node
    On,
    /// What would be written is logged and counted
    DryRun,
    /// Nothing
    Off,
}

impl Publish {
    pub(super) fn of(
        typed: Option<Self>,
        pods: &PodSource,
        command: &Command,
    ) -> Result<Self, ConfigError> {
        let in_cluster = matches!(pods, PodSource::Cluster(_));
        match typed {
            Some(Publish::On) if !in_cluster && *command == Command::Run => {
                Err(ConfigError::PublishWithoutCluster)
            }
            Some(publish) => Ok(publish),
            None => Ok(if in_cluster { Publish::On } else { Publish::DryRun }),
        }
    }
}
