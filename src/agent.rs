//! `psi-agent run`: starts the sampling thread and the HTTP server, and decides what is fatal.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::config::Config;
use crate::host::Host;
use crate::identity::pod_index::PodIndex;
use crate::identity::pods_file::{PodsFile, PodsFileError};
use crate::kernel::cgroup_dir::Resource;
use crate::output::http::{Service, serve};
use crate::output::scrape::Scrapes;
use crate::sampler::{Sampler, TICK_INTERVAL, Tick};
use crate::self_health::{Reason, SelfHealth};

/// How soon a changed file of pods is seen.
const PODS_FILE_INTERVAL: Duration = Duration::from_secs(1);

/// Where the newest pods are told.
type PodsTold = watch::Sender<Option<Arc<PodIndex>>>;

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
    let (told, pods) = watch::channel(None);
    if let Some(path) = &config.pods_file {
        let mut file = PodsFile::new(path);
        let mut index = PodIndex::default();
        take_pods(&mut file, &mut index, &told)?;
        tokio::spawn(follow_pods_file(file, index, told));
    }
    let mut sampler = Sampler::start(host.into_reader(config), pods, TICK_INTERVAL)
        .context("cannot start the sampling thread")?;

    let first = sampler.next_tick().await?;
    let cgroups = first.sample.cgroups.len();
    let pressure = supported(&first).unwrap_or("off".into());
    tracing::info!(%cgroups, %pressure, "Reading {found}; serving http://{address}/");
    let service = Service::new(sampler.clone(), Arc::clone(&scrapes));
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

/// Reads the file of pods again whenever it changes. One that does not read is said once; what was
/// read before stays true.
async fn follow_pods_file(mut file: PodsFile, mut index: PodIndex, told: PodsTold) {
    let mut complained = false;
    loop {
        tokio::time::sleep(PODS_FILE_INTERVAL).await;
        match take_pods(&mut file, &mut index, &told) {
            Ok(()) => complained = false,
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%error, "Cannot follow the pods");
                }
            }
        }
    }
}

fn take_pods(
    file: &mut PodsFile,
    index: &mut PodIndex,
    told: &PodsTold,
) -> Result<(), PodsFileError> {
    if let Some(pods) = file.read_if_changed()? {
        index.replace(&pods);
        told.send_replace(Some(Arc::new(index.clone())));
    }
    Ok(())
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
