//! The settings of TLS and authentication.

use clap::ValueEnum;

use super::cluster::PodSource;
use super::error::ConfigError;
use crate::serve::authorization::{AccessRules, Page};
use crate::serve::tls::CertificateFiles;

/// Authentication for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// No authentication
    #[default]
    None,
    /// A bearer token whose account may get /metrics
    Kubernetes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The certificate; `None` for plain HTTP.
    pub certificate: Option<CertificateFiles>,
    pub auth: Auth,
    pub page: Page,
}

impl Access {
    pub(super) fn check(&self, pods: &PodSource) -> Result<(), ConfigError> {
        match (self.auth, pods) {
            (Auth::None, _) => Ok(()),
            (Auth::Kubernetes, _) if self.certificate.is_none() => Err(ConfigError::AuthWithoutTls),
            (Auth::Kubernetes, PodSource::Cluster(_)) => Ok(()),
            (Auth::Kubernetes, PodSource::File(_)) => {
                Err(ConfigError::WithPodsFile("--auth kubernetes"))
            }
            (Auth::Kubernetes, PodSource::Standalone) => Err(ConfigError::AuthWithoutCluster),
        }
    }

    pub fn rules(&self) -> AccessRules {
        AccessRules {
            tls: self.certificate.is_some(),
            tokens: self.auth == Auth::Kubernetes,
            page: self.page,
        }
    }
}
