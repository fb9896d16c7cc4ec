//! Nodes of a cluster, watched at the API server. Only their metadata is asked for: with its images
//! and its status, a Node would be twenty times as much.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};

/// A Node's name, and its annotations, all of them.
pub type Annotated = (String, BTreeMap<String, String>);

/// What the watch tells.
#[derive(Debug)]
pub enum Told<'a> {
    /// All Nodes that there are.
    Listed(Vec<Annotated>),
    /// One is new or has changed.
    Changed(Annotated),
    /// One is gone, or is no longer selected.
    Gone(String),
    /// The API server did not answer as it should; it is asked again, later each time.
    Trouble(&'a watcher::Error),
}

/// The API server takes the selector for none: asking again helps nobody.
#[derive(Debug, thiserror::Error)]
#[error("the API server does not understand the --node-selector {selector:?}: {message}")]
pub struct NotASelector {
    selector: String,
    message: String,
}

/// Tells `tell` of the Nodes with these labels, and of every change. Ends only when the selector is
/// none.
///
/// # Errors
/// [`NotASelector`].
pub async fn watch_nodes(
    client: Client,
    selector: &str,
    mut tell: impl FnMut(Told<'_>),
) -> Result<(), NotASelector> {
    let api: Api<PartialObjectMeta<Node>> = Api::all(client);
    let config = watcher::Config::default().labels(selector);
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut listing = Vec::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listing.clear(),
            Ok(Some(Event::InitApply(node))) => listing.push(annotated(node)),
            Ok(Some(Event::InitDone)) => tell(Told::Listed(std::mem::take(&mut listing))),
            Ok(Some(Event::Apply(node))) => tell(Told::Changed(annotated(node))),
            Ok(Some(Event::Delete(node))) => tell(Told::Gone(node.name_any())),
            Ok(None) => return Ok(()),
            Err(error) => match refused_selector(&error) {
                Some(message) => {
                    return Err(NotASelector { selector: selector.to_owned(), message });
                }
                None => tell(Told::Trouble(&error)),
            },
        }
    }
}

fn annotated(mut node: PartialObjectMeta<Node>) -> Annotated {
    (node.name_any(), node.metadata.annotations.take().unwrap_or_default())
}

/// What the API server says of a list that it cannot make anything of.
fn refused_selector(error: &watcher::Error) -> Option<String> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 400 => {
            Some(status.message.clone())
        }
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}
