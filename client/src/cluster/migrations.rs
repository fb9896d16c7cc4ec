//! Reads whole lists of objects, and creates migrations of VMs.

use anyhow::Context;
use kube::api::{ListParams, PostParams, Request};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::call::{CallError, LONGEST_OBJECT, call, unreachable};
use super::client::ApiClient;
use super::streamed_list::streamed_list;

const KUBEVIRT: &str = "/apis/kubevirt.io/v1";

/// What lists are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    Nodes,
    Pods,
    Vms,
    Migrations,
}

impl ApiClient {
    /// All objects of a kind, each reduced by `convert` as it arrives. Fails if one cannot be parsed:
    /// a plan without one of the objects would be wrong.
    pub async fn list_all<T: DeserializeOwned, U>(
        &self,
        listed: Listed,
        convert: impl Fn(T) -> U,
    ) -> anyhow::Result<Vec<U>> {
        let (path, what) = match listed {
            Listed::Nodes => ("/api/v1/nodes".to_owned(), "nodes"),
            Listed::Pods => ("/api/v1/pods".to_owned(), "pods"),
            Listed::Vms => (format!("{KUBEVIRT}/virtualmachineinstances"), "VMs of KubeVirt"),
            Listed::Migrations => {
                (format!("{KUBEVIRT}/virtualmachineinstancemigrations"), "migrations of KubeVirt")
            }
        };
        // The API server's cache can be a few seconds old. A migration that has just begun must count.
        let params = match listed {
            Listed::Migrations => ListParams::default(),
            Listed::Nodes | Listed::Pods | Listed::Vms => ListParams::default().match_any(),
        };
        let (mut objects, mut first_error) = (Vec::new(), None);
        let on_item = |item: &[u8]| match serde_json::from_slice(item) {
            Ok(object) => objects.push(convert(object)),
            Err(error) => first_error = first_error.take().or(Some(error)),
        };
        let list = streamed_list(&self.client, &path, &params, on_item).await;
        list.with_context(|| format!("cannot list the {what} ({path})"))?;
        first_error
            .map_or(Ok(objects), Err)
            .with_context(|| format!("cannot parse one of the {what} ({path})"))
    }

    /// Creates a VirtualMachineInstanceMigration.
    pub async fn create_migration(
        &self,
        namespace: &str,
        migration: &Value,
    ) -> Result<(), CallError> {
        let path = format!("{KUBEVIRT}/namespaces/{namespace}/virtualmachineinstancemigrations");
        let body = serde_json::to_vec(migration).map_err(unreachable)?;
        let request = Request::new(path).create(&PostParams::default(), body);
        call::<IgnoredAny>(&self.client, request, LONGEST_OBJECT).await.map(drop)
    }
}
