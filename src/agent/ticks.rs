//! Counts and scores each tick, and logs when pressure or processes become readable or unreadable.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::contract::NodePressure;
use crate::health::Health;
use crate::kernel::cgroup_dir::Resource;
use crate::relief::{Assessment, Assessor};
use crate::sample::TickSample;
use crate::sampler::{Sampler, Tick};

pub(super) struct Ticks {
    pub(super) sampler: Sampler,
    pub(super) assessor: Assessor,
    pub(super) assessments: watch::Sender<Option<Arc<Assessment>>>,
    /// The value that was on the Node when the agent started.
    pub(super) adopted: oneshot::Receiver<NodePressure>,
    pub(super) health: Arc<Health>,
    pub(super) start_message: String,
}

impl Ticks {
    /// Processes ticks forever; an error means that the sampling thread has ended.
    pub(super) async fn follow(mut self) -> anyhow::Result<()> {
        let mut tick = self.sampler.next_tick().await?;
        let mut logged_as_supported = self.log_start(&tick);
        let mut has_logged_hidden = false;
        loop {
            self.health.observe_tick(&tick.sample, tick.took);
            log_supported(&tick, &mut logged_as_supported);
            log_hidden(&tick.sample, &mut has_logged_hidden);
            if let Ok(published) = self.adopted.try_recv() {
                self.assessor.adopt(&published);
            }
            if let Some(rates) = &tick.rates {
                let assessment = self.assessor.advance(tick.sample.moment, rates);
                self.assessments.send_replace(Some(Arc::new(assessment)));
            }
            tick = self.sampler.next_tick().await?;
        }
    }

    /// Logs what is read. Returns the resources whose pressure the kernel reports.
    fn log_start(&self, tick: &Tick) -> Option<String> {
        let cgroups = tick.sample.report.in_scope;
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

/// Logs when processes of containers become invisible or visible.
fn log_hidden(sample: &TickSample, before: &mut bool) {
    let containers = sample.hidden_containers;
    let has_hidden = containers > 0;
    if has_hidden != *before {
        if has_hidden {
            tracing::warn!(
                containers,
                "The processes of some containers are not visible, so their run delay is unknown: \
                 mount the host's /proc and set --proc-root to it; see `psi-agent check`"
            );
        } else {
            tracing::info!("The processes of all containers are visible");
        }
        *before = has_hidden;
    }
}

/// Resources whose pressure the kernel reports for the node; `None` if it reports none.
fn supported(tick: &Tick) -> Option<String> {
    let pressures = &tick.sample.node.pressure.pressures;
    let supported = Resource::ALL.into_iter().filter(|&resource| pressures.of(resource).is_some());
    let words: Vec<&str> = supported.map(Resource::word).collect();
    (!words.is_empty()).then(|| words.join(", "))
}
