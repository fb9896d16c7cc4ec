//! Authentication as configured, with its metrics.

use std::sync::Arc;

use anyhow::Context;

use crate::client::cluster::OwnNode;
use crate::config::{Auth, Config};
use crate::health::Health;
use crate::serve::authentication::{Authenticator, Outcome};

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
