//! The metrics of the process, which agent and bridge have: `process_*`, `psi_agent_build_info` and
//! dropped lines of the log.

use std::iter::once;
use std::sync::OnceLock;

use tracing_appender::non_blocking::ErrorCounter;

use crate::kernel::own_process::OwnProcess;
use crate::text_format::Number::{Float, Whole};
use crate::text_format::{FamiliesOf, families, write_families};

/// Counts the lines that the log of this process drops. A process has at most one log.
pub(crate) static DROPPED_LINES: OnceLock<ErrorCounter> = OnceLock::new();

static PROCESS: &FamiliesOf<OwnProcess> = families! {
    "process_cpu_seconds_total" = |own, lines| lines.write(&[], Float(own.cpu_seconds)),
        "Total user and system CPU time spent in seconds.";
    "process_open_fds" = |own, lines| lines.write(&[], Whole(own.open_fds)),
        "Number of open file descriptors.";
    "process_max_fds" = |own, lines| lines.write(&[], own.max_fds.map(Whole)),
        "Maximum number of open file descriptors.";
    "process_resident_memory_bytes" = |own, lines| lines.write(&[], Whole(own.resident_bytes)),
        "Resident memory size in bytes.";
    "process_virtual_memory_bytes" = |own, lines| lines.write(&[], Whole(own.virtual_bytes)),
        "Virtual memory size in bytes.";
    "process_start_time_seconds" = |own, lines| lines.write(&[], Float(own.start_time_s)),
        "Start time of the process since unix epoch in seconds.";
};

static PROGRAM: &FamiliesOf<()> = families! {
    "psi_agent_build_info" =
        |(), lines| lines.write(&[("version", env!("CARGO_PKG_VERSION"))], Whole(1)),
        "Version of the agent in the label version; always 1.";
    "psi_agent_log_lines_dropped_total" = |(), lines| {
            let dropped = DROPPED_LINES.get().map_or(0, ErrorCounter::dropped_lines);
            lines.write(&[], Whole(dropped as u64));
        },
        "Lines of the log that were dropped because stderr was blocked.";
};

/// Appends the metrics. Those of the process are absent if its files can't be read.
pub(super) fn write_process(chunks: &mut Vec<Vec<u8>>) {
    if let Ok(process) = OwnProcess::read() {
        write_families(chunks, PROCESS, once(&process));
    }
    write_families(chunks, PROGRAM, once(&()));
}
