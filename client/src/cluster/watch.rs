//! A list that is kept up to date by a watch.

use kube::runtime::watcher::Error;

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
