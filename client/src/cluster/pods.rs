//! The pods of one node. They are parsed into a small type: whole pods would double the agent's
//! memory, and a metadata-only watch has no container IDs.

use std::error::Error as _;
use std::io;
use std::iter::{once, successors};
use std::pin::Pin;
use std::time::Duration;

use futures_util::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use kube::Client;
use kube::api::{ListParams, Request, WatchEvent as KubeEvent, WatchParams};
use kube::runtime::WatchStreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Sleep, sleep, timeout};

use super::call::{CallError, LONGEST_OBJECT};
use super::client::OwnNode;
use super::streamed_list::{begin, streamed_list};
use super::watch::WatchEvent;
use crate::json::decode;
use crate::pod::{Metadata, Pod};

const PODS: &str = "/api/v1/pods";

/// Seconds after which the API server ends a watch. A connection whose other end is gone is silent.
const WATCH_S: u32 = 60;

/// Time without an event after which a watch is over.
const SILENCE: Duration = Duration::from_secs(75);

/// A watch that a proxy cuts lasts longer than this: its time limit is one of silence.
const SHORTEST: Duration = Duration::from_secs(5);

/// Bytes of a line that are read at once.
const CHUNK: u64 = 64 * 1024;

const TOO_LONG: &str = "a pod of more than 4 MiB";

/// Status code if events since the version are no longer available.
const GONE: u16 = 410;

#[derive(Default, Deserialize)]
struct WithMetadata {
    metadata: Metadata,
}

impl OwnNode {
    /// Watches the Node's pods, except those that have ended. The stream never ends by itself. Of a
    /// pod that cannot be decoded, the reason is passed to `on_skipped`; others are not affected.
    pub fn watch_pods<S: FnMut(String) + Send>(
        &self,
        on_skipped: S,
    ) -> impl Stream<Item = WatchEvent<Pod>> + use<S> {
        let events = stream::unfold(PodWatch::new(self, on_skipped), |mut watch| async move {
            let event = watch.next().await;
            Some((event, watch))
        });
        let failed = |error: kube::Error| WatchEvent::Failed(CallError::from(error).to_string());
        events.default_backoff().map(move |event| event.unwrap_or_else(failed))
    }

    /// Lists the Node's pods. Of a pod that cannot be decoded, the reason is passed to `on_skipped`.
    pub async fn list_pods(
        &self,
        on_skipped: impl FnMut(String) + Send,
    ) -> Result<Vec<Pod>, CallError> {
        Ok(PodWatch::new(self, on_skipped).list().await?)
    }
}

type Events = Pin<Box<dyn AsyncBufRead + Send>>;

/// A list that is kept up to date by a watch, one pod in memory at a time. The API server serves both
/// from its cache, and finds the pods of the list by an index. A list without a version, or in pages,
/// can read all pods of the cluster from etcd, and a streaming list reads all that are in the cache.
struct PodWatch<S> {
    client: Client,
    selector: String,
    on_skipped: S,
    /// The version that the next watch begins at; `None` if a list is needed.
    version: Option<String>,
    events: Option<Events>,
    /// Is over when the watch has lasted for longer than [`SHORTEST`].
    lasts: Pin<Box<Sleep>>,
    /// Whether an event was too long. It may have been the end of a pod, so a list follows this watch.
    has_missed: bool,
}

impl<S: FnMut(String) + Send> PodWatch<S> {
    fn new(node: &OwnNode, on_skipped: S) -> Self {
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", node.name);
        let client = node.api.client.clone();
        let lasts = Box::pin(sleep(SHORTEST));
        Self { client, selector, on_skipped, version: None, events: None, lasts, has_missed: false }
    }

    /// After an error, the next watch begins at the same version, unless the events since then are
    /// gone.
    async fn next(&mut self) -> kube::Result<WatchEvent<Pod>> {
        let event = self.try_next().await;
        if let Err(error) = &event {
            self.end_watch();
            if matches!(error, kube::Error::Api(status) if status.code == GONE) {
                self.version = None;
            }
        }
        event
    }

    fn end_watch(&mut self) {
        self.events = None;
        if std::mem::take(&mut self.has_missed) {
            self.version = None;
        }
    }

    async fn try_next(&mut self) -> kube::Result<WatchEvent<Pod>> {
        loop {
            let Some(version) = &self.version else {
                return self.list().await.map(WatchEvent::Listed);
            };
            let Some(events) = &mut self.events else {
                let params = WatchParams::default().fields(&self.selector).timeout(WATCH_S);
                let request = Request::new(PODS).watch(&params, version);
                let request = request.map_err(kube::Error::BuildRequest)?;
                self.events = Some(Box::pin(begin(&self.client, request).await?));
                self.lasts = Box::pin(sleep(SHORTEST));
                return Ok(WatchEvent::Following);
            };
            let line = timeout(SILENCE, next_line(events)).await.unwrap_or(Ok(None));
            let mut has_lasted = || self.lasts.as_mut().now_or_never().is_some();
            let line = match line {
                Err(error) if was_cut(&error) && has_lasted() => None,
                line => line.map_err(kube::Error::ReadEvents)?,
            };
            if line.as_ref().is_some_and(|line| line.len() > LONGEST_OBJECT) {
                (self.on_skipped)(TOO_LONG.to_owned());
                self.has_missed = true;
                continue;
            }
            let event = line.as_deref().map(decode::<KubeEvent<&RawValue>>).transpose();
            match event.map_err(kube::Error::SerdeError)? {
                Some(KubeEvent::Added(json) | KubeEvent::Modified(json)) => {
                    if let Some(pod) = self.decode(json.get().as_bytes()) {
                        self.version.clone_from(&pod.metadata.resource_version);
                        return Ok(WatchEvent::Changed(pod));
                    }
                }
                Some(KubeEvent::Deleted(json)) => {
                    if let Ok(WithMetadata { metadata }) = decode(json.get().as_bytes()) {
                        self.version.clone_from(&metadata.resource_version);
                        return Ok(WatchEvent::Deleted(Pod { metadata, ..Pod::default() }));
                    }
                }
                Some(KubeEvent::Bookmark(bookmark)) => {
                    self.version = Some(bookmark.metadata.resource_version);
                }
                Some(KubeEvent::Error(status)) => return Err(kube::Error::Api(status)),
                // The time limit of the watch was reached, or a server ends each at once.
                None => {
                    self.end_watch();
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Lists the pods as they are in the API server's cache.
    async fn list(&mut self) -> kube::Result<Vec<Pod>> {
        let params = ListParams::default().fields(&self.selector).match_any();
        let client = self.client.clone();
        let mut pods = Vec::new();
        let mut on_item = |item: &[u8]| pods.extend(self.decode(item));
        let rest = streamed_list(&client, PODS, &params, &mut on_item);
        let rest = rest.await?;
        let list: WithMetadata = decode(&rest).map_err(kube::Error::SerdeError)?;
        self.version = list.metadata.resource_version;
        Ok(pods)
    }

    fn decode(&mut self, json: &[u8]) -> Option<Pod> {
        let decoded = decode(json).map_err(|error| {
            let WithMetadata { metadata } = decode(json).unwrap_or_default();
            let Metadata { namespace, name, .. } = metadata;
            (self.on_skipped)(if json.len() < LONGEST_OBJECT {
                format!("pod {namespace}/{name}: {error}")
            } else {
                TOO_LONG.to_owned()
            });
        });
        decoded.ok()
    }
}

/// Whether the connection ended within the answer, as a proxy with a shorter time limit ends it.
fn was_cut(error: &io::Error) -> bool {
    let causes = successors(error.source(), |&cause| cause.source());
    let mut all = once(error).chain(causes.filter_map(|cause| cause.downcast_ref()));
    all.any(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

/// The next line; `None` at the end. Of one that is too long, little more is kept than shows that.
async fn next_line(events: &mut Events) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.truncate(LONGEST_OBJECT + 1);
        if events.as_mut().take(CHUNK).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(line))
}
