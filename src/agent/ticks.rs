//! Counts and scores each tick, and logs when pressure or processes become readable or unreadable.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::contract::NodePressure;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::resource::PerResource;
use crate::own_metrics::OwnMetrics;
use crate::relief::{Assessment, Assessor};
use crate::sample::Tick;
use crate::sampler::Sampler;
use crate::score::Absence;

pub(super) struct Ticks {
    pub(super) sampler: Sampler,
    pub(super) assessor: Assessor,
    pub(super) assessments: watch::Sender<Option<Arc<Assessment>>>,
    /// The value that was on the Node when the agent started.
    pub(super) adopted: oneshot::Receiver<NodePressure>,
    pub(super) metrics: Arc<OwnMetrics>,
    pub(super) start_message: String,
}

impl Ticks {
    /// Processes ticks forever; an error means that the sampling thread has ended.
    pub(super) async fn follow(mut self) -> anyhow::Result<()> {
        let mut tick = self.sampler.next_tick().await?;
        let mut logged_as_supported = self.log_start(&tick);
        let (mut hidden, mut absence) = Default::default();
        loop {
            self.metrics.observe_tick(&tick);
            log_supported(&tick, &mut logged_as_supported);
            if let Ok(published) = self.adopted.try_recv() {
                self.assessor.adopt(&published);
            }
            if tick.window.is_some() {
                let assessment = self.assessor.advance(&tick);
                log_hidden(&assessment, &mut hidden);
                log_absence(&assessment, &mut absence);
                self.assessments.send_replace(Some(Arc::new(assessment)));
            }
            tick = self.sampler.next_tick().await?;
        }
    }

    /// Logs what is read. Returns the resources whose pressure the kernel reports.
    fn log_start(&self, tick: &Tick) -> Option<String> {
        let cgroups = tick.report.in_scope;
        let supported = supported(tick);
        let pressure = supported.as_deref().unwrap_or("off");
        tracing::info!(%cgroups, %pressure, "{}", self.start_message);
        if supported.is_none() {
            warn_of_missing_pressure();
        }
        supported
    }
}

/// Logs when the kernel stops or begins to report pressure.
fn log_supported(tick: &Tick, before: &mut Option<String>) {
    let now = supported(tick);
    if *before == now {
        return;
    }
    match &now {
        Some(resources) => tracing::info!(%resources, "The kernel reports pressure"),
        None => warn_of_missing_pressure(),
    }
    *before = now;
}

fn warn_of_missing_pressure() {
    tracing::warn!("The kernel reports no pressure: boot with psi=1; see `psi-agent check`");
}

/// Logs when the waiting of workloads becomes unknown or known.
fn log_hidden(assessment: &Assessment, before: &mut PerResource<usize>) {
    let hidden = assessment.score.hidden;
    let population =
        assessment.score.population.map_or("workloads", |population| population.plural());
    for resource in Resource::ALL {
        let (count, had) = (*hidden.of(resource), *before.of(resource) > 0);
        let resource = resource.word();
        if count > 0 && !had {
            tracing::warn!(
                count,
                resource,
                "The waiting of some {population} is unknown, since their files or processes are not \
                 readable: see `psi-agent check`"
            );
        } else if count == 0 && had {
            tracing::info!(resource, "The waiting of all {population} is known");
        }
    }
    *before = hidden;
}

/// Logs why there is no score, when that changes.
fn log_absence(assessment: &Assessment, before: &mut PerResource<Option<Absence>>) {
    let absence = assessment.score.absence;
    for resource in Resource::ALL {
        let (now, resource_word) = (*absence.of(resource), resource.word());
        if let Some(why) =
            now.filter(|why| *why != Absence::WarmingUp && now != *before.of(resource))
        {
            tracing::info!(resource = resource_word, reason = why.into_str(), "No contention");
        }
    }
    *before = absence;
}

/// Resources whose pressure the kernel reports for the node; `None` if it reports none.
fn supported(tick: &Tick) -> Option<String> {
    let reports = tick.node.reports;
    let supported = Resource::ALL.into_iter().filter(|&resource| *reports.of(resource));
    let words: Vec<&str> = supported.map(Resource::word).collect();
    (!words.is_empty()).then(|| words.join(", "))
}
