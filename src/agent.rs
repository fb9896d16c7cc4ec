//! `psi-agent run`: starts the sampling thread, the publisher and the HTTP server, and decides what
//! is fatal.

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::host::Host;
use crate::output::connections::{listen, serve, until_stopped};
use crate::output::http::Service;
use crate::output::scrape::Scrapes;
use crate::pod_source;
use crate::sampler::{Sampler, TICK_INTERVAL};
use crate::score::Scorer;
use crate::self_health::SelfHealth;

mod doors;
mod publishing;
mod ticks;

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
    let stop = until_stopped().context("cannot listen for signals")?;
    let host = Host::open(config)?;
    warn_of_missing_cgroup2(&host);
    let listener = listen(config.listen_address).await.with_context(|| {
        format!("cannot listen on {}: choose another --listen-address", config.listen_address)
    })?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let found = describe(&host);
    let cpu_source = host.cpu_source.word();
    let health = SelfHealth::new().context("cannot register the agent's own metrics")?;
    health.has_cgroup2(!host.node_alone);
    let scrapes = Arc::new(Scrapes::new(config.families.clone(), health));
    let tls = doors::open_certificate(config, &scrapes)?;
    let node = pod_source::connect(&config.pods).await?;
    let gate = doors::open_gate(config, node.as_ref(), &scrapes)?;
    let pods = pod_source::follow(&config.pods, node.clone(), &scrapes)?;
    let mut sampler = Sampler::start(host.into_collector(config), pods.clone(), TICK_INTERVAL)
        .context("cannot start the sampling thread")?;

    let first = sampler.next_tick().await?;
    let cgroups = first.sample.report.in_scope;
    let pressure = ticks::supported(&first).unwrap_or("off".into());
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(%cgroups, %pressure, cpu_source, "Reading {found}; serving {scheme}://{address}/");
    let (scored, scores) = watch::channel(None);
    let (adopt, adopted) = oneshot::channel();
    publishing::start(config, node, scores.clone(), adopt, &scrapes);
    let scorer = Scorer::new(config.counted.clone());
    let ticks = ticks::follow(sampler.clone(), first, scorer, scored, adopted, &scrapes);
    let service = Service::new(sampler, pods, scores, Arc::clone(&scrapes));
    let service = service.with_doors(config.doors.rules(), gate);
    tokio::select! {
        () = serve(listener, tls, service, stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        ended = ticks => ended,
    }
}

/// A node like that is no reason to end, again and again: the agent stays, and says so.
fn warn_of_missing_cgroup2(host: &Host) {
    if host.node_alone {
        let path = host.root.path().display();
        tracing::warn!(
            "{path} is no cgroup v2, so nothing is known of this node's pods, and no score is \
             published: boot it with systemd.unified_cgroup_hierarchy=1; `psi-agent check` says more"
        );
    }
}

fn describe(host: &Host) -> String {
    let path = host.root.path().display();
    if host.node_alone {
        return format!("the node alone ({path} is no cgroup v2)");
    }
    match &host.mount {
        Some(mount) if mount.hybrid => format!("{path} (cgroup v2 beside v1)"),
        Some(_) => format!("{path} (cgroup v2)"),
        None if host.root.is_cgroup2() => format!("{path} (cgroup v2, as told)"),
        None => format!("{path} (no cgroupfs: a replay)"),
    }
}
