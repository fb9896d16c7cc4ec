//! `psi-agent run`: starts the sampling thread, the publisher and the HTTP server, and decides which
//! errors are fatal.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{oneshot, watch};

use crate::client::cluster::{OwnNode, block_on};
use crate::config::{Auth, PodSource, Publish, RunConfig};
use crate::export::http::AgentService;
use crate::export::scrape::Scrapes;
use crate::host::finding::Finding;
use crate::host::{Host, node_identity};
use crate::own_metrics::{Feature, OwnMetrics};
use crate::pod_source;
use crate::relief::Assessor;
use crate::sampler::{Sampler, TICK_INTERVAL};
use crate::serve::authentication::{Authenticator, Outcome};
use crate::serve::connections::{Server, stop_signal};
use crate::serve::probes::serve_probes;
use crate::serve::tls::Tls;
use ticks::Ticks;

mod publishing;
mod ticks;

/// Runs until SIGTERM or SIGINT.
pub fn run(config: &RunConfig) -> anyhow::Result<()> {
    block_on(run_until_stopped(config))
}

async fn run_until_stopped(config: &RunConfig) -> anyhow::Result<()> {
    let mut stop = pin!(stop_signal().context("cannot handle signals")?);
    let (server, probes, service, ticks) = tokio::select! {
        () = &mut stop => return Ok(()),
        started = start(config) => started?,
    };
    tokio::select! {
        // Polled in order, so that "Listening" is logged before the start message.
        biased;
        () = server.serve(Arc::clone(&service), stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        () = serve_probes(probes, service) => Ok(()),
        ended = ticks.follow() => ended,
    }
}

/// Starts all parts of the agent: the server, that of probes with `--probe-address`, what both serve, and
/// the ticks. Does not wait for the kernel or the API server, so the HTTP server responds before the
/// first sample.
async fn start(
    config: &RunConfig,
) -> anyhow::Result<(Server, Option<Server>, Arc<AgentService>, Ticks)> {
    let RunConfig { server: flags, source, export, score, .. } = config;
    let host = Host::open(source)?;
    let [cgroups, cpu_wait] = [host.cgroups(), host.cpu_wait(source)].map(described);
    let metrics = OwnMetrics::new(&features(config));
    let metrics = Arc::new(metrics.context("cannot register the agent's own metrics")?);
    metrics.set_cgroup2(!host.node_alone);
    metrics.set_levels(score.levels.medium(), score.levels.high());
    let of_tls = Arc::clone(&metrics);
    let certificate = flags.tls.certificate();
    let tls = Tls::follow(certificate.as_ref(), move |read| of_tls.certificates.read(read))?;
    let server = Server::listen(flags.listen.listen_address, tls).await?;
    let probes = Server::listen_for_probes(flags.probe_address).await?;
    let node = pod_source::connect(&source.pods()).await?;
    let authenticator = match config.access.auth {
        Auth::None => None,
        Auth::Kubernetes => Some(authenticator(node.as_ref(), &metrics)?),
    };
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
        start_message: format!("Reading {cgroups}; CPU wait by {cpu_wait}; serving {}", server.url),
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
    Ok((server, probes, Arc::new(service), ticks))
}

fn authenticator(
    node: Option<&OwnNode>,
    metrics: &Arc<OwnMetrics>,
) -> anyhow::Result<Arc<Authenticator>> {
    let node = node.context("there is no API server to review tokens")?;
    let metrics = Arc::clone(metrics);
    let report = move |outcome: Outcome<'_>| match outcome {
        Ok(decision) => metrics.reviews.decided(decision),
        Err(error) => metrics.reviews.failed(error),
    };
    let authenticator = Authenticator::new(node.api.clone(), report)
        .context("cannot authenticate clients: the system provides no random numbers")?;
    Ok(Arc::new(authenticator))
}

/// The features in use that have metrics of their own.
fn features(config: &RunConfig) -> Vec<Feature> {
    let publish = config.publishing.publish.mode(&config.source);
    let marks = config.publishing.mark_candidate;
    let features = [
        (Feature::Pods, config.source.pods() != PodSource::Standalone),
        (Feature::DryRun, publish == Publish::DryRun),
        (Feature::Publishing, publish == Publish::On),
        (Feature::Candidate, publish == Publish::On && marks),
        (Feature::TokenReviews, config.access.auth != Auth::None),
        (Feature::Tls, config.server.tls.certificate().is_some()),
    ];
    features.into_iter().filter_map(|(feature, in_use)| in_use.then_some(feature)).collect()
}

/// The text of a finding. A fatal problem is only logged: an agent that exited would be restarted
/// forever.
fn described(finding: Finding) -> String {
    finding.unwrap_or_else(|problem| {
        if problem.is_fatal {
            tracing::error!("{problem}; see `psi-agent check`");
        }
        problem.text
    })
}
