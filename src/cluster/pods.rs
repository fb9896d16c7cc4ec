//! The pods of one node. They are read into a slim type, since full pods double the agent's memory
//! and a metadata-only watch has no container ids.

use futures_util::{Stream, StreamExt};
use kube::api::{Api, ApiResource, ListParams, Object};
use kube::runtime::watcher::Config;

use super::client::OwnNode;
use super::watch::{WatchEvent, watch};
use crate::identity::pod::{Metadata, Pod, Spec, Status};

/// A [`Pod`] with the metadata that a watch needs.
type WatchedPod = Object<Spec, Status>;

impl From<WatchedPod> for Pod {
    fn from(WatchedPod { metadata, spec, status, .. }: WatchedPod) -> Self {
        let metadata = Metadata {
            uid: metadata.uid.unwrap_or_default(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        };
        Pod { metadata, spec, status: status.unwrap_or_default() }
    }
}

impl OwnNode {
    /// The Node's pods as they change. The stream never ends by itself.
    pub fn watch_pods(&self) -> impl Stream<Item = WatchEvent<Pod>> + use<> {
        let config = Config::default().fields(&self.field_selector());
        watch(self.pods(), config).map(|event| event.map(Pod::from))
    }

    pub async fn list_pods(&self) -> kube::Result<Vec<Pod>> {
        let params = ListParams::default().fields(&self.field_selector());
        let pods = self.pods().list(&params).await?;
        Ok(pods.items.into_iter().map(Pod::from).collect())
    }

    fn pods(&self) -> Api<WatchedPod> {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        Api::all_with(self.api.client.clone(), &resource)
    }

    fn field_selector(&self) -> String {
        format!("spec.nodeName={}", self.name)
    }
}
