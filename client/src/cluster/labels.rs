//! Lists the pods with a label, and sets or removes the label.

use kube::api::{ListParams, PatchParams};
use serde::de::IgnoredAny;
use serde_json::json;

use super::call::{CallError, list, patch};
use super::client::ApiClient;
use crate::pod::{LAUNCHER, Pod, key};

/// Pods per response, of which each can have 1.5 MB.
const PAGE: u32 = 8;

/// A pod, and the Node that it is bound to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    pub node: String,
}

impl ApiClient {
    /// Lists the pods of VMs with a label. Another pod has it from its owner.
    pub async fn labelled_pods(&self, label: &str) -> anyhow::Result<Vec<PodName>> {
        let params = ListParams::default().labels(&format!("{label},{}={LAUNCHER}", key::KIND));
        let name = |Pod { metadata, spec, .. }| PodName {
            namespace: metadata.namespace,
            name: metadata.name,
            node: spec.node_name,
        };
        self.list_all("/api/v1/pods", &params, name).await
    }

    /// Number of pods in a namespace with a label.
    pub async fn pods_in(&self, namespace: &str, label: &str) -> Result<usize, CallError> {
        let params = ListParams::default().labels(label).limit(PAGE);
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pods = list(&self.client, &path, params, |_: IgnoredAny| ()).await?;
        Ok(pods.len())
    }

    /// Sets a label of a pod. `None` removes it.
    pub async fn label_pod(
        &self,
        pod: &PodName,
        label: &str,
        value: Option<&str>,
    ) -> Result<(), CallError> {
        let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
        let labels = json!({"metadata": {"labels": {label: value}}});
        patch(&self.client, &path, &pod.name, &labels, &PatchParams::default()).await
    }
}
