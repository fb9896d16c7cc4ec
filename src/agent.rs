//! `psi-agent run`: starts the sampling thread, the publisher and the HTTP server, and decides which
//! errors are fatal.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{oneshot, watch};

use crate::client::cluster::block_on;
use crate::config::RunConfig;
use crate::export::http::AgentService;
use crate::export::scrape::Scrapes;
use crate::host::{Host, node_identity};
use crate::own_metrics::OwnMetrics;
use crate::pod_source;
use crate::relief::Assessor;
use crate::sampler::{Sampler, TICK_INTERVAL};
use crate::serve::connections::{Server, stop_signal};
use crate::serve::tls::Tls;
use crate::waiting::CpuSource;
use ticks::Ticks;

mod access;
mod publishing;
mod ticks;

/// Runs until SIGTERM or SIGINT.
pub fn run(config: &RunConfig) -> anyhow::Result<()> {
    block_on(run_until_stopped(config))
}

async fn run_until_stopped(config: &RunConfig) -> anyhow::Result<()> {
    let mut stop = pin!(stop_signal().context("cannot handle signals")?);
    let RunningAgent { server, service, ticks } = tokio::select! {
        () = &mut stop => return Ok(()),
        started = start(config) => started?,
    };
    tokio::select! {
        // Polled in order, so that "Listening" is logged before the start message.
        biased;
        () = server.serve(service, stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        ended = ticks.follow() => ended,
    }
}

struct RunningAgent {
    server: Server,
    service: Arc<AgentService>,
    ticks: Ticks,
}

/// Starts all parts of the agent. Does not wait for the kernel or the API server, so the HTTP
/// server responds before the first sample.
async fn start(config: &RunConfig) -> anyhow::Result<RunningAgent> {
    let RunConfig { server: flags, source, export, score, .. } = config;
    let host = Host::open(source)?;
    warn_of_missing_cgroup2(&host);
    let found = describe(&host);
    let cpu_source = describe_cpu_source(&host);
    let metrics = Arc::new(OwnMetrics::default());
    metrics.set_node(!host.node_alone, score.levels);
    let of_tls = Arc::clone(&metrics);
    let certificate = flags.tls.certificate();
    metrics.set_tls(certificate.is_some());
    let tls = Tls::follow(certificate.as_ref(), move |read| of_tls.certificate_read(read))?;
    let server = Server::listen(flags.listen.listen_address, flags.probe_address, tls).await?;
    let node = pod_source::connect(&source.pods()).await?;
    let authenticator = access::authenticator(config, node.as_ref(), &metrics)?;
    let pods = pod_source::follow(source, node.clone(), &metrics)?;
    let sampler =
        Sampler::start(host.into_collector(source, Some(export)), pods.clone(), TICK_INTERVAL)
            .context("cannot start the sampling thread")?;
    let (assessed, assessments) = watch::channel(None);
    let (adopt, adopted) = oneshot::channel();
    publishing::start(config, node, assessments.clone(), adopt, &metrics);
    let ticks = Ticks {
        sampler: sampler.clone(),
        assessor: Assessor::new(score.score_resources.clone(), score.levels),
        assessments: assessed,
        adopted,
        metrics: Arc::clone(&metrics),
        start_message: format!("Reading {found}, CPU wait by {cpu_source}; serving {}", server.url),
    };
    let service = AgentService {
        identity: node_identity(&source.pods(), score),
        sampler,
        pods,
        assessments,
        scrapes: Scrapes::new(export.families.clone()),
        own_metrics: metrics,
        rules: config.access_rules(),
        authenticator,
    };
    Ok(RunningAgent { server, service: Arc::new(service), ticks })
}

/// Logs a warning and continues: an agent that exited here would be restarted forever.
fn warn_of_missing_cgroup2(host: &Host) {
    if host.node_alone {
        let path = host.root.path().display();
        tracing::warn!(
            "{path} is not cgroup v2, so the node's pods can't be read, and no score is published: \
             boot the node with systemd.unified_cgroup_hierarchy=1; see `psi-agent check`"
        );
    }
}

/// The source of CPU wait time. A kernel that counts no run delay is an error where that was chosen.
fn describe_cpu_source(host: &Host) -> String {
    let source = host.cpu_source;
    if host.counts_run_delay {
        return source.into_str().to_owned();
    }
    if source == CpuSource::RunDelay {
        tracing::error!(
            "This kernel counts no run delay, so there is no CPU score: boot it with delayacct, or set \
             --cpu-source=psi; see `psi-agent check`"
        );
    }
    format!("{} (this kernel counts no run delay)", source.into_str())
}

fn describe(host: &Host) -> String {
    let path = host.root.path().display();
    if host.node_alone {
        return format!("the node alone ({path} is not cgroup v2)");
    }
    match &host.mount {
        Some(mount) if mount.hybrid => format!("{path} (cgroup v2 beside v1)"),
        Some(_) => format!("{path} (cgroup v2)"),
        None if host.root.is_cgroup2() => format!("{path} (cgroup v2, by --cgroup-root)"),
        None => format!("{path} (not a cgroup2 mount: its files are read as a copy)"),
    }
}
