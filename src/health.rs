//! The agent's own metrics, and log messages about errors. They use the prometheus crate; series of
//! cgroups don't, for their number (README, Choices).

use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry, TextEncoder,
};

use crate::clock::Moment;
use crate::kernel::ReadErrorKind;
use crate::kernel::cgroup_dir::Resource;
use crate::sample::{NodeSample, PassReport, ScrapeSample, TickSample};
pub use access::{Certificates, Reviews};
use error_log::ErrorLog;
use matching::MatchingMetrics;
use process::{ProcessMetrics, register_build_info};
pub use publishes::Publishes;
use registry::{counters, locked, registered, signed};
pub use view::{DatedError, HealthView, PublishView, PublishedValue};

mod access;
pub mod bridge;
mod error_log;
mod matching;
pub(crate) mod process;
mod publishes;
mod registry;
mod view;

const READ_ERRORS: (&str, &str) =
    ("psi_agent_read_errors_total", "Failures to read kernel files, and dropped rows, by kind.");

#[derive(Debug)]
pub struct Health {
    registry: Registry,
    cgroups: IntGauge,
    matching: MatchingMetrics,
    pod_errors: IntCounter,
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
    hidden: IntGauge,
    tick_seconds: Histogram,
    scrape_seconds: Histogram,
    process: ProcessMetrics,
    error_log: Mutex<ErrorLog>,
}

#[derive(Debug, Default)]
struct LastErrors {
    last_read: Option<DatedError>,
    pods: Option<DatedError>,
}

impl Health {
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        register_build_info(&registry)?;
        let durations = sample_durations(&registry)?;
        let read_errors = counters(&registry, READ_ERRORS, "kind", ReadErrorKind::WORDS)?;
        let pressure_supported = GaugeVec::new(
            Opts::new(
                "psi_agent_pressure_supported",
                "Whether the kernel reports the node's pressure of this resource (1) or not (0).",
            ),
            &["resource"],
        )?;
        let counter = |name, help| registered(&registry, IntCounter::new(name, help)?);
        let gauge = |name, help| registered(&registry, IntGauge::new(name, help)?);
        Ok(Self {
            cgroups: gauge("psi_agent_cgroups", "Cgroups in scope.")?,
            pod_errors: counter(
                "psi_agent_pod_watch_errors_total",
                "Failures to list or watch pods, or to read them from a file.",
            )?,
            last_errors: Mutex::default(),
            matching: MatchingMetrics::new(&registry)?,
            publishes: Publishes::new(&registry)?,
            reviews: Reviews::new(&registry)?,
            certificates: Certificates::new(&registry)?,
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
            read_errors,
            cgroup2: gauge(
                "psi_agent_cgroup_v2",
                "Whether the node has cgroup v2 (1) or not (0). Without it there is no score.",
            )?,
            pressure_supported: registered(&registry, pressure_supported)?,
            hidden: gauge(
                "psi_agent_hidden_containers",
                "Scored containers whose threads could not be read in full, so without run delay.",
            )?,
            tick_seconds: durations.with_label_values(&["tick"]),
            scrape_seconds: durations.with_label_values(&["scrape"]),
            process: ProcessMetrics::new(&registry)?,
            registry,
            error_log: Mutex::default(),
        })
    }

    pub fn set_cgroup2(&self, has: bool) {
        self.cgroup2.set(i64::from(has));
    }

    pub fn observe_tick(&self, sample: &TickSample, took: Duration) {
        self.tick_seconds.observe(took.as_secs_f64());
        self.hidden.set(signed(sample.hidden_containers));
        self.observe(&sample.report, &sample.node, sample.moment);
    }

    pub fn observe_scrape(&self, sample: &ScrapeSample, took: Duration) {
        self.scrape_seconds.observe(took.as_secs_f64());
        self.observe(&sample.report, &sample.node, sample.moment);
    }

    fn observe(&self, report: &PassReport, node: &NodeSample, moment: Moment) {
        self.cgroups.set(signed(report.in_scope));
        if let Some(matching) = report.matching {
            self.matching.observe(matching);
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
            self.read_errors.with_label_values(&[error.kind.word()]).inc();
            if let Some(suppressed) = log.suppressed_before(error.kind, moment.at) {
                tracing::warn!(%error, suppressed, "Cannot read");
            }
        }
        self.read_errors.with_label_values(&["malformed"]).inc_by(report.dropped_io_rows);
        for resource in Resource::ALL {
            let supported = node.pressure.pressures.of(resource).is_some();
            let gauge = self.pressure_supported.with_label_values(&[resource.word()]);
            gauge.set(f64::from(u8::from(supported)));
        }
    }

    /// The pods were listed or changed: an error before is over.
    pub fn pods_received(&self) {
        if locked(&self.last_errors).pods.take().is_some() {
            tracing::info!("Receiving pods again");
        }
    }

    /// The pods could not be listed or watched at this time, milliseconds since the epoch. Logged
    /// once until [`Health::pods_received`].
    pub fn pods_failed(&self, error: &dyn Display, at_ms: u64) {
        self.pod_errors.inc();
        let dated = DatedError { message: error.to_string(), at_ms };
        if locked(&self.last_errors).pods.replace(dated).is_none() {
            tracing::warn!(%error, "Cannot follow the pods; the latest list stays in use");
        }
    }

    pub fn view(&self) -> HealthView {
        let count =
            |&kind: &&'static str| (kind, self.read_errors.with_label_values(&[kind]).get());
        let last_errors = locked(&self.last_errors);
        HealthView {
            read_errors: ReadErrorKind::WORDS.iter().map(count).collect(),
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

fn sample_durations(registry: &Registry) -> prometheus::Result<HistogramVec> {
    let options = HistogramOpts::new(
        "psi_agent_sample_duration_seconds",
        "Time to read the node and its cgroups, by reason, in seconds.",
    );
    let options = options.buckets(vec![0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]);
    registered(registry, HistogramVec::new(options, &["reason"])?)
}
