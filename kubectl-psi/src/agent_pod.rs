//! Snapshots of a node's agent, through the API server.

use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use psi_agent_client::cluster::ApiClient;
use psi_agent_client::top::snapshot::get;
use psi_agent_client::top::{FETCH_INTERVAL, Source, View};

/// Label selector of the agents' pods.
const SELECTOR: &str = "app.kubernetes.io/name=psi-agent";

/// The port that serves snapshots, by its name in the pod.
const PORT: &str = "metrics";

/// Time for a connection through the API server and an agent's response.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct AgentPod {
    pods: Api<Pod>,
    node: String,
    name: String,
    port: u16,
}

impl AgentPod {
    /// Finds the agent's pod on a node. `namespace` limits the search, for users who may list pods
    /// in one namespace only.
    pub(crate) async fn find(
        api: &ApiClient,
        node: String,
        namespace: Option<String>,
    ) -> anyhow::Result<Self> {
        let client = api.client();
        let selector = ListParams::default().labels(SELECTOR);
        let selector = selector.fields(&format!("spec.nodeName={node},status.phase=Running"));
        let pods: Api<Pod> = match namespace {
            Some(namespace) => Api::namespaced(client.clone(), &namespace),
            None => Api::all(client.clone()),
        };
        let pods = pods.list(&selector).await;
        let pods = pods.with_context(|| format!("cannot list the pods of node {node}"))?;
        let found = pods.into_iter().find_map(|pod| {
            let containers = pod.spec.into_iter().flat_map(|spec| spec.containers);
            let mut ports = containers.flat_map(|container| container.ports.unwrap_or_default());
            let port = ports.find(|port| port.name.as_deref() == Some(PORT))?.container_port;
            Some((pod.metadata.namespace?, pod.metadata.name?, u16::try_from(port).ok()?))
        });
        let Some((namespace, name, port)) = found else {
            bail!(
                "no agent runs on node {node}: list the nodes with `kubectl psi nodes`, and the agents with \
                 `kubectl get pods -A -o wide -l {SELECTOR}`"
            );
        };
        Ok(Self { pods: Api::namespaced(client, &namespace), node, name, port })
    }

    async fn fetch(&self) -> anyhow::Result<View> {
        let mut forwarder = self.pods.portforward(&self.name, &[self.port]).await?;
        let stream = forwarder.take_stream(self.port).context("the port was not forwarded")?;
        let view = get(stream, "localhost").await?;
        forwarder.abort();
        Ok(view)
    }
}

impl Source for AgentPod {
    async fn next(&mut self) -> anyhow::Result<(String, View)> {
        let what = || format!("cannot read the agent of node {}, pod {}", self.node, self.name);
        let fetched = tokio::time::timeout(TIMEOUT, self.fetch()).await;
        let fetched = fetched.with_context(|| format!("no response in {} s", TIMEOUT.as_secs()));
        let view = fetched.and_then(|fetched| fetched).with_context(what)?;
        Ok((format!("agent {} on {}", view.version, self.node), view))
    }

    async fn pause(&self) {
        tokio::time::sleep(FETCH_INTERVAL).await;
    }
}
