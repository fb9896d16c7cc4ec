//! `psi-agent bridge`: one for a cluster. It watches what agents wrote on Nodes, and serves it in the
//! forms in which deschedulers and schedulers ask for numbers.

pub mod prioritize;
pub mod query;
mod service;
pub mod table;
pub mod watcher;
pub mod window;

use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::cluster::{ApiClient, NodeAnnotations, WatchEvent, event_loop};
use crate::config::{Bridge, Config};
use crate::doors::certificate::{Certificate, Tls};
use crate::output::connections::{listen, serve, until_stopped};
use crate::sampler::moment_now;
use crate::self_health::bridge::BridgeHealth;
use service::BridgeService;
use table::{Standing, Table};
use window::Reach;

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What does not let it start, each a sentence for people.
pub fn bridge(config: &Config, settings: &Bridge) -> anyhow::Result<()> {
    event_loop()?.block_on(run_until_stopped(config, settings))
}

async fn run_until_stopped(config: &Config, settings: &Bridge) -> anyhow::Result<()> {
    let stop = until_stopped().context("cannot listen for signals")?;
    let api = ApiClient::connect_as_kubectl(config.kubeconfig.as_ref()).await?;
    let health = BridgeHealth::new(&Standing::ALL.map(Standing::word));
    let health = Arc::new(health.context("cannot register the bridge's own metrics")?);
    let tls = open_certificate(config, &health)?;
    let listener = listen(config.listen_address).await.with_context(|| {
        format!("cannot listen on {}: choose another --listen-address", config.listen_address)
    })?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let Bridge { window, stale_after, node_selector } = settings;
    tracing::info!(%node_selector, "Waiting for the API server to list the Nodes; serving {scheme}://{address}/");
    let reach = Reach { window: *window, stale_after: *stale_after };
    let (table, tables) = watch::channel(Table::new(config.prefix.clone(), reach));
    let service = BridgeService::new(tables, config.doors.rules(), Arc::clone(&health));
    let watching = api.watch_nodes(node_selector, |event| take(event, &table, &health));
    tokio::select! {
        () = serve(listener, tls, service, stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        ended = watching => Err(ended.map_or_else(anyhow::Error::from, |()| {
            anyhow::anyhow!("the watch of the Nodes ended")
        })),
    }
}

fn take(event: WatchEvent<NodeAnnotations>, table: &watch::Sender<Table>, health: &BridgeHealth) {
    let now = now();
    match event {
        WatchEvent::Listed(nodes) => {
            let (count, first) = (nodes.len(), !table.borrow().is_listed());
            table.send_modify(|table| table.replace(nodes, now));
            if first {
                tracing::info!(nodes = count, "The API server listed the Nodes");
            }
        }
        WatchEvent::Changed((name, annotations)) => {
            table.send_modify(|table| table.apply(name, &annotations, now));
        }
        WatchEvent::Deleted((name, _)) => table.send_modify(|table| table.remove(&name)),
        WatchEvent::Failed(error) => return health.nodes_not_told(&error),
    }
    health.nodes_told();
}

/// The certificate, followed from now on; `None` where plain HTTP is served.
fn open_certificate(config: &Config, health: &Arc<BridgeHealth>) -> anyhow::Result<Option<Tls>> {
    let Some(files) = config.doors.certificate.clone() else {
        return Ok(None);
    };
    let (certificate, tls) = Certificate::open(files)?;
    let health = Arc::clone(health);
    tokio::spawn(certificate.follow(move |looked| match looked {
        Ok(is_new) => health.certificate_reads(is_new),
        Err(error) => health.certificate_does_not_read(error),
    }));
    Ok(Some(tls))
}

/// The wall clock: values are dated by it.
fn now() -> Timestamp {
    let milliseconds = i64::try_from(moment_now().unix_ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX)
}
