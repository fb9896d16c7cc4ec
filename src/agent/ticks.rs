//! What a tick sets in motion: it is counted, scored, and the score handed on.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::contract::NodePressure;
use crate::kernel::cgroup_dir::Resource;
use crate::output::scrape::Scrapes;
use crate::sample::TickSample;
use crate::sampler::{Sampler, Tick};
use crate::score::{NodeScore, Scorer};

/// Follows the ticks for ever; an error is that there are no more.
pub(super) async fn follow(
    mut sampler: Sampler,
    first: Arc<Tick>,
    mut scorer: Scorer,
    scores: watch::Sender<Option<Arc<NodeScore>>>,
    mut adopted: oneshot::Receiver<NodePressure>,
    scrapes: &Scrapes,
) -> anyhow::Result<()> {
    let mut tick = first;
    let mut before = None;
    let mut hidden_before = false;
    loop {
        scrapes.health().observe_tick(&tick.sample, tick.took);
        say_what_is_supported(&tick, &mut before);
        say_what_is_hidden(&tick.sample, &mut hidden_before);
        if let Ok(published) = adopted.try_recv() {
            scorer.adopt(&published);
        }
        if let Some(rates) = &tick.rates {
            let score = scorer.advance(tick.sample.moment, rates);
            scores.send_replace(Some(Arc::new(score)));
        }
        tick = sampler.next_tick().await?;
    }
}

/// Says when pressure goes away or comes back. `before` is what was supported at the last tick.
fn say_what_is_supported(tick: &Tick, before: &mut Option<Option<String>>) {
    let now = supported(tick);
    if before.as_ref() == Some(&now) {
        return;
    }
    match &now {
        Some(resources) if before.is_some() => {
            tracing::info!(%resources, "The kernel tells pressure");
        }
        Some(_) => {}
        None => tracing::warn!(
            "The kernel tells no pressure: boot with psi=1; `psi-agent check` says more"
        ),
    }
    *before = Some(now);
}

/// Says when the threads of VMs are not to be seen, and when they are again.
fn say_what_is_hidden(sample: &TickSample, before: &mut bool) {
    let containers = sample.hidden_containers;
    let is_hidden = containers > 0;
    if is_hidden != *before {
        if is_hidden {
            tracing::warn!(
                containers,
                "No process of these is to be seen, so their run delay is not known: mount the \
                 host's /proc and name it with --proc-root; `psi-agent check` says more"
            );
        } else {
            tracing::info!("The processes of all containers are to be seen");
        }
        *before = is_hidden;
    }
}

/// Resources whose pressure the node tells.
pub(super) fn supported(tick: &Tick) -> Option<String> {
    let pressures = &tick.sample.node.pressure.pressures;
    let told = Resource::ALL.into_iter().filter(|&resource| pressures.of(resource).is_some());
    let told: Vec<&str> = told.map(Resource::word).collect();
    (!told.is_empty()).then(|| told.join(", "))
}
