//! `psi-agent once`: prints the metrics, with the score of a single window.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::client::cluster::block_on;
use crate::client::output::print;
use crate::config::{OnceConfig, ScoreFlags};
use crate::export::http::scrape;
use crate::host::Host;
use crate::own_metrics::OwnMetrics;
use crate::pod_source::{connect, list};
use crate::relief::Assessor;
use crate::sample::Detail;

/// Length of the score's window: the kernel's averaging period.
const WINDOW: Duration = Duration::from_secs(2);

/// Reads the node twice, 2 s apart, and writes the metrics to `out`, which may be closed
/// early.
pub fn once(config: &OnceConfig, out: &mut impl Write) -> anyhow::Result<()> {
    let ScoreFlags { levels: thresholds, score_resources: counted } = &config.score;
    let host = Host::open(&config.source)?;
    let has_cgroup2 = !host.node_alone;
    let mut collector = host.into_collector(&config.source, Some(&config.export));
    let source = &config.source;
    let pods = block_on(async { list(source, connect(source).await?.as_ref()).await })?;
    let pods = pods.as_ref();
    let metrics = OwnMetrics::default();
    metrics.set_node(has_cgroup2, *thresholds);
    metrics.observe_tick(&collector.tick(pods));
    std::thread::sleep(WINDOW);
    let tick = collector.tick(pods);
    metrics.observe_tick(&tick);
    let sample = Arc::new(collector.scrape(Detail::Exported, pods));
    metrics.observe_scrape(&sample);
    let assessment = Assessor::of_one_window(counted.clone(), *thresholds, &tick);
    let score = &assessment.score;
    if let Some(missing) = score.missing(counted) {
        let remedy = missing.remedy();
        tracing::warn!("No score: {missing}: {remedy}; see `psi-agent check`");
    }
    for text in scrape(sample, &config.export.families(), Some(&assessment), &metrics) {
        print(text, out).context("cannot write the metrics")?;
    }
    Ok(())
}
