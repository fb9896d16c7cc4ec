//! The agent's and the bridge's own metrics, with the log messages about what they count. They use
//! the prometheus crate. The series of cgroups do not, since they are too many
//! (docs/dependencies.md).

use std::time::Duration;

use prometheus::{Encoder, GaugeVec, IntGauge, Registry, TextEncoder};

use crate::agent_status::{SharedStatus, shared};
use crate::client::snapshot::AgentStatus;
use crate::kernel::cgroup_dir::Resource;
use crate::sample::{ScrapeSample, Tick};
use crate::score::NodeScore;
pub use access::{Certificates, Reviews};
pub use group::Feature;
use group::Group;
pub use pods::Pods;
use process::ProcessMetrics;
pub use publishes::Publishes;
use readings::{Readings, SCRAPE, TICK};

mod access;
pub mod bridge;
mod candidates;
mod group;
mod pods;
pub(crate) mod process;
mod publishes;
mod readings;

#[derive(Debug)]
pub struct OwnMetrics {
    registry: Registry,
    readings: Readings,
    hidden: GaugeVec,
    cgroup2: IntGauge,
    levels: GaugeVec,
    pub pods: Pods,
    pub publishes: Publishes,
    pub reviews: Reviews,
    pub certificates: Certificates,
    process: ProcessMetrics,
    status: SharedStatus,
}

impl OwnMetrics {
    /// The metrics that every agent exports, and those of the features in use.
    pub fn new(features: &[Feature]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let all = Group::new(&registry, true);
        let of = |feature| Group::new(&registry, features.contains(&feature));
        let status = shared();
        Ok(Self {
            readings: Readings::new(all, &status)?,
            hidden: all.gauges(
                "psi_agent_hidden_containers",
                "Scored containers whose waiting is unknown, since their files or threads could not be read.",
                &["resource"],
            )?,
            cgroup2: all.gauge(
                "psi_agent_cgroup_v2",
                "Whether the node has cgroup v2 (1) or not (0). Without it there is no score.",
            )?,
            levels: all.gauges(
                "psi_agent_level_threshold",
                "Score at which the level begins, 0 to 1; --levels divided by 100.",
                &["level"],
            )?,
            pods: Pods::new(of(Feature::Pods), &status)?,
            publishes: Publishes::new(&registry, features, &status)?,
            reviews: Reviews::new(of(Feature::TokenReviews))?,
            certificates: Certificates::new(of(Feature::Tls))?,
            process: ProcessMetrics::new(all)?,
            registry,
            status,
        })
    }

    /// Sets the thresholds of the levels, given as points from 0 to 100.
    pub fn set_levels(&self, medium: u8, high: u8) {
        for (level, points) in [("medium", medium), ("high", high)] {
            self.levels.with_label_values(&[level]).set(f64::from(points) / 100.0);
        }
    }

    pub fn set_cgroup2(&self, has: bool) {
        self.cgroup2.set(i64::from(has));
    }

    pub fn observe_tick(&self, tick: &Tick) {
        self.readings.observe(TICK, tick.took, &tick.report, tick.node.reports, tick.moment);
        self.pods.observe(tick.report.matching);
    }

    #[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of containers")]
    pub fn observe_score(&self, score: &NodeScore) {
        for resource in Resource::ALL {
            let hidden = *score.hidden.of(resource) as f64;
            self.hidden.with_label_values(&[resource.into_str()]).set(hidden);
        }
    }

    pub fn observe_scrape(&self, sample: &ScrapeSample, took: Duration) {
        let reports = sample.node.pressure.map(|reading| reading.is_some());
        self.readings.observe(SCRAPE, took, &sample.report, reports, sample.moment);
        self.pods.observe(sample.report.matching);
    }

    pub fn status(&self) -> AgentStatus {
        self.status.borrow().clone()
    }

    /// Appends the metrics in the text format.
    pub fn render(&self, text: &mut Vec<u8>) -> prometheus::Result<()> {
        self.process.update();
        TextEncoder::new().encode(&self.registry.gather(), text)
    }
}
