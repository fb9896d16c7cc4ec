//! Metrics and log messages of readings: their number, time and errors, and what the kernel provides.

use std::time::Duration;

use prometheus::{CounterVec, GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Result};

use super::group::{Group, signed};
use crate::agent_status::SharedStatus;
use crate::client::snapshot::DatedError;
use crate::clock::Moment;
use crate::error_log::{ErrorLog, key_of};
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::resource::PerResource;
use crate::sample::PassReport;

/// Reasons to read the node.
pub(super) const TICK: &str = "tick";
pub(super) const SCRAPE: &str = "scrape";

/// Kinds of read errors that have an alert.
const ALERTED_KINDS: [&str; 3] = ["refused", "malformed", "failed"];

#[derive(Debug)]
pub(super) struct Readings {
    counts: IntCounterVec,
    seconds: CounterVec,
    cgroups: IntGauge,
    watches: IntGauge,
    unwatched: IntGauge,
    overflows: IntCounter,
    errors: IntCounterVec,
    log: ErrorLog,
    pressure_supported: GaugeVec,
    status: SharedStatus,
}

impl Readings {
    pub(super) fn new(group: Group<'_>, status: &SharedStatus) -> Result<Self> {
        let help = "Time spent reading the node and its cgroups, by reason, in seconds.";
        let seconds = Opts::new("psi_agent_sample_seconds_total", help);
        let seconds = group.add(CounterVec::new(seconds, &["reason"]))?;
        for reason in [TICK, SCRAPE] {
            seconds.with_label_values(&[reason]);
        }
        Ok(Self {
            counts: group.counters(
                "psi_agent_samples_total",
                "Readings of the node and its cgroups, by reason.",
                "reason",
                &[TICK, SCRAPE],
            )?,
            seconds,
            cgroups: group.gauge("psi_agent_cgroups", "Number of cgroups in scope.")?,
            watches: group.gauge(
                "psi_agent_watched_directories",
                "Cgroup directories watched by inotify.",
            )?,
            unwatched: group.gauge(
                "psi_agent_unwatched_directories",
                "Cgroup directories without an inotify watch; if there are any, all are rescanned every 5 s.",
            )?,
            overflows: group.counter(
                "psi_agent_watch_overflows_total",
                "Overflows of the inotify queue, each followed by a rescan of all cgroups.",
            )?,
            errors: group.counters(
                "psi_agent_read_errors_total",
                "Failures to read kernel files, and dropped rows, by kind.",
                "kind",
                &ALERTED_KINDS,
            )?,
            log: ErrorLog::default(),
            pressure_supported: group.gauges(
                "psi_agent_pressure_supported",
                "Whether the kernel reports the node's pressure of this resource (1) or not (0).",
                &["resource"],
            )?,
            status: status.clone(),
        })
    }

    pub(super) fn observe(
        &self,
        reason: &str,
        took: Duration,
        report: &PassReport,
        reports: PerResource<bool>,
        moment: Moment,
    ) {
        self.counts.with_label_values(&[reason]).inc();
        self.seconds.with_label_values(&[reason]).inc_by(took.as_secs_f64());
        self.cgroups.set(signed(report.in_scope));
        self.watches.set(signed(report.tree.watches));
        self.unwatched.set(signed(report.tree.unwatched));
        let before = self.overflows.get();
        self.overflows.inc_by(report.tree.overflows.saturating_sub(before));
        if let Some(error) = report.errors.last() {
            let error = DatedError { message: error.to_string(), at_ms: moment.unix_ms };
            self.status.send_modify(|status| status.last_read_error = Some(error));
        }
        for error in &report.errors {
            self.count_errors(error.kind.into_str(), 1);
            if let Some(suppressed) = self.log.suppressed_before(key_of(error.kind), moment.at) {
                tracing::warn!(%error, suppressed, "Cannot read");
            }
        }
        self.count_errors("malformed", report.dropped_io_rows);
        for resource in Resource::ALL {
            let gauge = self.pressure_supported.with_label_values(&[resource.into_str()]);
            gauge.set(f64::from(u8::from(*reports.of(resource))));
        }
    }

    fn count_errors(&self, kind: &'static str, count: u64) {
        self.errors.with_label_values(&[kind]).inc_by(count);
        self.status.send_modify(|status| {
            *status.read_errors.entry(kind.into()).or_default() += count;
        });
    }
}
