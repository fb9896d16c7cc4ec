//! The log on stderr. A thread of its own writes it, so that a full pipe behind stderr stops nothing
//! else: lines that do not fit the queue are dropped and counted.

use std::io::{IsTerminal, stderr};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::config::{LogConfig, LogFormat};
use crate::health::process::count_dropped_lines;

/// Lines that wait to be written.
const QUEUE: usize = 1000;

/// Starts to log. What is still in the queue is written when the guard is dropped, for at most a second.
pub fn start(config: LogConfig) -> WorkerGuard {
    let terminal = stderr().is_terminal();
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE);
    let (writer, guard) = queue.thread_name("log").finish(stderr());
    let dropped = writer.error_counter();
    count_dropped_lines(move || dropped.dropped_lines());
    let log = fmt::layer().with_writer(writer).with_target(false).with_ansi(terminal);
    // Libraries log each failed request, the agent logs an error once.
    let quiet =
        Targets::new().with_default(LevelFilter::OFF).with_target("psi_agent", config.level);
    match config.format {
        LogFormat::Auto if terminal => registry().with(log.with_filter(quiet)).init(),
        LogFormat::Text => registry().with(log.with_filter(quiet)).init(),
        LogFormat::Auto | LogFormat::Json => registry().with(log.json().with_filter(quiet)).init(),
    }
    guard
}
