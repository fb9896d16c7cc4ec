//! `psi-agent once`: prints the metrics, with the score of a single window.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::clock;
use crate::config::Config;
use crate::export::scrape::Scrapes;
use crate::health::{Feature, Health};
use crate::host::Host;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::resource::PerResource;
use crate::pod_source::read_now;
use crate::rates::tick_rates;
use crate::relief::Assessor;
use crate::sample::{CpuSource, Detail, TickSample};
use crate::score::NodeScore;

/// Length of the score's window: the kernel's averaging period.
const WINDOW: Duration = Duration::from_secs(2);

/// Reads the node twice, 2 s apart, and writes the metrics to `out`, which may be closed
/// early.
pub fn once(config: &Config, out: &mut impl Write) -> anyhow::Result<()> {
    let host = Host::open(config)?;
    let (has_cgroup2, cpu_source) = (!host.node_alone, host.cpu_source);
    let mut collector = host.into_collector(config);
    let pods = read_now(&config.pods)?;
    let pods = pods.as_ref();
    let before = collector.tick(clock::now(), pods);
    std::thread::sleep(WINDOW);
    let after = collector.tick(clock::now(), pods);
    let sample = Arc::new(collector.scrape(clock::now(), Detail::Exported, pods));
    let took = clock::now().at.saturating_duration_since(sample.moment.at);
    let health = Health::new().context("cannot register the agent's own metrics")?;
    health.set_cgroup2(has_cgroup2);
    health.set_levels(config.thresholds.medium(), config.thresholds.high());
    if pods.is_some() {
        health.export(Feature::Pods).context("cannot register the metrics of pods")?;
    }
    if cpu_source == CpuSource::RunDelay {
        health.export(Feature::RunDelay).context("cannot register the metrics of run delay")?;
    }
    health.observe_scrape(&sample, took);
    let rates = tick_rates(&before, &after);
    let (counted, thresholds) = (config.counted.clone(), config.thresholds);
    let assessment = Assessor::of_one_window(counted, thresholds, after.moment, &rates);
    let score = &assessment.score;
    if score.score.is_none() {
        let reason = missing_score(score, &after, &config.counted, has_cgroup2);
        tracing::warn!("No score: {reason}; see `psi-agent check`");
    }
    let mut scrape =
        Scrapes::new(config.families.clone()).begin(sample, Some(&assessment), &health);
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

fn missing_score(
    score: &NodeScore,
    sample: &TickSample,
    counted: &[Resource],
    has_cgroup2: bool,
) -> String {
    let missing = counted.iter().filter(|resource| score.contention.of(**resource).is_none());
    let missing: Vec<&str> = missing.map(|resource| resource.word()).collect();
    let reason = if !has_cgroup2 {
        "the node has no cgroup v2"
    } else if sample.containers.is_none() {
        "the scored containers are not known"
    } else if sample.hidden_containers > 0 {
        "the processes of some containers are not visible"
    } else if sample.node.pressure.pressures == PerResource::default() {
        "the kernel reports no pressure"
    } else {
        "it could not be read in this window"
    };
    format!("the contention of {} is unknown, since {reason}", missing.join(" and "))
}
