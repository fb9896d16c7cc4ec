//! `psi-agent top`: the node and what it scores by contention, from a running agent, or, without one, from
//! readings of the kernel by this process.

mod client;

use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::timeout;

use crate::client::cluster::block_on;
use crate::client::snapshot::Snapshot;
use crate::client::top::{Described, FETCH_INTERVAL, show};
use crate::config::{PodSource, TopConfig};
use crate::host::{Host, node_identity};
use crate::own_metrics::OwnMetrics;
use crate::pod_source::{connect, follow};
use crate::relief::Assessor;
use crate::sample::Detail;
use crate::sampler::{Sampler, TICK_INTERVAL};
use crate::snapshot::{NodeIdentity, snapshot};
use client::{fetch, is_own, reachable};

/// Time limit of the API server's list of pods.
const PODS_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows the node until the user quits; prints one table if stdout is not a terminal. The source is the agent at the
/// configured address or, if that is an address of this host that serves no snapshot, own readings.
pub fn top(config: &TopConfig) -> anyhow::Result<()> {
    let read_every = if stdout().is_terminal() { TICK_INTERVAL } else { FETCH_INTERVAL };
    let (agent, mut own) = (reachable(config.listen.listen_address), None);
    let next = async || -> anyhow::Result<Described> {
        let reason = match fetch(agent).await {
            Ok(snapshot) => {
                own = None;
                return Ok((format!("agent {} at {agent}", snapshot.version), snapshot));
            }
            Err(reason) if is_own(agent) => reason,
            Err(error) => bail!("{error:#}: run top on that host, or `kubectl psi top NODE`"),
        };
        let own = match &mut own {
            Some(own) => own,
            none => none.insert(OwnReading::start(config, read_every).await?),
        };
        Ok((format!("read from the kernel: {reason:#}"), own.next().await?))
    };
    block_on(show(config.color.color, next))
}

/// Samples and scores as in the agent, without serving and publishing.
struct OwnReading {
    identity: NodeIdentity,
    sampler: Sampler,
    assessor: Assessor,
}

impl OwnReading {
    async fn start(config: &TopConfig, read_every: Duration) -> anyhow::Result<Self> {
        let TopConfig { source, score, .. } = config;
        let host = Host::open(source)?;
        let mut pods = follow(source, connect(source).await?, &Arc::new(OwnMetrics::default()))?;
        // Without the list of pods, no container is in scope.
        if let PodSource::Cluster(node_name) = source.pods() {
            let listed = pods.wait_for(|pods| pods.as_ref().is_some_and(|pods| pods.is_listed()));
            if timeout(PODS_TIMEOUT, listed).await.is_err() {
                bail!(
                    "the API server did not list the pods of node {node_name} within {} s: run \
                     `psi-agent check`, or set --pods-file",
                    PODS_TIMEOUT.as_secs()
                );
            }
        }
        let sampler = Sampler::start(host.into_collector(source, None), pods, read_every)
            .context("cannot start the sampling thread")?;
        let identity = node_identity(source, score);
        let assessor = Assessor::new(score.score_resources.clone(), score.levels, Duration::MAX);
        Ok(Self { identity, sampler, assessor })
    }

    /// The snapshot at the next tick.
    async fn next(&mut self) -> anyhow::Result<Snapshot> {
        let tick = self.sampler.next_tick().await?;
        let assessment = tick.window.map(|_| self.assessor.advance(&tick));
        let sample = self.sampler.scrape(Detail::Everything).await?;
        Ok(snapshot(&self.identity, &sample, assessment.as_ref(), None))
    }
}
