//! Reads whole lists of objects, creates and deletes migrations of VMs, and creates Events.

use anyhow::Context;
use http::header::CONTENT_TYPE;
use kube::api::{DeleteParams, ListParams, PatchParams, Request};
use kube::core::request::Error;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use super::call::{CallError, LONGEST_OBJECT, call, patch, unreachable};
use super::client::ApiClient;
use super::streamed_list::streamed_list;
use crate::json::decode;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl ApiClient {
    /// All objects that `params` select, or with a limit the first of them, each reduced by `convert` as it
    /// arrives. Fails if one cannot be parsed: a plan without it would be wrong. One that is too long is
    /// skipped, since any tenant can make one.
    pub async fn list_all<T: DeserializeOwned, U: Send>(
        &self,
        path: &str,
        params: &ListParams,
        convert: impl Fn(T) -> U + Sync,
    ) -> anyhow::Result<Vec<U>> {
        let read = |item: &[u8]| {
            let is_too_long = item.len() >= LONGEST_OBJECT;
            decode(item).map(&convert).map_err(|error| (!is_too_long).then_some(error))
        };
        let list = streamed_list(&self.client, Request::new(path).list(params), read).await;
        let list = list.map_err(CallError::from).with_context(|| format!("cannot list {path}"));
        let ((objects, errors), _) = list?;
        let parsed = errors.into_iter().flatten().next().map_or(Ok(objects), Err);
        parsed.with_context(|| format!("cannot parse an object of {path}"))
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

    /// Deletes a VirtualMachineInstanceMigration, which cancels it.
    pub async fn delete_migration(&self, namespace: &str, name: &str) -> Result<(), CallError> {
        let request = Request::new(migrations(namespace)).delete(name, &DeleteParams::default());
        call::<IgnoredAny>(&self.client, request).await.map(drop)
    }

    /// Creates an object of a path. Fails with [`CallError::Conflict`] if there is one of its name, and if the API
    /// server does not know a field: without `addedNodeSelector`, which KubeVirt has since 1.6, a VM would go anywhere.
    pub async fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &impl Serialize,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(object).map_err(unreachable)?;
        let request = http::Request::post(format!("{path}?fieldValidation=Strict"))
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(Error::BuildRequest);
        call(&self.client, request).await
    }
}

/// The path of migrations.
pub fn migrations(namespace: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstancemigrations")
}
