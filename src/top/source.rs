//! Snapshots from readings of the kernel by this process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::client::snapshot::Snapshot;
use crate::config::{PodSource, TopConfig};
use crate::host::{Host, node_identity};
use crate::own_metrics::OwnMetrics;
use crate::pod_source::{connect, follow};
use crate::relief::Assessor;
use crate::sample::Detail;
use crate::sampler::{Pods, Sampler};
use crate::snapshot::{NodeIdentity, snapshot};

/// Time limit of the API server's list of pods.
const PODS_TIMEOUT: Duration = Duration::from_secs(10);

/// Samples and scores as in the agent, without serving and publishing.
pub(super) struct OwnReading {
    identity: NodeIdentity,
    sampler: Sampler,
    assessor: Assessor,
}

impl OwnReading {
    pub(super) async fn start(config: &TopConfig, read_every: Duration) -> anyhow::Result<Self> {
        let TopConfig { source, score, .. } = config;
        let (host, pod_source) = (Host::open(source)?, source.pods());
        let metrics = Arc::new(OwnMetrics::default());
        let node = connect(source).await?;
        let mut pods = follow(source, node, &metrics)?;
        if let PodSource::Cluster(node_name) = &pod_source {
            await_list(node_name, &mut pods).await?;
        }
        let sampler = Sampler::start(host.into_collector(source, None), pods, read_every)
            .context("cannot start the sampling thread")?;
        let identity = node_identity(source, score);
        let assessor = Assessor::new(score.score_resources.clone(), score.levels, Duration::MAX);
        Ok(Self { identity, sampler, assessor })
    }

    /// The snapshot at the next tick.
    pub(super) async fn next(&mut self) -> anyhow::Result<Snapshot> {
        let tick = self.sampler.next_tick().await?;
        let assessment = tick.window.map(|_| self.assessor.advance(&tick));
        let latest = self.sampler.scrape(Detail::Everything).await?;
        let rates = latest.rates.as_deref();
        Ok(snapshot(&self.identity, &latest.sample, rates, assessment.as_ref(), None))
    }
}

/// Waits for the list of pods, without which no container is in scope.
async fn await_list(node_name: &str, pods: &mut Pods) -> anyhow::Result<()> {
    let listed = pods.wait_for(|pods| pods.as_ref().is_some_and(|pods| pods.is_listed()));
    if tokio::time::timeout(PODS_TIMEOUT, listed).await.is_err() {
        bail!(
            "the API server did not list the pods of node {node_name} within {} s: run `psi-agent \
             check`, or set --pods-file",
            PODS_TIMEOUT.as_secs()
        );
    }
    Ok(())
}
