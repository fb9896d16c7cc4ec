//! The pods of one node. They are parsed into a small type: whole pods would double the agent's
//! memory, and a metadata-only watch has no container IDs.

use std::borrow::Cow;
use std::pin::pin;

use futures_util::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod as FullPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::{Config, Error, watcher};
use serde::Deserialize;

use super::client::OwnNode;
use super::watch::{WatchEvent, watch};
use crate::pod::{Metadata, Pod};

/// Pods per response. Each can have 1.5 MB, and a whole response is kept in memory.
const PAGE: u32 = 8;

/// A [`Pod`] with the metadata that a watch needs: its version, its name and its namespace.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Pod")]
struct WatchedPod {
    watched: ObjectMeta,
    pod: Pod,
}

impl From<Pod> for WatchedPod {
    fn from(mut pod: Pod) -> Self {
        let Metadata { name, namespace, resource_version, .. } = &mut pod.metadata;
        let watched = ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            resource_version: resource_version.take(),
            ..ObjectMeta::default()
        };
        Self { watched, pod }
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        FullPod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        FullPod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        FullPod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        FullPod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.watched
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.watched
    }
}

impl OwnNode {
    /// Watches the Node's pods, except those that have ended. The stream never ends by itself.
    pub fn watch_pods(&self) -> impl Stream<Item = WatchEvent<Pod>> + use<> {
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", self.name);
        let config = Config::default().fields(&selector).page_size(PAGE);
        let api = Api::<WatchedPod>::all(self.api.client.clone());
        watch(watcher(api, config), |watched| watched.pod)
    }

    pub async fn list_pods(&self) -> Result<Vec<Pod>, Error> {
        let mut events = pin!(self.watch_pods());
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
