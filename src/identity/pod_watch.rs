//! The pods of one node, watched at the API server. A slim type of our own is asked for, since a
//! full pod takes twice the agent's memory and a metadata-only watch has no container ids.

use std::borrow::Cow;

use futures_util::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Config};
use kube::{Client, Resource};
use serde::Deserialize;

use super::pod::{Metadata, Pod, Spec, Status};
use super::pod_index::PodIndex;

/// A pod as it is watched.
#[derive(Debug, Clone, Deserialize)]
struct WatchedPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<WatchedPod> for Pod {
    fn from(WatchedPod { metadata, spec, status }: WatchedPod) -> Self {
        let metadata = Metadata {
            uid: metadata.uid.unwrap_or_default(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        };
        Pod { metadata, spec, status }
    }
}

/// What the watch tells.
#[derive(Debug)]
pub enum Told<'a> {
    /// The pods as they are now.
    Pods(&'a PodIndex),
    /// The API server did not answer as it should; it is asked again, later each time.
    Trouble(&'a watcher::Error),
}

/// Keeps an index of a node's pods, and tells `tell` after every change. Ends only when the watch
/// does, which it never should.
pub async fn watch_pods(client: Client, node_name: &str, mut tell: impl FnMut(Told<'_>)) {
    let api: Api<WatchedPod> = Api::all(client);
    let config = Config::default().fields(&format!("spec.nodeName={node_name}"));
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut index = PodIndex::default();
    let mut listing = Vec::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listing.clear(),
            Ok(Some(Event::InitApply(pod))) => listing.push(Pod::from(pod)),
            Ok(Some(Event::InitDone)) => {
                index.replace(&std::mem::take(&mut listing));
                tell(Told::Pods(&index));
            }
            Ok(Some(Event::Apply(pod))) => {
                index.apply(&pod.into());
                tell(Told::Pods(&index));
            }
            Ok(Some(Event::Delete(pod))) => {
                index.delete(&pod.into());
                tell(Told::Pods(&index));
            }
            Ok(None) => return,
            Err(error) => tell(Told::Trouble(&error)),
        }
    }
}

/// The pods of a node at this moment.
///
/// # Errors
/// What the API server answered instead.
pub async fn list_pods(client: Client, node_name: &str) -> kube::Result<Vec<Pod>> {
    let api: Api<WatchedPod> = Api::all(client);
    let of_node = kube::api::ListParams::default().fields(&format!("spec.nodeName={node_name}"));
    Ok(api.list(&of_node).await?.items.into_iter().map(Pod::from).collect())
}
