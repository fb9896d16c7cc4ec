//! TLS and authentication as configured, with their metrics.

use std::sync::Arc;

use anyhow::Context;

use crate::cluster::OwnNode;
use crate::config::{Auth, Config};
use crate::health::Health;
use crate::serve::authentication::{Authenticator, Outcome};
use crate::serve::tls::{CertificateError, Tls};

/// TLS, with its certificate followed from now on; `None` for plain HTTP.
pub(super) fn tls(config: &Config, health: &Arc<Health>) -> Result<Option<Tls>, CertificateError> {
    let health = Arc::clone(health);
    Tls::follow(config.access.certificate.as_ref(), move |read| health.certificates.read(read))
}

/// The authenticator; `None` without authentication.
pub(super) fn authenticator(
    config: &Config,
    node: Option<&OwnNode>,
    health: &Arc<Health>,
) -> anyhow::Result<Option<Arc<Authenticator>>> {
    if config.access.auth == Auth::None {
        return Ok(None);
    }
    let node = node.context("there is no API server to review tokens")?;
    let health = Arc::clone(health);
    let authenticator = Authenticator::new(node.api.clone(), move |outcome| match outcome {
        Outcome::Decided(decision) => health.reviews.decided(*decision),
        Outcome::Failed(error) => health.reviews.failed(error),
    });
    Ok(Some(Arc::new(authenticator.context("cannot authenticate clients")?)))
}
