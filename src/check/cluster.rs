//! Checks of the API server: the pods, the agent's Node, and what the agent's account may write.

use super::finding::Finding;
use crate::client::cluster::{OwnNode, block_on};
use crate::config::{CheckConfig, PodSource, Publish, SourceFlags};
use crate::pod_source::{connect, list};

type OwnNodeResult = anyhow::Result<Option<OwnNode>>;

/// Checks access to the pods and to the agent's Node. No findings if the agent runs stand-alone.
pub(super) fn api_server(config: &CheckConfig) -> Vec<Finding> {
    let findings = block_on(async {
        let node = connect(&config.source.pods()).await;
        let mut findings = Vec::from_iter(pod_names(&config.source, &node).await);
        if config.publish.mode(&config.source) == Publish::On {
            findings.extend(own_node(&node).await);
            findings.extend(restriction(&node).await);
        }
        anyhow::Ok(findings)
    });
    findings.unwrap_or_else(|error| vec![Finding::warn("names", format!("{error:#}"), "try again")])
}

/// Checks the list of pods, from which series get their labels. `None` if the agent runs
/// stand-alone.
async fn pod_names(source: &SourceFlags, node: &OwnNodeResult) -> Option<Finding> {
    let remedy = match source.pods() {
        PodSource::Standalone => return None,
        PodSource::File(_) => "write the file with `kubectl get pods -o json`",
        PodSource::Cluster(_) => {
            "give the agent access to the API server, with the rights to list and watch pods"
        }
    };
    let pods = match node {
        Ok(node) => list(source, node.as_ref()).await.map_err(|error| format!("{error:#}")),
        Err(error) => Err(format!("{error:#}")),
    };
    Some(match pods {
        Ok(pods) => {
            let count = pods.map_or(0, |index| index.len());
            Finding::ok("names", format!("{count} pods of this node listed"))
        }
        Err(error) => Finding::warn("names", error, remedy),
    })
}

/// Checks access to the agent's own Node.
async fn own_node(node: &OwnNodeResult) -> Option<Finding> {
    let keys = match node {
        Ok(node) => node.as_ref()?.get().await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    Some(match keys {
        Ok(keys) => Finding::ok("node", format!("{} is readable", keys.metadata.name)),
        Err(error) => Finding::warn(
            "node",
            error,
            "apply daemonset/base and set --node-name to this node's name; or do not publish, with \
             --publish=off",
        ),
    })
}

/// Checks whether admission policies restrict what the agent's account may write. A Node that
/// cannot be patched is reported by [`own_node`].
async fn restriction(node: &OwnNodeResult) -> Option<Finding> {
    let about = "admission";
    match node.as_ref().ok()?.as_ref()?.foreign_write().await {
        Ok(None) => {
            Some(Finding::ok(about, "writes outside the agent's keys of its own Node are denied"))
        }
        Ok(Some(allowed)) => Some(Finding::warn(
            about,
            allowed,
            "apply daemonset/base/admission.yaml, with the name of this agent's account",
        )),
        Err(_) => None,
    }
}
