//! A list of objects that is kept up to date by a watch. Each object is decoded alone, as it arrives.

use std::collections::VecDeque;
use std::error::Error as _;
use std::io;
use std::iter::{once, successors};
use std::pin::Pin;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use futures_util::{Stream, stream};
use kube::Client;
use kube::api::{ListParams, Request, WatchEvent as KubeEvent, WatchParams};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Sleep, sleep, timeout};

use super::call::{CallError, LONGEST_OBJECT, unreachable};
use super::streamed_list::{begin, streamed_list};
use crate::json::decode;

/// Seconds after which the API server ends a watch. A connection whose other end is gone is silent.
const WATCH_S: u32 = 60;
/// Time without an event after which a watch is over.
const SILENCE: Duration = Duration::from_secs(75);
/// A watch works once it has brought an event or lasted for this long. One that a proxy cuts lasts longer: its time
/// limit is one of silence.
const WORKS_AFTER: Duration = Duration::from_secs(5);
/// Delay before the first request after a failure, and between two watches that work. It doubles with each further
/// failure. A random part, up to as much again, is added: all agents of a cluster fail together.
const SHORTEST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// Bytes of a line that are read at once.
const CHUNK: u64 = 64 * 1024;
const TOO_LONG: &str = "an object of more than 4 MiB";
/// Status code if events since the version are no longer available.
const GONE: u16 = 410;

#[derive(Debug)]
pub enum WatchEvent<T, E = CallError> {
    /// All objects, at the start and after each new list.
    Listed(Vec<T>),
    Changed(T),
    /// An object was deleted, or is no longer selected.
    Deleted(Identity),
    /// A watch works: what was applied so far is up to date.
    Following,
    /// Why an object cannot be decoded. Others are not affected.
    Skipped(String),
    /// Why a request failed. It is repeated.
    Failed(E),
}

/// Which object it is.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
struct Identified {
    metadata: Identity,
}

/// A watch of those objects of a path that `params` select. `read` decodes one.
pub struct Watch<R> {
    client: Client,
    path: &'static str,
    params: ListParams,
    /// Whether only the metadata of objects is requested.
    partial: bool,
    read: R,
    /// The version that the next watch begins at; `None` if a list is needed.
    version: Option<String>,
    current: Option<Current>,
    /// Time until the next request, and after further failures.
    delay: Duration,
    delays: ExponentialBackoff,
}

/// The watch that is open.
struct Current {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// The line that is being received.
    line: Vec<u8>,
    lasts: Pin<Box<Sleep>>,
    works: bool,
    /// Whether an event was too long. It may have been the end of an object, so a list follows this watch.
    has_missed: bool,
}

impl<T: Send, R: Fn(&[u8]) -> serde_json::Result<T> + Sync> Watch<R> {
    pub(super) fn new(
        client: &Client,
        path: &'static str,
        params: ListParams,
        partial: bool,
        read: R,
    ) -> Self {
        let (client, params, delay) = (client.clone(), params, Duration::ZERO);
        let (version, current) = (None, None);
        Self { client, path, params, partial, read, version, current, delay, delays: delays() }
    }

    /// The events, which never end.
    pub fn events(self) -> impl Stream<Item = WatchEvent<T>> {
        stream::unfold((self, VecDeque::new()), async |(mut watch, mut events)| {
            while events.is_empty() {
                if let Err(error) = watch.advance(&mut events).await {
                    watch.fail(&error);
                    events.push_back(WatchEvent::Failed(error));
                }
            }
            Some((events.pop_front()?, (watch, events)))
        })
    }

    /// Lists the objects. Returns also why others cannot be decoded.
    pub async fn list(&mut self) -> Result<(Vec<T>, Vec<String>), CallError> {
        let list = if self.partial { Request::list_metadata } else { Request::list };
        let request = list(&Request::new(self.path), &self.params);
        let read = |item: &[u8]| object(&self.read, item);
        let (objects, rest) = streamed_list(&self.client, request, read).await?;
        let Identified { metadata } = decode(&rest).map_err(unreachable)?;
        self.version = metadata.resource_version;
        Ok(objects)
    }

    /// Makes the next request, or waits for the next event.
    async fn advance(&mut self, events: &mut VecDeque<WatchEvent<T>>) -> Result<(), CallError> {
        if let Some(current) = &mut self.current {
            let Current { body, line, lasts, works, .. } = current;
            let received = tokio::select! {
                () = lasts, if !*works => {
                    events.extend(self.works());
                    return Ok(());
                }
                received = timeout(SILENCE, receive_line(body, line)) => received,
            };
            return match received {
                Ok(Ok(true)) => self.take_line(events),
                Ok(Err(error)) if !(*works && was_cut(&error)) => {
                    Err(kube::Error::ReadEvents(error).into())
                }
                // The time limit of the watch was reached, or that of a proxy.
                _ if *works => {
                    self.end_watch();
                    Ok(())
                }
                _ => Err(unreachable("it ends each watch at once")),
            };
        }
        sleep(std::mem::replace(&mut self.delay, SHORTEST_DELAY)).await;
        let Some(version) = self.version.clone() else {
            let (objects, skipped) = self.list().await?;
            events.extend(skipped.into_iter().map(WatchEvent::Skipped));
            events.push_back(WatchEvent::Listed(objects));
            // Without a version, the next request is a list again.
            let no_version = || unreachable("its list has no resourceVersion");
            self.delay = Duration::ZERO;
            return self.version.as_ref().map(drop).ok_or_else(no_version);
        };
        self.begin(&version).await
    }

    async fn begin(&mut self, version: &str) -> Result<(), CallError> {
        let mut params = WatchParams::default().timeout(WATCH_S);
        params.field_selector.clone_from(&self.params.field_selector);
        params.label_selector.clone_from(&self.params.label_selector);
        let watch = if self.partial { Request::watch_metadata } else { Request::watch };
        let request = watch(&Request::new(self.path), &params, version);
        let body = Box::pin(begin(&self.client, request).await?);
        let (lasts, line) = (Box::pin(sleep(WORKS_AFTER)), Vec::new());
        self.current = Some(Current { body, line, lasts, works: false, has_missed: false });
        Ok(())
    }

    /// Records that the current watch works. Returns the event of that, once.
    fn works(&mut self) -> Option<WatchEvent<T>> {
        let current = self.current.as_mut().filter(|current| !current.works)?;
        current.works = true;
        self.delays = delays();
        Some(WatchEvent::Following)
    }

    /// The next watch begins at the same version, unless the events since then are gone or were missed.
    fn end_watch(&mut self) {
        if self.current.take().is_some_and(|current| current.has_missed) {
            self.version = None;
        }
    }

    fn fail(&mut self, error: &CallError) {
        self.end_watch();
        self.delay = self.delays.next().unwrap_or(LONGEST_DELAY);
        if matches!(error, CallError::Refused { code: GONE, .. }) {
            self.version = None;
        }
    }

    fn take_line(&mut self, events: &mut VecDeque<WatchEvent<T>>) -> Result<(), CallError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let line = std::mem::take(&mut current.line);
        if line.len() > LONGEST_OBJECT {
            current.has_missed = true;
            events.push_back(WatchEvent::Skipped(TOO_LONG.to_owned()));
            return Ok(());
        }
        let version = match decode(&line).map_err(unreachable)? {
            KubeEvent::Added(json) | KubeEvent::Modified(json) => {
                let json: &RawValue = json;
                let json = json.get().as_bytes();
                let changed = object(&self.read, json);
                events.push_back(changed.map_or_else(WatchEvent::Skipped, WatchEvent::Changed));
                identity(json).resource_version
            }
            KubeEvent::Deleted(json) => {
                let identity = identity(json.get().as_bytes());
                let version = identity.resource_version.clone();
                events.push_back(WatchEvent::Deleted(identity));
                version
            }
            KubeEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
            KubeEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        events.extend(self.works());
        self.version = version.or(self.version.take());
        Ok(())
    }
}

/// Decodes an object; an error is its name and the reason.
fn object<T>(read: impl Fn(&[u8]) -> serde_json::Result<T>, json: &[u8]) -> Result<T, String> {
    read(json).map_err(|error| {
        if json.len() >= LONGEST_OBJECT {
            return TOO_LONG.to_owned();
        }
        let Identity { namespace, name, .. } = identity(json);
        // Nodes have no namespace.
        format!("{namespace}/{name}: {error}").trim_start_matches('/').to_owned()
    })
}

fn delays() -> ExponentialBackoff {
    let delays = ExponentialBuilder::new().with_min_delay(SHORTEST_DELAY);
    delays.with_max_delay(LONGEST_DELAY).without_max_times().with_jitter().build()
}

/// Empty for what has none.
fn identity(json: &[u8]) -> Identity {
    decode::<Identified>(json).unwrap_or_default().metadata
}

/// Whether the connection ended within the answer, as a proxy with a shorter time limit ends it.
fn was_cut(error: &io::Error) -> bool {
    let causes = successors(error.source(), |&cause| cause.source());
    let mut all = once(error).chain(causes.filter_map(|cause| cause.downcast_ref()));
    all.any(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

/// Receives the rest of a line. Returns `false` at the end. Of one that is too long, little more is kept than shows
/// that. What was received stays in `line` if the caller does not wait for the end.
async fn receive_line(
    body: &mut Pin<Box<dyn AsyncBufRead + Send>>,
    line: &mut Vec<u8>,
) -> io::Result<bool> {
    while !line.ends_with(b"\n") {
        line.truncate(LONGEST_OBJECT + 1);
        if body.as_mut().take(CHUNK).read_until(b'\n', line).await? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
