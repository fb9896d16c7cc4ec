//! The log on stderr. A separate thread writes it, so that a full pipe behind stderr blocks no
//! other thread. Lines that do not fit in the queue are dropped and counted.

use std::io::{IsTerminal, stderr};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::config::{LogConfig, LogFormat};
use crate::own_metrics::process::DROPPED_LINES;

/// Maximum number of lines in the queue.
const QUEUE: usize = 1000;

/// Starts to log. When the guard is dropped, the lines in the queue are written, for at most 1 s.
pub fn start(config: LogConfig) -> WorkerGuard {
    let terminal = stderr().is_terminal();
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE);
    let (writer, guard) = queue.thread_name("log").finish(stderr());
    DROPPED_LINES.get_or_init(|| writer.error_counter());
    let variable = |name| std::env::var(name).unwrap_or_default();
    let coloured = terminal && variable("NO_COLOR").is_empty() && variable("TERM") != "dumb";
    let log = fmt::layer().with_writer(writer).with_target(false).with_ansi(coloured);
    // Messages of libraries are omitted: they log each failed request, and the agent logs an error
    // once.
    let quiet =
        Targets::new().with_default(LevelFilter::OFF).with_target("psi_agent", config.level);
    match config.format {
        LogFormat::Auto if terminal => registry().with(log.with_filter(quiet)).init(),
        LogFormat::Text => registry().with(log.with_filter(quiet)).init(),
        LogFormat::Auto | LogFormat::Json => registry().with(log.json().with_filter(quiet)).init(),
    }
    guard
}
