//! `psi-agent bridge` runs once in a cluster. It watches the scores that agents publish on Nodes,
//! and serves them to deschedulers and schedulers in the protocols of these programs.

mod document;
pub mod load_watcher;
pub mod prioritize;
pub mod query;
pub mod service;
pub mod table;
pub mod window;

use std::pin::pin;
use std::sync::Arc;

use anyhow::bail;
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::client::cluster::call::CallError;
use crate::client::cluster::{NodeMetadata, WatchEvent, block_on};
use crate::clock;
use crate::config::BridgeConfig;
use crate::own_metrics::bridge::BridgeMetrics;
use crate::serve::connections::{Server, serve_until_stopped};
use crate::serve::tls::Tls;
use service::BridgeService;
use table::Table;
use window::Reach;

/// Runs until SIGTERM or SIGINT.
pub fn bridge(config: &BridgeConfig) -> anyhow::Result<()> {
    block_on(serve_until_stopped(start(config)))
}

async fn start(
    config: &BridgeConfig,
) -> anyhow::Result<(Server, Arc<BridgeService>, impl Future<Output = anyhow::Result<()>>)> {
    let BridgeConfig { server: flags, api: api_flags, window, stale, node_selector, .. } = config;
    let api = api_flags.connect().await?;
    let metrics = Arc::new(BridgeMetrics::default());
    let of_tls = Arc::clone(&metrics);
    let tls = Tls::follow(flags.certificate.as_ref(), move |read| of_tls.certificate_read(read))?;
    let server = Server::listen(flags.listen.listen_address, flags.probe_address, tls)?;
    let (url, prefix) = (&server.url, &api_flags.prefix);
    tracing::info!(%node_selector, "Waiting for the API server to list the Nodes; serving {url}");
    let reach = Reach { window: *window, stale_after: stale.stale_after };
    let (table, tables) = watch::channel(Table::new(prefix.clone(), reach));
    let service = BridgeService::new(tables, Arc::clone(&metrics));
    let (events, selector) = (api.watch_nodes(prefix, node_selector), node_selector.clone());
    let work = async move {
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            if let WatchEvent::Failed(CallError::Refused { code: 400, message }) = &event
                && !table.borrow().is_listed()
            {
                // A retry does not change that.
                bail!("the API server rejects the label selector {selector:?}: {message}");
            }
            apply(event, &table, &metrics);
        }
        Ok(())
    };
    Ok((server, Arc::new(service), work))
}

fn apply(event: WatchEvent<NodeMetadata>, table: &watch::Sender<Table>, metrics: &BridgeMetrics) {
    let now = clock::now().timestamp();
    match event {
        WatchEvent::Listed(nodes) => {
            let (count, first) = (nodes.len(), !table.borrow().is_listed());
            let nodes = nodes.into_iter().map(|node| (node.name, node.annotations)).collect();
            table.send_modify(|table| table.replace(nodes, now));
            if first {
                tracing::info!(nodes = count, "The API server listed the Nodes");
            }
        }
        WatchEvent::Changed(node) => {
            table.send_modify(|table| table.apply(node.name, &node.annotations, now));
        }
        WatchEvent::Deleted(node) => table.send_modify(|table| table.remove(&node.name)),
        WatchEvent::Following => {}
        WatchEvent::Skipped(reason) => return metrics.nodes_failed(&reason),
        WatchEvent::Failed(error) => return metrics.nodes_failed(&error),
    }
    metrics.nodes_received();
}
