//! The doors, as this agent is told to keep them, and what it says of them.

use std::sync::Arc;

use anyhow::Context;

use crate::cluster::connect;
use crate::cluster::reviews::Reviewer;
use crate::config::{Auth, Config, PodSource};
use crate::doors::certificate::{Certificate, Tls};
use crate::doors::gate::{Gate, Report};
use crate::output::scrape::Scrapes;

/// The certificate, followed from now on; `None` where plain HTTP is served.
///
/// # Errors
/// Files that do not read, or do not fit together.
pub(super) fn open_certificate(
    config: &Config,
    scrapes: &Arc<Scrapes>,
) -> anyhow::Result<Option<Tls>> {
    let Some(files) = config.doors.certificate.clone() else {
        return Ok(None);
    };
    let (certificate, tls) = Certificate::open(files)?;
    let scrapes = Arc::clone(scrapes);
    tokio::spawn(certificate.follow(move |looked| match looked {
        Ok(is_new) => scrapes.health().certificate_reads(is_new),
        Err(error) => scrapes.health().certificate_does_not_read(error),
    }));
    Ok(Some(tls))
}

/// Who looks at tokens; `None` where nobody needs any.
///
/// # Errors
/// Credentials that do not read.
pub(super) async fn open_gate(
    config: &Config,
    scrapes: &Arc<Scrapes>,
) -> anyhow::Result<Option<Arc<Gate>>> {
    let cluster = match (config.doors.auth, &config.pods) {
        (Auth::None, _) => return Ok(None),
        (Auth::Kubernetes, PodSource::Cluster(cluster)) => cluster,
        (Auth::Kubernetes, PodSource::Nobody | PodSource::File(_)) => {
            anyhow::bail!("there is no API server to ask about tokens")
        }
    };
    let reviewer = Reviewer::new(connect(cluster).await?);
    let scrapes = Arc::clone(scrapes);
    let gate = Gate::new(reviewer, move |report| match report {
        Report::Found(verdict) => scrapes.health().reviewed(*verdict),
        Report::Failed(error) => scrapes.health().not_reviewed(error),
    });
    Ok(Some(Arc::new(gate.context("cannot check tokens")?)))
}
