//! The pods of one node. They are parsed into a small type: whole pods would double the agent's
//! memory, and a metadata-only watch has no container IDs.

use kube::api::ListParams;

use super::client::OwnNode;
use super::watch::Watch;
use crate::json::decode;
use crate::pod::Pod;

const PODS: &str = "/api/v1/pods";

impl OwnNode {
    /// The Node's pods, except those that have ended. The API server finds them by an index.
    pub fn pods(&self) -> Watch<fn(&[u8]) -> serde_json::Result<Pod>> {
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", self.name);
        let selected = ListParams::default().fields(&selector);
        Watch::new(&self.api.client, PODS, selected, false, |json| decode(json))
    }
}
