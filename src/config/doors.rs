//! Who may look at what the agent serves, as far as flags say it.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Command, ConfigError, PodSource};
use crate::doors::certificate::CertificateFiles;
use crate::doors::rules::{Page, Rules};

/// Who may have the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// Everybody
    None,
    /// Whose bearer token the API server lets get /metrics
    Kubernetes,
}

impl Auth {
    pub(super) fn check(
        self,
        pods: &PodSource,
        has_tls: bool,
        command: &Command,
    ) -> Result<(), ConfigError> {
        match (self, command) {
            (Auth::Kubernetes, Command::Run) if !has_tls => Err(ConfigError::AuthWithoutTls),
            (Auth::Kubernetes, Command::Run) if !matches!(pods, PodSource::Cluster(_)) => {
                Err(ConfigError::AuthWithoutCluster)
            }
            (Auth::Kubernetes, Command::Bridge(_)) => Err(ConfigError::AuthOfTheBridge),
            (Auth::Kubernetes | Auth::None, _) => Ok(()),
        }
    }
}

/// Who may look at what the agent serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doors {
    /// What to serve TLS with; `None` for plain HTTP.
    pub certificate: Option<CertificateFiles>,
    /// Who may have the metrics.
    pub auth: Auth,
    /// Who gets the page.
    pub page: Page,
}

impl Doors {
    pub(super) fn of(
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        auth: Auth,
        page: Page,
    ) -> Result<Self, ConfigError> {
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(ConfigError::HalfACertificate),
        };
        Ok(Self { certificate, auth, page })
    }

    /// What is asked of visitors.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            tls: self.certificate.is_some(),
            tokens: self.auth == Auth::Kubernetes,
            page: self.page,
        }
    }
}
