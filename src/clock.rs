//! The one place that reads the clocks. Everything else takes time as an argument.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use jiff::Timestamp;

/// One moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic clock, for intervals.
    pub at: Instant,
    /// The wall clock, milliseconds since the epoch.
    pub unix_ms: u64,
}

impl Moment {
    /// The wall clock as a date.
    pub fn timestamp(self) -> Timestamp {
        let milliseconds = i64::try_from(self.unix_ms).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX)
    }
}

/// The current time on both clocks.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clocks")]
pub fn now() -> Moment {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unix_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    Moment { at: Instant::now(), unix_ms }
}

/// Reads the clocks for a collector, which dates each reading. It is [`now`] but in tests.
pub type Clock = Arc<dyn Fn() -> Moment + Send + Sync>;
