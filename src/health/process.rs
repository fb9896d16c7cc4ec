//! The metrics `process_*` and `psi_agent_build_info`.

use prometheus::{Counter, Gauge, IntGauge, Opts, Registry};

use super::registry::registered;
use crate::kernel::own_process::OwnProcess;

/// `None` leaves the gauge as it is.
type Value = fn(&OwnProcess) -> Option<f64>;

#[allow(clippy::cast_precision_loss, reason = "sizes of one process stay below 2^52")]
const GAUGES: [(&str, &str, Value); 6] = [
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
    ("process_threads", "Number of OS threads in the process.", |own| Some(own.threads as f64)),
    (
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        |own| Some(own.start_time_s),
    ),
];

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    gauges: Vec<(Gauge, Value)>,
}

impl ProcessMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Total user and system CPU time spent in seconds.";
        let cpu_seconds = registered(registry, Counter::new("process_cpu_seconds_total", help)?)?;
        let gauges = GAUGES.iter().map(|&(name, help, value)| {
            Ok((registered(registry, Gauge::new(name, help)?)?, value))
        });
        Ok(Self { cpu_seconds, gauges: gauges.collect::<prometheus::Result<_>>()? })
    }

    /// Reads the process anew, if its files can be read.
    pub(super) fn update(&self) {
        let Ok(process) = OwnProcess::read() else { return };
        self.cpu_seconds.inc_by((process.cpu_seconds - self.cpu_seconds.get()).max(0.0));
        for (gauge, value) in &self.gauges {
            value(&process).into_iter().for_each(|value| gauge.set(value));
        }
    }
}

pub(super) fn register_build_info(registry: &Registry) -> prometheus::Result<()> {
    let options = Opts::new("psi_agent_build_info", "Always 1, labelled by the agent's version.");
    let options = options.const_label("version", env!("CARGO_PKG_VERSION"));
    registered(registry, IntGauge::with_opts(options)?)?.set(1);
    Ok(())
}
