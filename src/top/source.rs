//! Who tells what there is to see: an agent that runs here, or else this process reads the kernel
//! itself, as an agent does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use super::client::{ask, reachable};
use super::table::Shown;
use super::view::View;
use crate::config::{Config, PodSource};
use crate::health::Health;
use crate::host::Host;
use crate::pod_source;
use crate::sample::Detail;
use crate::sampler::{Pods, Sampler};
use crate::score::Scorer;
use crate::snapshot::Snapshot;

/// Between two looks at an agent: rates over less tell little.
pub(super) const ASK_INTERVAL: Duration = Duration::from_secs(2);

/// How long the API server may take to list the pods.
const PODS_TIMEOUT: Duration = Duration::from_secs(10);

/// Where looks come from.
pub(super) struct Source {
    config: Config,
    agent: SocketAddr,
    read_every: Duration,
    own: Option<OwnReading>,
    before: Option<View>,
}

impl Source {
    /// An agent where the configuration has it listen, or else own readings at this interval.
    pub(super) fn new(config: &Config, read_every: Duration) -> Self {
        let agent = reachable(config.listen_address);
        Self { config: config.clone(), agent, read_every, own: None, before: None }
    }

    /// What there is to see now: of an agent at once, of the kernel when it is time to read it.
    pub(super) async fn look(&mut self) -> anyhow::Result<Shown> {
        let (source, mut view) = if let Some(view) = ask(self.agent).await? {
            self.own = None;
            (format!("agent {} at {}", view.version, self.agent), view)
        } else {
            let source = format!("read from the kernel: no agent at {}", self.agent);
            (source, self.read().await?)
        };
        if let Some(before) = &self.before {
            view.use_since(before);
        }
        self.before = Some(view.clone());
        Ok(Shown { source, view, trouble: None })
    }

    /// Waits until another look may tell something else.
    pub(super) async fn pause(&self) {
        // Own readings have their own clock.
        if self.own.is_none() {
            tokio::time::sleep(ASK_INTERVAL).await;
        }
    }

    async fn read(&mut self) -> anyhow::Result<View> {
        let mut own = match self.own.take() {
            Some(own) => own,
            None => OwnReading::start(&self.config, self.read_every).await?,
        };
        let view = own.next().await?;
        self.own = Some(own);
        Ok(view)
    }
}

/// What an agent does, without serving and publishing.
struct OwnReading {
    sampler: Sampler,
    scorer: Scorer,
}

impl OwnReading {
    async fn start(config: &Config, read_every: Duration) -> anyhow::Result<Self> {
        let host = Host::open(config)?;
        let health = Arc::new(Health::new().context("cannot register metrics")?);
        let node = pod_source::connect(&config.pods).await?;
        let mut pods = pod_source::follow(&config.pods, node, &health)?;
        await_list(&config.pods, &mut pods).await?;
        let sampler = Sampler::start(host.into_collector(config), pods, read_every)
            .context("cannot start the sampling thread")?;
        Ok(Self { sampler, scorer: Scorer::new(config.counted.clone()) })
    }

    async fn next(&mut self) -> anyhow::Result<View> {
        let tick = self.sampler.next_tick().await?;
        let moment = tick.sample.moment;
        let score = tick.rates.as_ref().map(|rates| self.scorer.advance(moment, rates));
        let shown = self.sampler.scrape(Detail::Everything).await?;
        // By way of the JSON, so that both sources are looked at with the same eyes.
        let snapshot = Snapshot::new(&shown.sample, shown.rates.as_deref(), score.as_ref(), None);
        let json = serde_json::to_vec(&snapshot).context("cannot write the snapshot")?;
        View::parse(&json).context("cannot read the snapshot")
    }
}

/// Without the list a pod's cgroup is nobody's, and there would be nothing to see.
async fn await_list(source: &PodSource, pods: &mut Pods) -> anyhow::Result<()> {
    let listed = pods.wait_for(|pods| pods.as_ref().is_none_or(|pods| pods.is_listed()));
    match tokio::time::timeout(PODS_TIMEOUT, listed).await {
        // Where nobody tells of pods, whoever could is gone at once.
        Ok(Ok(_) | Err(_)) => Ok(()),
        Err(_) => {
            let PodSource::Cluster(cluster) = source else { return Ok(()) };
            bail!(
                "the API server did not list the pods of node {} within {} s: `psi-agent check` \
                 says why, or name a --pods-file",
                cluster.node_name,
                PODS_TIMEOUT.as_secs()
            )
        }
    }
}
