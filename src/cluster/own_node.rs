//! The one Node that the agent writes on: looked at and patched.

use kube::Client;
use kube::api::{Patch, PatchParams, Request};
use serde_json::Value;

use super::call::{CallError, call};
use super::{NODES, NodeKeys};

/// The Node of this agent.
#[derive(Clone)]
pub struct OwnNode {
    client: Client,
    name: String,
}

impl OwnNode {
    /// The Node of this name.
    #[must_use]
    pub fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    /// What is on it now.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn look(&self) -> Result<NodeKeys, CallError> {
        let request = nodes().get(&self.name, &kube::api::GetParams::default());
        let body = call(&self.client, request).await?;
        serde_json::from_slice(&body).map_err(|error| CallError::Unreachable(error.to_string()))
    }

    /// Changes it by a merge patch.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn patch(&self, patch: &Value) -> Result<(), CallError> {
        let request = nodes().patch(&self.name, &PatchParams::default(), &Patch::Merge(patch));
        call(&self.client, request).await.map(drop)
    }
}

fn nodes() -> Request {
    Request::new(NODES)
}
