//! `psi-agent run`: starts the sampling thread, the publisher and the HTTP server, and decides what
//! is fatal.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::host::Host;
use crate::output::connections::serve;
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
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let host = Host::open(config)?;
    warn_of_missing_cgroup2(&host);
    let listener = listen(config.listen_address, TcpListener::bind).await.with_context(|| {
        format!("cannot listen on {}: choose another --listen-address", config.listen_address)
    })?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let found = describe(&host);
    let health = SelfHealth::new().context("cannot register the agent's own metrics")?;
    health.has_cgroup2(!host.node_alone);
    let scrapes = Arc::new(Scrapes::new(config.families.clone(), health));
    let tls = doors::open_certificate(config, &scrapes)?;
    let gate = doors::open_gate(config, &scrapes).await?;
    let pods = pod_source::follow(&config.pods, &scrapes).await?;
    let mut sampler = Sampler::start(host.into_reader(config), pods.clone(), TICK_INTERVAL)
        .context("cannot start the sampling thread")?;

    let first = sampler.next_tick().await?;
    let cgroups = first.sample.in_scope;
    let pressure = ticks::supported(&first).unwrap_or("off".into());
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(%cgroups, %pressure, "Reading {found}; serving {scheme}://{address}/");
    let (scored, scores) = watch::channel(None);
    let (adopt, adopted) = oneshot::channel();
    publishing::start(config, scores.clone(), adopt, &scrapes).await?;
    let scorer = Scorer::new(config.counted.clone());
    let ticks = ticks::follow(sampler.clone(), first, scorer, scored, adopted, &scrapes);
    let service = Service::new(sampler, pods, scores, Arc::clone(&scrapes));
    let service = service.with_doors(config.doors.rules(), gate);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::select! {
        () = serve(listener, tls, service, stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        ended = ticks => ended,
    }
}

/// On all addresses of a host without IPv6, those of IPv4 are meant.
async fn listen<L, F: Future<Output = std::io::Result<L>>>(
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> F,
) -> std::io::Result<L> {
    let bound = bind(address).await;
    if bound.is_ok() || address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return bound;
    }
    bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).await.or(bound)
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

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::io::Error;

    /// Where it listens on a host that has no IPv6, or on which every port is taken.
    async fn listened(address: &str, everything_is_taken: bool) -> Result<SocketAddr, Option<i32>> {
        let bind = |address: SocketAddr| async move {
            match address {
                SocketAddr::V6(_) => Err(Error::from_raw_os_error(Errno::EAFNOSUPPORT as i32)),
                SocketAddr::V4(_) if everything_is_taken => {
                    Err(Error::from_raw_os_error(Errno::EADDRINUSE as i32))
                }
                SocketAddr::V4(_) => Ok(address),
            }
        };
        let address = address.parse().unwrap();
        listen(address, bind).await.map_err(|error| error.raw_os_error())
    }

    #[tokio::test]
    async fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let ipv4 = "0.0.0.0:9942".parse().unwrap();
        assert_eq!(listened("[::]:9942", false).await, Ok(ipv4));
        let without = Err(Some(Errno::EAFNOSUPPORT as i32));
        assert_eq!(listened("[::]:9942", true).await, without);
        // One address that was named is that and no other.
        assert_eq!(listened("[::1]:9942", false).await, without);
    }
}
