//! TLS and authentication as configured, with their metrics.

use std::sync::Arc;

use anyhow::Context;

use crate::cluster::connect;
use crate::cluster::reviews::Reviewer;
use crate::config::{Auth, Config, PodSource};
use crate::health::Health;
use crate::serve::authentication::{Authenticator, Outcome};
use crate::serve::tls::{CertificateError, Tls};

/// TLS, with its certificate followed from now on; `None` for plain HTTP.
///
/// # Errors
/// [`CertificateError`].
pub(super) fn tls(config: &Config, health: &Arc<Health>) -> Result<Option<Tls>, CertificateError> {
    let health = Arc::clone(health);
    Tls::follow(config.access.certificate.as_ref(), move |read| health.certificates.read(read))
}

/// The authenticator; `None` without authentication.
///
/// # Errors
/// Unreadable credentials.
pub(super) async fn authenticator(
    config: &Config,
    health: &Arc<Health>,
) -> anyhow::Result<Option<Arc<Authenticator>>> {
    let cluster = match (config.access.auth, &config.pods) {
        (Auth::None, _) => return Ok(None),
        (Auth::Kubernetes, PodSource::Cluster(cluster)) => cluster,
        (Auth::Kubernetes, PodSource::Nobody | PodSource::File(_)) => {
            anyhow::bail!("there is no API server to review tokens")
        }
    };
    let reviewer = Reviewer::new(connect(cluster).await?);
    let health = Arc::clone(health);
    let authenticator = Authenticator::new(reviewer, move |outcome| match outcome {
        Outcome::Decided(decision) => health.reviews.decided(*decision),
        Outcome::Failed(error) => health.reviews.failed(error),
    });
    Ok(Some(Arc::new(authenticator.context("cannot authenticate clients")?)))
}
