//! `psi-agent once`: two samples, the metrics of the later on stdout.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::config::Config;
use crate::host::Host;
use crate::output::scrape::Scrapes;
use crate::pod_source::read_now;
use crate::sample::Detail;
use crate::sampler::moment_now;
use crate::self_health::SelfHealth;

/// Between the two samples: the kernel's own averaging period.
const APART: Duration = Duration::from_secs(2);

/// Reads twice and writes the metrics to `out`. A reader that goes away is no error.
///
/// # Errors
/// What does not let it read, or a failing `out`.
pub fn once(config: &Config, out: &mut impl Write) -> anyhow::Result<()> {
    let host = Host::open(config)?;
    let has_cgroup2 = !host.node_alone;
    let mut collector = host.into_collector(config);
    let pods = read_now(&config.pods)?;
    collector.scrape(moment_now(), Detail::Exported, pods.as_ref());
    std::thread::sleep(APART);
    let moment = moment_now();
    let sample = Arc::new(collector.scrape(moment, Detail::Exported, pods.as_ref()));
    let took = moment_now().at.saturating_duration_since(moment.at);
    let health = SelfHealth::new().context("cannot register the agent's own metrics")?;
    health.has_cgroup2(has_cgroup2);
    health.observe_scrape(&sample, took);
    let mut scrape = Scrapes::new(config.families.clone(), health).begin(sample, None);
    let mut text = Vec::new();
    loop {
        let more = scrape.next_chunk(&mut text);
        match out.write_all(&text).and_then(|()| out.flush()) {
            Ok(()) => text.clear(),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error).context("cannot write the metrics"),
        }
        if !more {
            return Ok(());
        }
    }
}
