//! The pods of this node: a watch of the API server, a file that is read when it changes, or none.
//! After a failure the last list stays in use.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::watch;

use crate::client::cluster::{OwnNode, WatchEvent};
use crate::client::json::decode;
use crate::client::pod::Pod;
use crate::clock;
use crate::config::{PodSource, SourceFlags};
use crate::identity::pod_index::PodIndex;
use crate::own_metrics::OwnMetrics;
use crate::sampler::Pods;

/// Interval of the checks whether the file of pods has changed.
const INTERVAL: Duration = Duration::from_secs(1);

type Sender = watch::Sender<Option<Arc<PodIndex>>>;

/// The client of the API server; `None` unless pods come from a cluster. Sends no request.
pub async fn connect(source: &SourceFlags) -> anyhow::Result<Option<OwnNode>> {
    let PodSource::Cluster(name) = source.pods() else { return Ok(None) };
    OwnNode::connect(source.api.kubeconfig.as_ref(), name).await.map(Some)
}

/// Starts to follow the pods, those of `node` where the source is a cluster. Doesn't wait for the
/// API server, but fails if the file of pods can't be read.
pub fn follow(
    source: &SourceFlags,
    node: Option<OwnNode>,
    metrics: &Arc<OwnMetrics>,
) -> anyhow::Result<Pods> {
    let (sender, pods) = watch::channel(None);
    let metrics = Arc::clone(metrics);
    let mut index = PodIndex::new(source.api.prefix.clone());
    if let Some(node) = node {
        sender.send_replace(Some(Arc::default()));
        tracing::info!(node = %node.name, "Waiting for the API server to list the pods");
        tokio::spawn(apply(node.pods().events(), index, sender, metrics));
    } else if let PodSource::File(path) = source.pods() {
        let modified = modified(&path);
        index.replace(&read_file(&path)?);
        sender.send_replace(Some(Arc::new(index.clone())));
        tokio::spawn(apply(watch_file(path, modified), index, sender, metrics));
    }
    Ok(pods)
}

/// Applies the events to the index, and sends it after each.
async fn apply<E: Display>(
    events: impl Stream<Item = WatchEvent<Pod, E>>,
    mut index: PodIndex,
    sender: Sender,
    metrics: Arc<OwnMetrics>,
) {
    let mut events = std::pin::pin!(events);
    loop {
        let event = tokio::select! {
            // No receiver is left.
            () = sender.closed() => return,
            event = events.next() => event,
        };
        let Some(event) = event else { return };
        let was_listed = index.is_listed();
        match event {
            WatchEvent::Listed(pods) => index.replace(&pods),
            WatchEvent::Changed(pod) => index.apply(&pod),
            WatchEvent::Deleted(pod) => index.delete(&pod.uid),
            WatchEvent::Following => {}
            WatchEvent::Skipped(reason) => {
                metrics.pod_skipped(&reason);
                continue;
            }
            WatchEvent::Failed(error) => {
                let moment = clock::now();
                metrics.pods_failed(&error, moment.unix_ms);
                index.failing_since.get_or_insert(moment.at);
                sender.send_replace(Some(Arc::new(index.clone())));
                continue;
            }
        }
        index.failing_since = None;
        if !was_listed && index.is_listed() {
            tracing::info!(pods = index.count(), "The API server listed the pods");
        }
        metrics.pods_received();
        sender.send_replace(Some(Arc::new(index.clone())));
    }
}

/// The pods now; `None` where there is no source of pods.
pub async fn list(
    source: &SourceFlags,
    node: Option<&OwnNode>,
) -> anyhow::Result<Option<PodIndex>> {
    let pods = match (source.pods(), node) {
        (_, Some(node)) => {
            let (pods, skipped) = node.pods().list().await.context("cannot list the pods")?;
            for error in skipped {
                tracing::warn!(%error, "Cannot decode a pod, which is skipped");
            }
            Some(pods)
        }
        (PodSource::File(path), None) => Some(read_file(&path)?),
        (PodSource::Standalone | PodSource::Cluster(_), None) => None,
    };
    Ok(pods.map(|pods| PodIndex::of(source.api.prefix.clone(), &pods)))
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

/// The pods in a file in the format of `kubectl get pods -o json`. For tests and labs.
fn read_file(path: &Path) -> anyhow::Result<Vec<Pod>> {
    let shown = path.display();
    let text = std::fs::read(path).with_context(|| format!("cannot read the pods in {shown}"))?;
    let list: PodList = decode(&text)
        .with_context(|| format!("{shown} is not in the format of `kubectl get pods -o json`"))?;
    Ok(list.items)
}

/// When the file was last written; `None` where that is unknown.
fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// Lists the pods again when the file was written after `read`, and each second while that fails.
fn watch_file(
    path: PathBuf,
    read: Option<SystemTime>,
) -> impl Stream<Item = WatchEvent<Pod, String>> {
    stream::unfold((path, read), async |(path, read)| {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let written = modified(&path);
            if written.is_none() || written != read {
                return Some(match read_file(&path) {
                    Ok(pods) => (WatchEvent::Listed(pods), (path, written)),
                    Err(error) => (WatchEvent::Failed(format!("{error:#}")), (path, None)),
                });
            }
        }
    })
}
