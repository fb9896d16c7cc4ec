//! Who tells of this node's pods, at work: the API server's watch, a file that is read again, or
//! nobody. Whatever goes wrong here is counted and said, and what was told before stays true.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;

use crate::clock;
use crate::cluster::{connect, event_loop};
use crate::config::PodSource;
use crate::health::Health;
use crate::identity::pod_index::PodIndex;
use crate::identity::pod_watch::{Told, list_pods, watch_pods};
use crate::identity::pods_file::{PodsFile, PodsFileError};
use crate::sampler::Pods;

/// How soon a changed file of pods is seen.
const PODS_FILE_INTERVAL: Duration = Duration::from_secs(1);

type Teller = watch::Sender<Option<Arc<PodIndex>>>;

/// Starts to follow the pods. Nobody waits for the API server: until it answers, the pods' series
/// wait for their labels and all others are served.
///
/// # Errors
/// A file or credentials that do not read.
pub async fn follow(source: &PodSource, health: &Arc<Health>) -> anyhow::Result<Pods> {
    let (teller, pods) = watch::channel(None);
    match source {
        PodSource::Nobody => {}
        PodSource::File(path) => {
            let mut file = PodsFile::new(path);
            let mut index = PodIndex::default();
            take(&mut file, &mut index, &teller)?;
            tokio::spawn(follow_file(file, index, teller, Arc::clone(health)));
        }
        PodSource::Cluster(cluster) => {
            let client = connect(cluster).await?;
            teller.send_replace(Some(Arc::default()));
            tracing::info!(node = %cluster.node_name, "Waiting for the API server to list the pods");
            let (node_name, health) = (cluster.node_name.clone(), Arc::clone(health));
            tokio::spawn(async move {
                watch_pods(client, &node_name, |told| hear(told, &teller, &health)).await;
            });
        }
    }
    Ok(pods)
}

fn hear(told: Told<'_>, teller: &Teller, health: &Health) {
    match told {
        Told::Pods(index) => {
            let listed_before = teller.borrow().as_ref().is_some_and(|before| before.is_listed());
            if !listed_before {
                tracing::info!(pods = index.len(), "The API server listed the pods");
            }
            health.pods_received();
            teller.send_replace(Some(Arc::new(index.clone())));
        }
        Told::Trouble(error) => health.pods_failed(error, clock::now().unix_ms),
    }
}

async fn follow_file(mut file: PodsFile, mut index: PodIndex, teller: Teller, health: Arc<Health>) {
    loop {
        tokio::time::sleep(PODS_FILE_INTERVAL).await;
        match take(&mut file, &mut index, &teller) {
            Ok(()) => health.pods_received(),
            Err(error) => health.pods_failed(&error, clock::now().unix_ms),
        }
    }
}

fn take(file: &mut PodsFile, index: &mut PodIndex, teller: &Teller) -> Result<(), PodsFileError> {
    if let Some(pods) = file.read_if_changed()? {
        index.replace(&pods);
        teller.send_replace(Some(Arc::new(index.clone())));
    }
    Ok(())
}

/// The pods at this moment; `None` where nobody tells of them.
///
/// # Errors
/// A file that does not read, or an API server that does not answer.
pub fn read_now(source: &PodSource) -> anyhow::Result<Option<PodIndex>> {
    match source {
        PodSource::Nobody => Ok(None),
        PodSource::File(path) => {
            Ok(PodsFile::new(path).read_if_changed()?.as_deref().map(PodIndex::of))
        }
        PodSource::Cluster(cluster) => {
            let pods = event_loop()?.block_on(async {
                let client = connect(cluster).await?;
                list_pods(client, &cluster.node_name).await.context("cannot list the pods")
            })?;
            Ok(Some(PodIndex::of(&pods)))
        }
    }
}
