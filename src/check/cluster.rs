//! Checks of the API server: the pods, the agent's Node, and what the agent's account may write.

use crate::client::cluster::{OwnNode, block_on};
use crate::config::{CheckConfig, PodSource, Publish, SourceFlags};
use crate::host::finding::{Finding, fail, warn};
use crate::identity::pod_index::PodIndex;
use crate::pod_source::{connect, list};

const NO_ACCESS: &str =
    "give the agent access to the API server, with the rights to list and watch pods";

/// Checks access to the pods and to the agent's Node. No findings if the agent runs stand-alone. Returns
/// the pods as well.
pub(super) fn api_server(config: &CheckConfig) -> (Vec<(&'static str, Finding)>, Option<PodIndex>) {
    let source = &config.source;
    // Until they are listed, no workload is known, as for the agent.
    let mut pods = (source.pods() != PodSource::Standalone).then(PodIndex::default);
    let findings = block_on(async {
        let node = connect(source).await?;
        let mut findings = Vec::new();
        if source.pods() != PodSource::Standalone {
            let names = pod_names(source, node.as_ref()).await;
            let names = names.map(|listed| {
                let count = pods.insert(listed).count();
                format!("{count} pods of this node listed")
            });
            findings.push(("names", names));
        }
        if let (Some(node), Publish::On) = (&node, config.publish.mode(source)) {
            findings.push(("node", own_node(node).await));
            findings.extend(restriction(node).await.map(|finding| ("admission", finding)));
        }
        anyhow::Ok(findings)
    });
    // As for the agent, which does not start then.
    let failed = |error| vec![("names", fail(format!("{error:#}"), NO_ACCESS))];
    (findings.unwrap_or_else(failed), pods)
}

/// Checks the list of pods, from which series get their labels.
async fn pod_names(source: &SourceFlags, node: Option<&OwnNode>) -> Finding<PodIndex> {
    match list(source, node).await {
        Ok(pods) => Ok(pods.unwrap_or_default()),
        Err(error) if node.is_none() => {
            fail(format!("{error:#}"), "write the file with `kubectl get pods -o json`")
        }
        Err(error) => warn(format!("{error:#}"), NO_ACCESS),
    }
}

/// Checks access to the agent's own Node.
async fn own_node(node: &OwnNode) -> Finding {
    match node.get().await {
        Ok(keys) => Ok(format!("{} is readable", keys.metadata.name)),
        Err(error) => warn(
            error,
            "apply the agent's manifests and set --node-name to this node's name; or do not publish, with \
             --publish=off",
        ),
    }
}

/// Checks whether admission policies restrict what the agent's account may write. A Node that
/// cannot be patched is reported by [`own_node`].
async fn restriction(node: &OwnNode) -> Option<Finding> {
    match node.foreign_write().await {
        Ok(None) => {
            Some(Ok("writes outside the agent's keys of its own Node are denied".to_owned()))
        }
        Ok(Some(allowed)) => Some(warn(
            allowed,
            "apply daemonset/base/admission.yaml, with the name of this agent's account",
        )),
        Err(_) => None,
    }
}
