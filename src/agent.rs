//! `psi-agent run`: starts the sampling thread, the publisher and the HTTP server, and decides which
//! errors are fatal.

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::client::cluster::block_on;
use crate::config::{Auth, RunConfig};
use crate::export::http::{AgentService, MOST_SNAPSHOTS};
use crate::host::{Finding, Host, node_identity};
use crate::own_metrics::OwnMetrics;
use crate::pod_source;
use crate::relief::Assessor;
use crate::sampler::{Sampler, TICK_INTERVAL};
use crate::serve::authentication::{Authenticator, Outcome};
use crate::serve::connections::{Server, serve_until_stopped};
use crate::serve::tls::Tls;
use ticks::follow;

mod publishing;
mod ticks;

/// Runs until SIGTERM or SIGINT.
pub fn run(config: &RunConfig) -> anyhow::Result<()> {
    block_on(serve_until_stopped(start(config)))
}

/// Starts all parts of the agent: the server, what it serves, and the ticks. Does not wait for the
/// kernel or the API server, so the HTTP server responds before the first sample.
async fn start(
    config: &RunConfig,
) -> anyhow::Result<(Server, Arc<AgentService>, impl Future<Output = anyhow::Result<()>>)> {
    let RunConfig { server: flags, source, export, score, .. } = config;
    let host = Host::open(source)?;
    let [cgroups, cpu_wait] = [host.cgroups(), host.cpu_wait(source)].map(described);
    let metrics = Arc::new(OwnMetrics::default());
    metrics.set_node(!host.node_alone, score.levels);
    let of_tls = Arc::clone(&metrics);
    let tls = Tls::follow(flags.certificate.as_ref(), move |read| of_tls.certificate_read(read))?;
    let server = Server::listen(flags.listen.listen_address, flags.probe_address, tls)?;
    let node = pod_source::connect(source).await?;
    let authenticator = match config.auth {
        Auth::None => None,
        Auth::Kubernetes => {
            let node = node.as_ref().context("there is no API server to review tokens")?;
            let of_reviews = Arc::clone(&metrics);
            let report = move |outcome: Outcome<'_>| of_reviews.token_reviewed(outcome);
            let authenticator = Authenticator::new(node.api.clone(), report)
                .context("cannot authenticate clients: the system provides no random numbers")?;
            Some(Arc::new(authenticator))
        }
    };
    let pods = pod_source::follow(source, node.clone(), &metrics)?;
    let sampler =
        Sampler::start(host.into_collector(source, Some(export)), pods.clone(), TICK_INTERVAL)
            .context("cannot start the sampling thread")?;
    let (assessed, assessments) = watch::channel(None);
    let (adopt, adopted) = oneshot::channel();
    publishing::start(config, node, assessments.clone(), adopt, &metrics);
    let (resources, settle) = (score.score_resources.clone(), config.publishing.settle);
    let assessor = Assessor::new(resources, score.levels, settle);
    let start_message =
        format!("Started; cgroups: {cgroups}; CPU wait time: {cpu_wait}; serving {}", server.url);
    let of_ticks = Arc::clone(&metrics);
    let ticks = follow(sampler.clone(), assessor, assessed, adopted, of_ticks, start_message);
    let service = AgentService {
        identity: node_identity(source, score),
        sampler,
        pods,
        assessments,
        groups: export.families(),
        own_metrics: metrics,
        page: config.page,
        snapshots: Arc::new(Semaphore::new(MOST_SNAPSHOTS)),
        authenticator,
    };
    Ok((server, Arc::new(service), ticks))
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
