//! Counts and scores each tick, and logs when the waiting of workloads becomes unknown.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::contract::NodePressure;
use crate::kernel::cgroup_dir::Resource;
use crate::own_metrics::OwnMetrics;
use crate::relief::{Assessment, Assessor};
use crate::sample::Tick;
use crate::sampler::Sampler;
use crate::score::{Absence, NodeScore};
use crate::waiting::{Population, Ratio};

/// Processes ticks forever; an error means that the sampling thread has ended. `adopted` is the value that was on
/// the Node when the agent started; `start_message` is logged after the first tick.
pub(super) async fn follow(
    mut sampler: Sampler,
    mut assessor: Assessor,
    assessments: watch::Sender<Option<Arc<Assessment>>>,
    mut adopted: oneshot::Receiver<NodePressure>,
    metrics: Arc<OwnMetrics>,
    start_message: String,
) -> anyhow::Result<()> {
    let mut tick = sampler.next_tick().await?;
    log_start(&start_message, &tick);
    loop {
        metrics.observe_tick(&tick);
        if let Ok(published) = adopted.try_recv() {
            assessor.adopt(&published);
        }
        if tick.window.is_some() {
            let assessment = Arc::new(assessor.advance(&tick));
            metrics.observe_score(assessment.score.score.map(Ratio::get));
            let before = assessments.send_replace(Some(Arc::clone(&assessment)));
            log_unknown(before.as_ref().map(|before| &before.score), &assessment.score);
        }
        tick = sampler.next_tick().await?;
    }
}

/// Logs the start, and the resources whose pressure the kernel reports.
fn log_start(message: &str, tick: &Tick) {
    let reports = tick.node.reports;
    let reported = Resource::ALL.into_iter().filter(|&resource| *reports.of(resource));
    let words: Vec<&str> = reported.map(Resource::into).collect();
    let pressure = if words.is_empty() { "off".to_owned() } else { words.join(", ") };
    tracing::info!(cgroups = %tick.report.in_scope, %pressure, "{message}");
    if words.is_empty() {
        tracing::warn!("The kernel reports no pressure: boot with psi=1; see `psi-agent check`");
    }
}

/// Logs when the waiting of workloads becomes unknown or known, and why there is no score, when that
/// changes.
fn log_unknown(before: Option<&NodeScore>, now: &NodeScore) {
    let population = now.population.map_or("workloads", Population::plural);
    for each in Resource::ALL {
        let (count, resource) = (*now.hidden.of(each), each.into_str());
        let had = before.is_some_and(|before| *before.hidden.of(each) > 0);
        if count > 0 && !had {
            tracing::warn!(
                count,
                resource,
                "The waiting of some {population} is unknown, since the API server does not list them, or their \
                 files or processes are not readable: see `psi-agent check`"
            );
        } else if count == 0 && had {
            tracing::info!(resource, "The waiting of all {population} is known");
        }
        let absence = *now.absence.of(each);
        let is_new = before.is_none_or(|before| *before.absence.of(each) != absence);
        if let Some(why) = absence.filter(|why| is_new && *why != Absence::WarmingUp) {
            tracing::info!(resource, reason = why.into_str(), "No contention");
        }
    }
}
