//! The flags about TLS and access.

use std::path::PathBuf;

use clap::ValueEnum;

use super::cluster::PodSource;
use super::command::Command;
use super::error::ConfigError;
use crate::serve::authorization::{AccessRules, Page};
use crate::serve::tls::CertificateFiles;

/// Authentication for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// No authentication
    None,
    /// A bearer token whose account may get /metrics, reviewed by the API server
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The certificate; `None` for plain HTTP.
    pub certificate: Option<CertificateFiles>,
    pub auth: Auth,
    pub page: Page,
}

impl Access {
    pub(super) fn new(
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

    pub fn rules(&self) -> AccessRules {
        AccessRules {
            tls: self.certificate.is_some(),
            tokens: self.auth == Auth::Kubernetes,
            page: self.page,
        }
    }
}
