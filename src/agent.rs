//! `psi-agent run`: starts the sampling thread and the HTTP server, and decides what is fatal.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::host::Host;
use crate::kernel::cgroup_dir::Resource;
use crate::output::http::{Service, serve};
use crate::output::scrape::Scrapes;
use crate::pod_source;
use crate::sampler::{Sampler, TICK_INTERVAL, Tick};
use crate::self_health::{Reason, SelfHealth};

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What does not let it start, or a task that ended by itself; each a sentence for people.
pub fn run(config: &Config) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?
        .block_on(run_until_stopped(config))
}

async fn run_until_stopped(config: &Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let host = Host::open(config)?;
    let listener = TcpListener::bind(config.listen_address).await.with_context(|| {
        format!("cannot listen on {}: choose another --listen-address", config.listen_address)
    })?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let found = describe(&host);
    let health = SelfHealth::new().context("cannot register the agent's own metrics")?;
    let scrapes = Arc::new(Scrapes::new(config.families.clone(), health));
    let pods = pod_source::follow(&config.pods, &scrapes).await?;
    let mut sampler = Sampler::start(host.into_reader(config), pods.clone(), TICK_INTERVAL)
        .context("cannot start the sampling thread")?;

    let first = sampler.next_tick().await?;
    let cgroups = first.sample.cgroups.len();
    let pressure = supported(&first).unwrap_or("off".into());
    tracing::info!(%cgroups, %pressure, "Reading {found}; serving http://{address}/");
    let service = Service::new(sampler.clone(), pods, Arc::clone(&scrapes));
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::select! {
        () = serve(listener, service, stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        ended = follow_ticks(&mut sampler, &first, &scrapes) => ended,
    }
}

/// Counts every tick, and says when pressure goes away or comes back.
async fn follow_ticks(
    sampler: &mut Sampler,
    first: &Arc<Tick>,
    scrapes: &Scrapes,
) -> anyhow::Result<()> {
    let mut tick = Arc::clone(first);
    let mut before = None;
    loop {
        scrapes.health().observe(&tick.sample, tick.took, Reason::Tick);
        let now = supported(&tick);
        if before.as_ref() != Some(&now) {
            match &now {
                Some(resources) if before.is_some() => {
                    tracing::info!(%resources, "The kernel tells pressure");
                }
                Some(_) => {}
                None => tracing::warn!(
                    "The kernel tells no pressure: boot with psi=1; `psi-agent check` says more"
                ),
            }
            before = Some(now);
        }
        tick = sampler.next_tick().await?;
    }
}

/// Resources whose pressure the node tells.
fn supported(tick: &Tick) -> Option<String> {
    let pressures = &tick.sample.node.pressure.pressures;
    let told = Resource::ALL.into_iter().filter(|&resource| pressures.of(resource).is_some());
    let told: Vec<&str> = told.map(Resource::word).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

fn describe(host: &Host) -> String {
    let path = host.root.path().display();
    match &host.mount {
        Some(mount) if mount.hybrid => format!("{path} (cgroup v2 beside v1)"),
        Some(_) => format!("{path} (cgroup v2)"),
        None if host.root.is_cgroup2() => format!("{path} (cgroup v2, as told)"),
        None => format!("{path} (no cgroupfs: a replay)"),
    }
}
