//! The pods of one node. They are read into a slim type, since full pods double the agent's memory
//! and a metadata-only watch has no container ids.

use std::borrow::Cow;

use futures_util::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::Config;
use serde::Deserialize;

use super::client::OwnNode;
use super::watch::{WatchEvent, watch};
use crate::identity::pod::{Metadata, Pod, Spec, Status};

/// A [`Pod`] with the metadata that a watch needs.
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

impl OwnNode {
    /// The Node's pods as they change. The stream never ends by itself.
    pub fn watch_pods(&self) -> impl Stream<Item = WatchEvent<Pod>> + use<> {
        let config = Config::default().fields(&self.field_selector());
        watch(Api::<WatchedPod>::all(self.api.client.clone()), config)
            .map(|event| event.map(Pod::from))
    }

    pub async fn list_pods(&self) -> kube::Result<Vec<Pod>> {
        let api = Api::<WatchedPod>::all(self.api.client.clone());
        let pods = api.list(&ListParams::default().fields(&self.field_selector())).await?;
        Ok(pods.items.into_iter().map(Pod::from).collect())
    }

    fn field_selector(&self) -> String {
        format!("spec.nodeName={}", self.name)
    }
}
