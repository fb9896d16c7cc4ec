//! Authentication as configured, with its metrics.

use std::sync::Arc;

use anyhow::Context;

use crate::client::cluster::OwnNode;
use crate::config::{Auth, RunConfig};
use crate::own_metrics::OwnMetrics;
use crate::serve::authentication::{Authenticator, Outcome};

/// The authenticator; `None` without authentication.
pub(super) fn authenticator(
    config: &RunConfig,
    node: Option<&OwnNode>,
    metrics: &Arc<OwnMetrics>,
) -> anyhow::Result<Option<Arc<Authenticator>>> {
    if config.access.auth == Auth::None {
        return Ok(None);
    }
    let node = node.context("there is no API server to review tokens")?;
    let metrics = Arc::clone(metrics);
    let report = move |outcome: Outcome<'_>| metrics.token_reviewed(outcome);
    let authenticator = Authenticator::new(node.api.clone(), report)
        .context("cannot authenticate clients: the system provides no random numbers")?;
    Ok(Some(Arc::new(authenticator)))
}
