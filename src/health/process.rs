//! The metrics `process_*` and `psi_agent_build_info`.

use prometheus::{Gauge, IntGauge, Opts, Registry};

use super::registry::registered;
use crate::kernel::own_process::OwnProcess;

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    cpu_seconds: prometheus::Counter,
    open_fds: Gauge,
    max_fds: Gauge,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    threads: Gauge,
    start_time: Gauge,
}

impl ProcessMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
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

    /// Reads the process anew, if its files can be read.
    #[allow(clippy::cast_precision_loss, reason = "sizes of one process stay below 2^52")]
    pub(super) fn update(&self) {
        let Ok(process) = OwnProcess::read() else { return };
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

pub(super) fn register_build_info(registry: &Registry) -> prometheus::Result<()> {
    let options = Opts::new("psi_agent_build_info", "Always 1, labelled by the agent's version.");
    let options = options.const_label("version", env!("CARGO_PKG_VERSION"));
    registered(registry, IntGauge::with_opts(options)?)?.set(1);
    Ok(())
}
