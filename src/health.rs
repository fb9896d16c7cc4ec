//! The agent's own metrics, and log messages about errors. They use the prometheus crate. The
//! series of cgroups do not, since they are too many (docs/dependencies.md).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use crate::clock::Moment;
use crate::kernel::ReadErrorKind;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::resource::PerResource;
use crate::sample::{PassReport, ScrapeSample, Tick};
use crate::score::NodeScore;
pub use access::{Certificates, Reviews};
pub use candidates::CandidateView;
use error_log::ErrorLog;
use pods::PodMetrics;
use process::{ProcessMetrics, register_build_info};
pub use publishes::Publishes;
use registry::{counters, locked, registered, signed};
use samples::{Reason, Samples};
pub use view::{DatedError, HealthView, PublishView, PublishedValue};

mod access;
pub mod bridge;
mod candidates;
mod error_log;
mod pods;
pub(crate) mod process;
mod publishes;
mod registry;
mod samples;
mod view;

const READ_ERRORS: (&str, &str) =
    ("psi_agent_read_errors_total", "Failures to read kernel files, and dropped rows, by kind.");

/// Kinds of read errors that have an alert.
const ALERTED_KINDS: [&str; 3] = ["refused", "malformed", "failed"];

/// Features whose metrics are exported only where the feature is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A source of pods: the API server or a file.
    Pods,
    /// `--publish=dry-run`.
    DryRun,
    /// `--publish=on`.
    Publishing,
    /// `--mark-candidate`.
    Candidate,
    /// `--auth=kubernetes`.
    TokenReviews,
    /// TLS certificates.
    Tls,
}

#[derive(Debug)]
pub struct Health {
    registry: Registry,
    cgroups: IntGauge,
    pods: PodMetrics,
    last_errors: Mutex<LastErrors>,
    pub publishes: Publishes,
    pub reviews: Reviews,
    pub certificates: Certificates,
    watches: IntGauge,
    unwatched: IntGauge,
    overflows: IntCounter,
    read_errors: IntCounterVec,
    cgroup2: IntGauge,
    pressure_supported: GaugeVec,
    hidden: GaugeVec,
    levels: GaugeVec,
    samples: Samples,
    process: ProcessMetrics,
    error_log: Mutex<ErrorLog>,
}

#[derive(Debug, Default)]
struct LastErrors {
    read_counts: BTreeMap<&'static str, u64>,
    last_read: Option<DatedError>,
    pods: Option<DatedError>,
}

impl Health {
    /// Metrics that every agent has. [`Health::export`] adds those of features.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        register_build_info(&registry)?;
        let counter = |name, help| registered(&registry, IntCounter::new(name, help)?);
        let gauge = |name, help| registered(&registry, IntGauge::new(name, help)?);
        let by = |label, name, help| {
            registered(&registry, GaugeVec::new(Opts::new(name, help), &[label])?)
        };
        Ok(Self {
            cgroups: gauge("psi_agent_cgroups", "Number of cgroups in scope.")?,
            last_errors: Mutex::default(),
            pods: PodMetrics::new()?,
            publishes: Publishes::new()?,
            reviews: Reviews::new()?,
            certificates: Certificates::new()?,
            watches: gauge(
                "psi_agent_watched_directories",
                "Cgroup directories watched by inotify.",
            )?,
            unwatched: gauge(
                "psi_agent_unwatched_directories",
                "Cgroup directories without an inotify watch; if there are any, all are rescanned every 5 s.",
            )?,
            overflows: counter(
                "psi_agent_watch_overflows_total",
                "Overflows of the inotify queue, each followed by a rescan of all cgroups.",
            )?,
            read_errors: registered(&registry, counters(READ_ERRORS, "kind", &ALERTED_KINDS)?)?,
            cgroup2: gauge(
                "psi_agent_cgroup_v2",
                "Whether the node has cgroup v2 (1) or not (0). Without it there is no score.",
            )?,
            pressure_supported: by(
                "resource",
                "psi_agent_pressure_supported",
                "Whether the kernel reports the node's pressure of this resource (1) or not (0).",
            )?,
            hidden: by(
                "resource",
                "psi_agent_hidden_containers",
                "Scored containers whose waiting is unknown, since their files or threads could not be read.",
            )?,
            levels: by(
                "level",
                "psi_agent_level_threshold",
                "Score at which the level begins, 0 to 1; --levels divided by 100.",
            )?,
            samples: Samples::new(&registry)?,
            process: ProcessMetrics::new(&registry)?,
            registry,
            error_log: Mutex::default(),
        })
    }

    /// Exports the metrics of a feature that is in use.
    pub fn export(&self, feature: Feature) -> prometheus::Result<()> {
        let registry = &self.registry;
        match feature {
            Feature::Pods => self.pods.register(registry),
            Feature::DryRun => self.publishes.register_dry_run(registry),
            Feature::Publishing => self.publishes.register(registry),
            Feature::Candidate => self.publishes.candidates.register_writes(registry),
            Feature::TokenReviews => self.reviews.register(registry),
            Feature::Tls => self.certificates.register(registry),
        }
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
        self.samples.count(Reason::Tick, tick.took);
        self.observe(&tick.report, tick.node.reports, tick.moment);
    }

    #[allow(clippy::cast_precision_loss, reason = "2^52 is far beyond any number of containers")]
    pub fn observe_score(&self, score: &NodeScore) {
        for resource in Resource::ALL {
            let hidden = *score.hidden.of(resource) as f64;
            self.hidden.with_label_values(&[resource.word()]).set(hidden);
        }
    }

    pub fn observe_scrape(&self, sample: &ScrapeSample, took: Duration) {
        self.samples.count(Reason::Scrape, took);
        let reports = sample.node.pressure.map(|reading| reading.is_some());
        self.observe(&sample.report, reports, sample.moment);
    }

    fn observe(&self, report: &PassReport, reports: PerResource<bool>, moment: Moment) {
        self.cgroups.set(signed(report.in_scope));
        if let Some(matching) = report.matching {
            self.pods.observe(matching);
        }
        self.watches.set(signed(report.tree.watches));
        self.unwatched.set(signed(report.tree.unwatched));
        let before = self.overflows.get();
        self.overflows.inc_by(report.tree.overflows.saturating_sub(before));
        if let Some(error) = report.errors.last() {
            let (message, at_ms) = (error.to_string(), moment.unix_ms);
            locked(&self.last_errors).last_read = Some(DatedError { message, at_ms });
        }
        let mut log = locked(&self.error_log);
        for error in &report.errors {
            self.count_read_errors(error.kind.word(), 1);
            if let Some(suppressed) = log.suppressed_before(error.kind, moment.at) {
                tracing::warn!(%error, suppressed, "Cannot read");
            }
        }
        self.count_read_errors("malformed", report.dropped_io_rows);
        for resource in Resource::ALL {
            let gauge = self.pressure_supported.with_label_values(&[resource.word()]);
            gauge.set(f64::from(u8::from(*reports.of(resource))));
        }
    }

    fn count_read_errors(&self, kind: &'static str, count: u64) {
        self.read_errors.with_label_values(&[kind]).inc_by(count);
        *locked(&self.last_errors).read_counts.entry(kind).or_default() += count;
    }

    /// Records that the pods were listed or changed, which ends an earlier error.
    pub fn pods_received(&self) {
        if locked(&self.last_errors).pods.take().is_some() {
            tracing::info!("Receiving pods again");
        }
    }

    /// Records that the pods could not be listed or watched at `at_ms`, milliseconds since the
    /// epoch. Logs the error once until [`Health::pods_received`].
    pub fn pods_failed(&self, error: &dyn Display, at_ms: u64) {
        self.pods.errors.inc();
        let dated = DatedError { message: error.to_string(), at_ms };
        if locked(&self.last_errors).pods.replace(dated).is_none() {
            tracing::warn!(%error, "Cannot follow the pods; the latest list stays in use");
        }
    }

    pub fn view(&self) -> HealthView {
        let last_errors = locked(&self.last_errors);
        let count = |kind| (kind, last_errors.read_counts.get(kind).copied().unwrap_or_default());
        HealthView {
            read_errors: ReadErrorKind::WORDS.map(count).into(),
            last_read_error: last_errors.last_read.clone(),
            pods_error: last_errors.pods.clone(),
            publish: self.publishes.view(),
        }
    }

    /// Appends the metrics in the text format.
    pub fn render(&self, text: &mut Vec<u8>) -> prometheus::Result<()> {
        self.process.update();
        TextEncoder::new().encode(&self.registry.gather(), text)
    }
}
