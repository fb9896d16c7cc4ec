//! The doors, as this agent is told to keep them, and what it says of them.

use std::sync::Arc;

use anyhow::Context;

use crate::cluster::OwnNode;
use crate::config::{Auth, Config};
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
/// Where the agent has no API server, or the system no random numbers.
pub(super) fn open_gate(
    config: &Config,
    node: Option<&OwnNode>,
    scrapes: &Arc<Scrapes>,
) -> anyhow::Result<Option<Arc<Gate>>> {
    if config.doors.auth == Auth::None {
        return Ok(None);
    }
    let node = node.context("there is no API server to review tokens")?;
    let scrapes = Arc::clone(scrapes);
    let gate = Gate::new(node.api.clone(), move |report| match report {
        Report::Found(verdict) => scrapes.health().reviewed(*verdict),
        Report::Failed(error) => scrapes.health().not_reviewed(error),
    });
    Ok(Some(Arc::new(gate.context("cannot check tokens")?)))
}
