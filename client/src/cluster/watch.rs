//! A list that is kept up to date by a watch.

#[derive(Debug)]
pub enum WatchEvent<T> {
    /// All objects, at the start and after each new list.
    Listed(Vec<T>),
    Changed(T),
    /// An object was deleted, or is no longer selected.
    Deleted(T),
    /// Why a request failed. It is repeated with backoff.
    Failed(String),
}
