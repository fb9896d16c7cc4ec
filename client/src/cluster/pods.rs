//! The pods of one node. They are parsed into a small type: whole pods would double the agent's
//! memory, and a metadata-only watch has no container IDs.

use std::io::ErrorKind;
use std::pin::pin;

use futures_util::io::{AsyncBufRead, AsyncBufReadExt};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use kube::Client;
use kube::api::{ListParams, Request, WatchEvent as KubeEvent, WatchParams};
use kube::core::watch::Bookmark;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::Error;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::call::LONGEST_OBJECT;
use super::client::OwnNode;
use super::list_items::ListItems;
use super::watch::WatchEvent;
use crate::pod::{Metadata, Pod};

const PODS: &str = "/api/v1/pods";

/// Annotation of the bookmark after the pods that exist at the start of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Status code if events since the version are no longer available.
const GONE: u16 = 410;

/// A pod that could not be decoded. It is skipped: the other pods are not affected.
#[derive(Debug, thiserror::Error)]
#[error("pod {namespace}/{name}: {source}")]
pub struct UndecodablePod {
    namespace: String,
    name: String,
    source: serde_json::Error,
}

#[derive(Default, Deserialize)]
struct WithMetadata {
    metadata: Metadata,
}

fn decode(json: &[u8]) -> Result<Pod, UndecodablePod> {
    serde_json::from_slice(json).map_err(|source| {
        let WithMetadata { metadata } = serde_json::from_slice(json).unwrap_or_default();
        UndecodablePod { namespace: metadata.namespace, name: metadata.name, source }
    })
}

impl OwnNode {
    /// Watches the Node's pods, except those that have ended. The stream never ends by itself. Pods
    /// that cannot be decoded are passed to `on_skipped`.
    pub fn watch_pods<S: FnMut(UndecodablePod)>(
        &self,
        on_skipped: S,
    ) -> impl Stream<Item = WatchEvent<Pod>> + use<S> {
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", self.name);
        let watch = PodWatch {
            client: self.api.client.clone(),
            selector,
            on_skipped,
            version: String::new(),
            initial: None,
            events: None,
        };
        let events = stream::unfold(watch, |mut watch| async move {
            let event = watch.next().await;
            Some((event, watch))
        });
        events.default_backoff().map(|event| event.unwrap_or_else(WatchEvent::Failed))
    }

    /// Lists the Node's pods. Those that cannot be decoded are passed to `on_skipped`.
    pub async fn list_pods(
        &self,
        on_skipped: impl FnMut(UndecodablePod),
    ) -> Result<Vec<Pod>, Error> {
        let mut events = pin!(self.watch_pods(on_skipped));
        while let Some(event) = events.next().await {
            match event {
                WatchEvent::Listed(pods) => return Ok(pods),
                WatchEvent::Failed(error) => return Err(error),
                // These events do not come before the list.
                WatchEvent::Changed(_) | WatchEvent::Deleted(_) => {}
            }
        }
        Ok(Vec::new())
    }
}

type Events = BoxStream<'static, kube::Result<KubeEvent<Box<RawValue>>>>;

/// A list that is kept up to date by a watch, one pod in memory at a time. The API server serves both
/// from its cache. A list without a version, or in pages, can read all pods of the cluster from etcd.
struct PodWatch<S> {
    client: Client,
    selector: String,
    on_skipped: S,
    /// The version of the list that the next watch begins at; empty if a list is needed.
    version: String,
    /// The pods of a streaming list, until it is complete.
    initial: Option<Vec<Pod>>,
    events: Option<Events>,
}

impl<S: FnMut(UndecodablePod)> PodWatch<S> {
    async fn next(&mut self) -> Result<WatchEvent<Pod>, Error> {
        loop {
            let Some(events) = &mut self.events else {
                if let Some(pods) = self.start().await? {
                    return Ok(WatchEvent::Listed(pods));
                }
                continue;
            };
            let event = match events.next().await {
                // The server streams no lists, for example because its etcd reports no progress.
                Some(Ok(KubeEvent::Error(_))) if self.initial.is_some() => {
                    return self.list().await.map(WatchEvent::Listed);
                }
                Some(Ok(KubeEvent::Error(status))) => Err(Error::WatchError(status)),
                Some(event) => event.map_err(Error::WatchFailed),
                None if self.initial.is_some() => {
                    Err(Error::WatchFailed(unreadable(ErrorKind::UnexpectedEof)))
                }
                // The time limit of the watch was reached.
                None => {
                    self.events = None;
                    continue;
                }
            };
            let event = event.map_err(|error| self.failed(error))?;
            if let Some(event) = self.follow(event) {
                return Ok(event);
            }
        }
    }

    /// Starts a watch, with a streaming list if one is needed. Returns the pods if the server serves
    /// no streaming lists.
    async fn start(&mut self) -> Result<Option<Vec<Pod>>, Error> {
        let needs_list = self.version.is_empty();
        let version = if needs_list { "0" } else { &*self.version };
        let params = WatchParams { send_initial_events: needs_list, ..WatchParams::default() };
        let request = Request::new(PODS).watch(&params.fields(&self.selector), version);
        let request =
            request.map_err(|error| Error::WatchStartFailed(kube::Error::BuildRequest(error)))?;
        match self.client.request_events(request).await {
            Ok(events) => {
                self.initial = needs_list.then(Vec::new);
                self.events = Some(events.boxed());
                Ok(None)
            }
            Err(kube::Error::Api(_)) if needs_list => self.list().await.map(Some),
            Err(error) => Err(self.failed(Error::WatchStartFailed(error))),
        }
    }

    async fn list(&mut self) -> Result<Vec<Pod>, Error> {
        (self.initial, self.events) = (None, None);
        self.try_list().await.map_err(Error::InitialListFailed)
    }

    /// Lists the pods as they are in the API server's cache.
    async fn try_list(&mut self) -> kube::Result<Vec<Pod>> {
        let params = ListParams::default().fields(&self.selector).match_any();
        let request = Request::new(PODS).list(&params).map_err(kube::Error::BuildRequest)?;
        let mut body = pin!(self.client.request_stream(request).await?);
        let (mut items, mut pods) = (ListItems::default(), Vec::new());
        loop {
            let bytes = body.fill_buf().await.map_err(kube::Error::ReadEvents)?;
            if bytes.is_empty() {
                break;
            }
            items.push(bytes, |item| pods.extend(self.decode(item)));
            let length = bytes.len();
            body.as_mut().consume(length);
            if items.buffered() > LONGEST_OBJECT {
                return Err(unreadable(ErrorKind::FileTooLarge));
            }
        }
        let list: WithMetadata =
            serde_json::from_slice(items.rest()).map_err(kube::Error::SerdeError)?;
        self.version = list.metadata.resource_version.unwrap_or_default();
        Ok(pods)
    }

    /// The event to report, if any: none before a streaming list is complete.
    fn follow(&mut self, event: KubeEvent<Box<RawValue>>) -> Option<WatchEvent<Pod>> {
        match event {
            KubeEvent::Added(json) | KubeEvent::Modified(json) => {
                let pod = self.decode(json.get().as_bytes())?;
                if let Some(pods) = &mut self.initial {
                    pods.push(pod);
                    return None;
                }
                self.version = pod.metadata.resource_version.clone().unwrap_or_default();
                Some(WatchEvent::Changed(pod))
            }
            KubeEvent::Deleted(json) => {
                let WithMetadata { metadata } = serde_json::from_str(json.get()).ok()?;
                if let Some(pods) = &mut self.initial {
                    pods.retain(|pod| pod.metadata.uid != metadata.uid);
                    return None;
                }
                self.version = metadata.resource_version.clone().unwrap_or_default();
                Some(WatchEvent::Deleted(Pod { metadata, ..Pod::default() }))
            }
            KubeEvent::Bookmark(Bookmark { metadata, .. }) => {
                let is_end = metadata.annotations.contains_key(INITIAL_EVENTS_END);
                if self.initial.is_none() || is_end {
                    self.version = metadata.resource_version;
                }
                Some(WatchEvent::Listed(self.initial.take_if(|_| is_end)?))
            }
            KubeEvent::Error(_) => None,
        }
    }

    fn decode(&mut self, json: &[u8]) -> Option<Pod> {
        decode(json).map_err(&mut self.on_skipped).ok()
    }

    /// Ends the watch after an error. The next one begins at the same version, unless the events
    /// since then are gone.
    fn failed(&mut self, error: Error) -> Error {
        self.events = None;
        if let Error::WatchError(status) | Error::WatchStartFailed(kube::Error::Api(status)) =
            &error
            && status.code == GONE
        {
            self.version.clear();
        }
        error
    }
}

fn unreadable(kind: ErrorKind) -> kube::Error {
    kube::Error::ReadEvents(kind.into())
}
