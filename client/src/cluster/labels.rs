//! Lists the pods with a label, and sets or removes the label.

use kube::api::{ListParams, ObjectList, Patch, PatchParams, Request};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::call::{CallError, LONGEST_OBJECT, call};
use super::client::ApiClient;
use crate::pod::Metadata;

/// Pods per response. Each node has at most one pod with the label, and a pod can have 1.5 MB.
const PAGE: u32 = 8;

const LONGEST_PAGE: usize = 16 * 1024 * 1024;

/// A pod, and the Node that it is bound to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    pub node: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ListedPod {
    metadata: Metadata,
    #[serde(default)]
    pub(super) spec: Spec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) node_name: String,
}

impl ApiClient {
    /// Lists the pods with a label on one Node, or on all Nodes.
    pub async fn labelled_pods(
        &self,
        label: &str,
        node: Option<&str>,
    ) -> Result<Vec<PodName>, CallError> {
        let mut params = ListParams::default().labels(label).limit(PAGE);
        if let Some(node) = node {
            params = params.fields(&format!("spec.nodeName={node}"));
        }
        let mut pods = Vec::new();
        loop {
            let request = Request::new("/api/v1/pods").list(&params);
            let page: ObjectList<ListedPod> = call(&self.client, request, LONGEST_PAGE).await?;
            pods.extend(page.items.into_iter().map(|ListedPod { metadata, spec }| PodName {
                namespace: metadata.namespace,
                name: metadata.name,
                node: spec.node_name,
            }));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(pods);
            }
        }
    }

    /// Sets a label of a pod. `None` removes it.
    pub async fn label_pod(
        &self,
        pod: &PodName,
        label: &str,
        value: Option<&str>,
    ) -> Result<(), CallError> {
        let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
        let patch = json!({"metadata": {"labels": {label: value}}});
        let request =
            Request::new(path).patch(&pod.name, &PatchParams::default(), &Patch::Merge(patch));
        call::<IgnoredAny>(&self.client, request, LONGEST_OBJECT).await.map(drop)
    }
}
