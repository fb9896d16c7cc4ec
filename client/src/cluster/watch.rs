//! A list that is kept up to date by a watch.

use std::future::ready;

use futures_util::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Error, Event};

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

/// The events of a watcher. Each object is converted as it arrives, so that a list of thousands is in
/// memory in the converted form only. The stream never ends by itself.
pub(super) fn watch<K, T>(
    events: impl Stream<Item = Result<Event<K>, Error>>,
    mut convert: impl FnMut(K) -> T,
) -> impl Stream<Item = WatchEvent<T>> {
    let mut listed = Vec::new();
    events.default_backoff().filter_map(move |event| {
        ready(match event {
            Ok(Event::Init) => {
                listed.clear();
                None
            }
            Ok(Event::InitApply(object)) => {
                listed.push(convert(object));
                None
            }
            Ok(Event::InitDone) => Some(WatchEvent::Listed(std::mem::take(&mut listed))),
            Ok(Event::Apply(object)) => Some(WatchEvent::Changed(convert(object))),
            Ok(Event::Delete(object)) => Some(WatchEvent::Deleted(convert(object))),
            Err(error) => Some(WatchEvent::Failed(error)),
        })
    })
}
