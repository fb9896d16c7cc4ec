//! A list that is kept up to date by a watch.

use std::fmt::Debug;
use std::future::ready;

use futures_util::{Stream, StreamExt};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use serde::de::DeserializeOwned;

#[derive(Debug)]
pub enum WatchEvent<T> {
    /// All objects, at the start and after each new list.
    Listed(Vec<T>),
    Changed(T),
    /// An object was deleted, or is no longer selected.
    Deleted(T),
    /// A request failed; it is repeated with backoff.
    Failed(Error),
}

impl<T> WatchEvent<T> {
    pub(super) fn map<U>(self, mut change: impl FnMut(T) -> U) -> WatchEvent<U> {
        match self {
            Self::Listed(all) => WatchEvent::Listed(all.into_iter().map(change).collect()),
            Self::Changed(one) => WatchEvent::Changed(change(one)),
            Self::Deleted(one) => WatchEvent::Deleted(change(one)),
            Self::Failed(error) => WatchEvent::Failed(error),
        }
    }
}

/// The events of the objects that `config` selects. The stream never ends by itself.
pub(super) fn watch<K>(api: Api<K>, config: Config) -> impl Stream<Item = WatchEvent<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut listed = Vec::new();
    watcher(api, config).default_backoff().filter_map(move |event| {
        ready(match event {
            Ok(Event::Init) => {
                listed.clear();
                None
            }
            Ok(Event::InitApply(object)) => {
                listed.push(object);
                None
            }
            Ok(Event::InitDone) => Some(WatchEvent::Listed(std::mem::take(&mut listed))),
            Ok(Event::Apply(object)) => Some(WatchEvent::Changed(object)),
            Ok(Event::Delete(object)) => Some(WatchEvent::Deleted(object)),
            Err(error) => Some(WatchEvent::Failed(error)),
        })
    })
}
