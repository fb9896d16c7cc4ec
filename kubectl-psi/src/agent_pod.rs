//! Snapshots of a node's agent, through the API server.

use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use psi_agent_client::cluster::ApiClient;
use psi_agent_client::cluster::call::CallError;
use psi_agent_client::reap::AGENTS;
use psi_agent_client::snapshot::Snapshot;
use psi_agent_client::top::Described;
use psi_agent_client::top::connection::Connection;

/// The port that serves snapshots, by its name in the pod.
const PORT: &str = "metrics";

/// Time for a connection through the API server and an agent's response, which may take 10 s.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The agent of a node, by a connection that is kept while it works. After that, its pod is looked up
/// again, since a roll-out replaces it.
pub(crate) struct AgentPod {
    pub(crate) api: ApiClient,
    pub(crate) node: String,
    /// Limits the search, for users who may list pods in one namespace only.
    pub(crate) namespace: Option<String>,
    pub(crate) connection: Option<Connection>,
}

impl AgentPod {
    pub(crate) async fn next(&mut self) -> anyhow::Result<Described> {
        let fetched = tokio::time::timeout(TIMEOUT, self.fetch()).await;
        let view = fetched.with_context(|| {
            format!("the agent of node {} did not respond in {} s", self.node, TIMEOUT.as_secs())
        })??;
        Ok((format!("agent {} on {}", view.version, self.node), view))
    }

    async fn fetch(&mut self) -> anyhow::Result<Snapshot> {
        if let Some(mut kept) = self.connection.take()
            && let Ok(view) = kept.snapshot().await
        {
            self.connection = Some(kept);
            return Ok(view);
        }
        let mut connection = self.connect().await?;
        let view = connection.snapshot().await;
        let view = view.with_context(|| format!("cannot read the agent of node {}", self.node))?;
        self.connection = Some(connection);
        Ok(view)
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let (pods, name, port) = self.find().await?;
        let forwarded = async {
            let mut forwarder = pods.portforward(&name, &[port]).await.map_err(CallError::from)?;
            let stream = forwarder.take_stream(port).context("the port was not forwarded")?;
            Connection::new(stream).await
        };
        let forwarded = forwarded.await;
        forwarded.with_context(|| format!("cannot connect to pod {name} of node {}", self.node))
    }

    /// The running pod of the agent, with its port.
    async fn find(&self) -> anyhow::Result<(Api<Pod>, String, u16)> {
        let (node, client) = (&self.node, self.api.client.clone());
        let selector = ListParams::default().labels(AGENTS);
        let selector = selector.fields(&format!("spec.nodeName={node},status.phase=Running"));
        let pods: Api<Pod> = match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let pods = pods.list(&selector).await.map_err(CallError::from);
        let pods = pods.with_context(|| format!("cannot list the pods of node {node}"))?;
        let lasting = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let mut found = lasting.filter_map(|pod| {
            let containers = pod.spec.into_iter().flat_map(|spec| spec.containers);
            let mut ports = containers.flat_map(|container| container.ports.unwrap_or_default());
            let port = ports.find(|port| port.name.as_deref() == Some(PORT))?.container_port;
            Some((pod.metadata.namespace?, pod.metadata.name?, u16::try_from(port).ok()?))
        });
        let Some((namespace, name, port)) = found.next() else {
            bail!(
                "no agent runs on node {node}: list the nodes with `kubectl psi nodes`, and the agents with \
                 `kubectl get pods -A -o wide -l {AGENTS}`"
            );
        };
        // Anyone who may create pods can give one these labels.
        if let Some((other, ..)) = found.find(|(other, ..)| *other != namespace) {
            bail!(
                "agents run on node {node} in the namespaces {namespace} and {other}: set --namespace"
            );
        }
        Ok((Api::namespaced(client, &namespace), name, port))
    }
}

#[cfg(test)]
mod tests;
