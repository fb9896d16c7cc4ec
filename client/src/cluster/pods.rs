//! The pods of one node. They are parsed into a small type: whole pods would double the agent's
//! memory, and a metadata-only watch has no container IDs.

use futures_util::Stream;
use kube::api::ListParams;

use super::call::CallError;
use super::client::OwnNode;
use super::watch::{Watch, WatchEvent};
use crate::json::decode;
use crate::pod::Pod;

const PODS: &str = "/api/v1/pods";

type ReadPod = fn(&[u8]) -> serde_json::Result<Pod>;

impl OwnNode {
    /// Watches the Node's pods, except those that have ended. The stream never ends.
    pub fn watch_pods(&self) -> impl Stream<Item = WatchEvent<Pod>> + use<> {
        self.pods().events()
    }

    /// Lists the Node's pods. Returns also why others cannot be decoded.
    pub async fn list_pods(&self) -> Result<(Vec<Pod>, Vec<String>), CallError> {
        self.pods().list().await
    }

    /// The API server finds them by an index.
    fn pods(&self) -> Watch<ReadPod> {
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", self.name);
        let selected = ListParams::default().fields(&selector);
        Watch::new(&self.api.client, PODS, selected, false, |json| decode(json))
    }
}
