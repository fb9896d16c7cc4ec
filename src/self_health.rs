//! The agent's view of itself: how long reading takes, what could not be read, what it costs.
//! These few series are the prometheus crate's work; the per-cgroup ones are not (README, Choices).

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, Opts, Registry, TextEncoder,
};

use crate::cluster::call::CallError;
use crate::doors::verdicts::Verdict;
use crate::kernel::ReadErrorKind;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::own_process::OwnProcess;
use crate::sample::{Moment, NodeSample, PassReport, ScrapeSample, TickSample};
use complaints::Complaints;
use doors::{Certificates, Reviews};
use publishes::Publishes;
pub use view::{HealthView, PublishView, PublishedValue, Trouble};

pub mod bridge;
mod complaints;
mod doors;
mod publishes;
mod view;

/// The agent's own metrics.
#[derive(Debug)]
pub struct SelfHealth {
    registry: Registry,
    cgroups: IntGauge,
    pods: IntGauge,
    pods_without_cgroup: IntGauge,
    cgroups_without_pod: IntGauge,
    pod_errors: IntCounter,
    troubles: Mutex<Troubles>,
    publishes: Publishes,
    reviews: Reviews,
    certificates: Certificates,
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
    complaints: Mutex<Complaints>,
}

#[derive(Debug, Default)]
struct Troubles {
    last_read: Option<Trouble>,
    pods: Option<Trouble>,
}

#[derive(Debug)]
struct ProcessMetrics {
    cpu_seconds: prometheus::Counter,
    open_fds: Gauge,
    max_fds: Gauge,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    threads: Gauge,
    start_time: Gauge,
}

impl SelfHealth {
    /// Registers all of them.
    ///
    /// # Errors
    /// Only when two of them had one name.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        register_build_info(&registry)?;
        let durations = sample_durations(&registry)?;
        let read_errors = read_errors(&registry)?;
        let pressure_supported = GaugeVec::new(
            Opts::new(
                "psi_agent_pressure_supported",
                "Whether the kernel tells the node's pressure of this resource (1) or not (0).",
            ),
            &["resource"],
        )?;
        let counter = |name, help| registered(&registry, IntCounter::new(name, help)?);
        let gauge = |name, help| registered(&registry, IntGauge::new(name, help)?);
        Ok(Self {
            cgroups: gauge("psi_agent_cgroups", "Cgroups in scope.")?,
            pod_errors: counter(
                "psi_agent_pod_watch_errors_total",
                "Times that who tells of pods (the API server, a file) did not.",
            )?,
            troubles: Mutex::default(),
            pods: gauge("psi_agent_pods", "Pods of this node that are known.")?,
            pods_without_cgroup: gauge(
                "psi_agent_pods_without_cgroup",
                "Pods of this node without a cgroup: not started yet, or ended.",
            )?,
            cgroups_without_pod: gauge(
                "psi_agent_cgroups_without_pod",
                "Cgroups whose series wait for their labels: pause containers, and what is new.",
            )?,
            publishes: Publishes::new(&registry)?,
            reviews: Reviews::new(&registry)?,
            certificates: Certificates::new(&registry)?,
            watches: gauge(
                "psi_agent_watched_directories",
                "Cgroup directories watched by inotify.",
            )?,
            unwatched: gauge(
                "psi_agent_unwatched_directories",
                "Cgroup directories that could not be watched: all are rescanned every 5 s then.",
            )?,
            overflows: counter(
                "psi_agent_watch_overflows_total",
                "Times that inotify's queue ran over, so that all cgroups were rescanned.",
            )?,
            read_errors,
            cgroup2: gauge(
                "psi_agent_cgroup_v2",
                "Whether there are cgroups of v2 to read (1) or not (0), and then no score either.",
            )?,
            pressure_supported: registered(&registry, pressure_supported)?,
            hidden: gauge(
                "psi_agent_hidden_containers",
                "Containers with tasks of which no process is to be seen, so no run delay either.",
            )?,
            tick_seconds: durations.with_label_values(&["tick"]),
            scrape_seconds: durations.with_label_values(&["scrape"]),
            process: ProcessMetrics::new(&registry)?,
            registry,
            complaints: Mutex::default(),
        })
    }

    /// Whether there are cgroups of v2 to read.
    pub fn has_cgroup2(&self, has: bool) {
        self.cgroup2.set(i64::from(has));
    }

    /// Takes in a tick.
    pub fn observe_tick(&self, sample: &TickSample, took: Duration) {
        self.tick_seconds.observe(took.as_secs_f64());
        self.hidden.set(signed(sample.hidden_containers));
        self.observe(&sample.report, &sample.node, sample.moment);
    }

    /// Takes in a scrape.
    pub fn observe_scrape(&self, sample: &ScrapeSample, took: Duration) {
        self.scrape_seconds.observe(took.as_secs_f64());
        self.observe(&sample.report, &sample.node, sample.moment);
    }

    fn observe(&self, report: &PassReport, node: &NodeSample, moment: Moment) {
        self.cgroups.set(signed(report.in_scope));
        if let Some(matching) = report.matching {
            self.pods.set(signed(matching.pods));
            self.pods_without_cgroup.set(signed(matching.pods_without_cgroup));
            self.cgroups_without_pod.set(signed(matching.cgroups_without_pod));
        }
        self.watches.set(signed(report.tree.watches));
        self.unwatched.set(signed(report.tree.unwatched));
        let before = self.overflows.get();
        self.overflows.inc_by(report.tree.overflows.saturating_sub(before));
        if let Some(error) = report.errors.last() {
            let (message, at_ms) = (error.to_string(), moment.unix_ms);
            locked(&self.troubles).last_read = Some(Trouble { message, at_ms });
        }
        let mut complaints = locked(&self.complaints);
        for error in &report.errors {
            self.read_errors.with_label_values(&[error.kind.word()]).inc();
            if let Some(unsaid) = complaints.hear(error, moment.at) {
                tracing::warn!(%error, unsaid, "Cannot read");
            }
        }
        self.read_errors.with_label_values(&["malformed"]).inc_by(report.dropped_io_rows);
        for resource in Resource::ALL {
            let supported = node.pressure.pressures.of(resource).is_some();
            let gauge = self.pressure_supported.with_label_values(&[resource.word()]);
            gauge.set(f64::from(u8::from(supported)));
        }
    }

    /// The pods were told: trouble is over.
    pub fn pods_told(&self) {
        if locked(&self.troubles).pods.take().is_some() {
            tracing::info!("The pods are told again");
        }
    }

    /// The pods were not told at this time, milliseconds since the epoch: counted each time, said
    /// once until it is over.
    pub fn pods_not_told(&self, error: &dyn Display, at_ms: u64) {
        self.pod_errors.inc();
        let trouble = Trouble { message: error.to_string(), at_ms };
        if locked(&self.troubles).pods.replace(trouble).is_none() {
            tracing::warn!(%error, "Cannot follow the pods; what was told before stays true");
        }
    }

    /// The agent was told to publish so: `on`, `dry-run` or `off`.
    pub fn publishing(&self, mode: &'static str) {
        self.publishes.begin(mode);
    }

    /// A value was written on the Node.
    pub fn published(&self, value: PublishedValue) {
        self.publishes.written(value);
    }

    /// A value would have been written, if it were not for a dry run.
    pub fn would_publish(&self, value: PublishedValue) {
        self.publishes.would_be_written(value);
    }

    /// It was not written at this time, milliseconds since the epoch: counted each time, each kind
    /// of trouble said once until it is over.
    pub fn not_published(&self, error: &CallError, at_ms: u64) {
        self.publishes.not_written(error, at_ms);
    }

    /// What people see of it.
    #[must_use]
    pub fn view(&self) -> HealthView {
        let count =
            |&kind: &&'static str| (kind, self.read_errors.with_label_values(&[kind]).get());
        let troubles = locked(&self.troubles);
        HealthView {
            read_errors: ReadErrorKind::WORDS.iter().map(count).collect(),
            last_read_error: troubles.last_read.clone(),
            pods_error: troubles.pods.clone(),
            publish: self.publishes.view(),
        }
    }

    /// A token was asked about, or there were too many to ask.
    pub fn reviewed(&self, verdict: Verdict) {
        self.reviews.reviewed(verdict);
    }

    /// The API server did not say whose a token is: counted each time, said once until it does.
    pub fn not_reviewed(&self, error: &CallError) {
        self.reviews.not_reviewed(error);
    }

    /// The certificate's files read; perhaps what they say is new.
    pub fn certificate_reads(&self, is_new: bool) {
        self.certificates.read(is_new);
    }

    /// They do not: counted each time, said once until they do.
    pub fn certificate_does_not_read(&self, error: &dyn Display) {
        self.certificates.do_not_read(error);
    }

    /// All of them as text.
    ///
    /// # Errors
    /// Only when a metric has no valid name.
    pub fn render(&self, text: &mut Vec<u8>) -> prometheus::Result<()> {
        if let Ok(process) = OwnProcess::read() {
            self.process.set(&process);
        }
        TextEncoder::new().encode(&self.registry.gather(), text)
    }
}

impl ProcessMetrics {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let cpu_seconds = prometheus::Counter::new(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
        )?;
        let gauge = |name, help| registered(registry, Gauge::new(name, help)?);
        Ok(Self {
            cpu_seconds: registered(registry, cpu_seconds)?,
            open_fds: gauge("process_open_fds", "Number of open file descriptors.")?,
            max_fds: gauge("process_max_fds", "Maximum number of open file descriptors.")?,
            resident_bytes: gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            )?,
            virtual_bytes: gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            threads: gauge("process_threads", "Number of OS threads in the process.")?,
            start_time: gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            )?,
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "sizes of one process stay below 2^52")]
    fn set(&self, process: &OwnProcess) {
        self.cpu_seconds.inc_by((process.cpu_seconds - self.cpu_seconds.get()).max(0.0));
        self.open_fds.set(process.open_fds as f64);
        if let Some(max) = process.max_fds {
            self.max_fds.set(max as f64);
        }
        self.resident_bytes.set(process.resident_bytes as f64);
        self.virtual_bytes.set(process.virtual_bytes as f64);
        self.threads.set(process.threads as f64);
        self.start_time.set(process.start_time_s);
    }
}

fn register_build_info(registry: &Registry) -> prometheus::Result<()> {
    let options = Opts::new("psi_agent_build_info", "Always 1, labelled by the agent's version.");
    let options = options.const_label("version", env!("CARGO_PKG_VERSION"));
    registered(registry, IntGauge::with_opts(options)?)?.set(1);
    Ok(())
}

fn sample_durations(registry: &Registry) -> prometheus::Result<HistogramVec> {
    let options = HistogramOpts::new(
        "psi_agent_sample_duration_seconds",
        "Time that reading the node and its cgroups took, by what asked for it.",
    );
    let options = options.buckets(vec![0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]);
    registered(registry, HistogramVec::new(options, &["reason"])?)
}

fn read_errors(registry: &Registry) -> prometheus::Result<IntCounterVec> {
    let options = Opts::new(
        "psi_agent_read_errors_total",
        "Kernel files that could not be read, and rows that were dropped, by kind.",
    );
    let errors = IntCounterVec::new(options, &["kind"])?;
    for kind in ReadErrorKind::WORDS {
        errors.with_label_values(&[kind]);
    }
    registered(registry, errors)
}

fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: M,
) -> prometheus::Result<M> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// What is kept behind these locks has no broken state.
fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
