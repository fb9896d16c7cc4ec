//! The metrics of the process, which agent and bridge have: `process_*`, `psi_agent_build_info` and
//! dropped lines of the log.

use std::sync::OnceLock;

use prometheus::{Counter, Gauge, IntCounter, IntGauge, Opts, Result};

use super::group::Group;
use crate::kernel::own_process::OwnProcess;

/// `None` leaves the gauge as it is.
type Value = fn(&OwnProcess) -> Option<f64>;

#[allow(clippy::cast_precision_loss, reason = "sizes of one process stay below 2^52")]
const GAUGES: [(&str, &str, Value); 5] = [
    ("process_open_fds", "Number of open file descriptors.", |own| Some(own.open_fds as f64)),
    ("process_max_fds", "Maximum number of open file descriptors.", |own| {
        own.max_fds.map(|max| max as f64)
    }),
    ("process_resident_memory_bytes", "Resident memory size in bytes.", |own| {
        Some(own.resident_bytes as f64)
    }),
    ("process_virtual_memory_bytes", "Virtual memory size in bytes.", |own| {
        Some(own.virtual_bytes as f64)
    }),
    (
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        |own| Some(own.start_time_s),
    ),
];

/// Returns the number of lines that the log of this process has dropped. A process has at most one
/// log.
static DROPPED_LINES: OnceLock<Box<dyn Fn() -> usize + Send + Sync>> = OnceLock::new();

/// Counts the lines that the log drops from now on.
pub(crate) fn count_dropped_lines(dropped: impl Fn() -> usize + Send + Sync + 'static) {
    DROPPED_LINES.get_or_init(|| Box::new(dropped));
}

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    dropped_lines: IntCounter,
    gauges: Vec<(Gauge, Value)>,
}

impl ProcessMetrics {
    pub(super) fn new(group: Group<'_>) -> Result<Self> {
        let help = "Version of the agent in the label version; always 1.";
        let build = Opts::new("psi_agent_build_info", help)
            .const_label("version", env!("CARGO_PKG_VERSION"));
        group.add(IntGauge::with_opts(build))?.set(1);
        let help = "Total user and system CPU time spent in seconds.";
        let gauges = GAUGES
            .iter()
            .map(|&(name, help, value)| Ok((group.add(Gauge::new(name, help))?, value)));
        Ok(Self {
            cpu_seconds: group.add(Counter::new("process_cpu_seconds_total", help))?,
            dropped_lines: group.counter(
                "psi_agent_log_lines_dropped_total",
                "Lines of the log that were dropped because stderr was blocked.",
            )?,
            gauges: gauges.collect::<Result<_>>()?,
        })
    }

    /// Updates the metrics. They stay as they are if the files of the process can't be read.
    pub(super) fn update(&self) {
        let dropped = DROPPED_LINES.get().map_or(0, |dropped| dropped());
        let dropped = u64::try_from(dropped).unwrap_or(u64::MAX);
        self.dropped_lines.inc_by(dropped.saturating_sub(self.dropped_lines.get()));
        let Ok(process) = OwnProcess::read() else { return };
        self.cpu_seconds.inc_by((process.cpu_seconds - self.cpu_seconds.get()).max(0.0));
        for (gauge, value) in &self.gauges {
            value(&process).into_iter().for_each(|value| gauge.set(value));
        }
    }
}
