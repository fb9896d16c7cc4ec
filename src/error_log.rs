//! Limits how often repeated errors are logged. Pure: the callers log.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::kernel::ReadErrorKind;

const REPEAT_EVERY: Duration = Duration::from_secs(600);

/// The kind of an error, and its errno.
pub type ErrorKey = (&'static str, Option<i32>);

/// When errors were last logged, by kind and errno. Both are closed sets, so the map stays small,
/// whatever the names of cgroups are.
#[derive(Debug, Default)]
pub struct ErrorLog(Mutex<HashMap<ErrorKey, LogEntry>>);

#[derive(Debug)]
struct LogEntry {
    at: Instant,
    suppressed: u64,
}

impl ErrorLog {
    /// The number of errors of this kind that were suppressed since the last logged one; `None` if
    /// this error is to be suppressed, too.
    pub fn suppressed_before(&self, key: ErrorKey, now: Instant) -> Option<u64> {
        let mut entries = locked(&self.0);
        let logged = entries.get_mut(&key);
        match logged {
            Some(logged) if now.saturating_duration_since(logged.at) < REPEAT_EVERY => {
                logged.suppressed += 1;
                None
            }
            _ => {
                let suppressed = logged.map_or(0, |logged| logged.suppressed);
                entries.insert(key, LogEntry { at: now, suppressed: 0 });
                Some(suppressed)
            }
        }
    }
}

/// The kind of failure that was logged since the last success. Each kind is logged once.
#[derive(Debug, Default)]
pub struct FailureLog(Mutex<Option<&'static str>>);

impl FailureLog {
    /// Records a failure. Returns whether it is to be logged.
    pub fn failed(&self, kind: &'static str) -> bool {
        locked(&self.0).replace(kind) != Some(kind)
    }

    /// Records a success. Returns whether it ends a failure.
    pub fn succeeded(&self) -> bool {
        locked(&self.0).take().is_some()
    }
}

/// Locks a state, which is valid even after a panic.
fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key of a failure to read a file.
pub fn key_of(error: ReadErrorKind) -> ErrorKey {
    let errno = match error {
        ReadErrorKind::Vanished(errno)
        | ReadErrorKind::Unsupported(errno)
        | ReadErrorKind::Refused(errno)
        | ReadErrorKind::Failed(errno) => Some(errno as i32),
        ReadErrorKind::Malformed(_) => None,
    };
    (error.into_str(), errno)
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::clock;

    #[test]
    fn a_repeated_error_is_logged_once_in_ten_minutes_and_counted() {
        let log = ErrorLog::default();
        let start = clock::now().at;
        let (refused, failed) = (
            key_of(ReadErrorKind::Refused(Errno::EACCES)),
            key_of(ReadErrorKind::Failed(Errno::EIO)),
        );
        assert_eq!(log.suppressed_before(refused, start), Some(0));
        assert_eq!(log.suppressed_before(failed, start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.suppressed_before(refused, start), None);
        }
        assert_eq!(log.suppressed_before(refused, start + REPEAT_EVERY), Some(1000));
        assert_eq!(locked(&log.0).len(), 2, "whatever cgroups the errors are about");
    }

    #[test]
    fn each_kind_of_failure_is_logged_once_until_a_success() {
        let log = FailureLog::default();
        assert!(!log.succeeded(), "there was no failure");
        assert!(log.failed("timeout") && !log.failed("timeout") && log.failed("conflict"));
        assert!(log.succeeded() && !log.succeeded());
        assert!(log.failed("conflict"));
    }
}
