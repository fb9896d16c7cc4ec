//! A list that is kept up to date by a watch.

#[derive(Debug)]
pub enum WatchEvent<T> {
    /// All objects, at the start and after each new list.
    Listed(Vec<T>),
    Changed(T),
    /// An object was deleted, or is no longer selected.
    Deleted(T),
    /// A watch has begun: what was applied so far is up to date.
    Following,
    /// Why a request failed. It is repeated with backoff.
    Failed(String),
}
