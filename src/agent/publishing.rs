//! The publisher as configured, and the checks of the agent's restrictions.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::client::cluster::OwnNode;
use crate::client::cluster::call::CallError;
use crate::config::{Publish, RunConfig};
use crate::contract::NodePressure;
use crate::own_metrics::OwnMetrics;
use crate::publish::publisher::Publisher;
use crate::relief::Assessment;

/// Time between two checks of the agent's restrictions, until they hold.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The same afterwards, on average: each check is several requests.
const LATER_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Starts to publish the scores on `node`, unless publishing is off. Without a Node, values are
/// only logged.
pub(super) fn start(
    config: &RunConfig,
    node: Option<OwnNode>,
    mut assessments: watch::Receiver<Option<Arc<Assessment>>>,
    adopt: oneshot::Sender<NodePressure>,
    metrics: &Arc<OwnMetrics>,
) {
    let (flags, mode) = (&config.publishing, config.publishing.publish.mode(&config.source));
    metrics.set_publishing(mode.into_str(), flags.heartbeat_interval, flags.mark_candidate);
    if mode == Publish::Off {
        return;
    }
    if mode == Publish::On
        && let Some(node) = &node
    {
        tokio::spawn(check_restriction(node.clone(), Arc::clone(metrics)));
    }
    let mut publisher = Publisher::new(config, node, Arc::clone(metrics), random);
    let mut adopt = Some(adopt);
    tokio::spawn(async move {
        while assessments.changed().await.is_ok() {
            let Some(assessment) = assessments.borrow_and_update().clone() else { continue };
            if let Some(found) = publisher.take(&assessment).await
                && let Some(adopt) = adopt.take()
            {
                // This fails only while the agent stops, and has dropped the receiver.
                let _ = adopt.send(found);
            }
        }
    });
}

/// Checks that admission policies restrict the agent's writes. Policies that were applied together with the agent take
/// effect seconds later, so only the second finding in a row is reported.
async fn check_restriction(node: OwnNode, metrics: Arc<OwnMetrics>) {
    let mut findings = 0_u32;
    loop {
        let mut wait = CHECK_INTERVAL;
        match node.foreign_write().await {
            Ok(None) => {
                metrics.restricted();
                (findings, wait) = (0, LATER_INTERVAL.mul_f64(0.5 + random()));
            }
            Ok(Some(allowed)) => {
                findings = findings.saturating_add(1);
                if findings == 2 {
                    metrics.unrestricted(&allowed);
                }
            }
            // Some admission webhooks refuse dry runs.
            Err(error @ CallError::Refused { .. }) => {
                tracing::info!(%error, "Cannot check whether the agent's writes are restricted");
                wait = LATER_INTERVAL;
            }
            Err(error) => {
                tracing::debug!(%error, "Cannot check the restrictions of the agent's writes")
            }
        }
        tokio::time::sleep(wait).await;
    }
}

/// A number from 0 to 1 that differs between nodes.
fn random() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
