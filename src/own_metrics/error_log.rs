//! Limits how often repeated errors are logged. Pure: the callers log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::kernel::ReadErrorKind;

const REPEAT_EVERY: Duration = Duration::from_secs(600);

/// The kind of an error, and its errno.
type ErrorKey = (&'static str, Option<i32>);

/// When errors were last logged, and how many were suppressed since, by kind and errno. Both are
/// closed sets, so the map stays small, whatever the names of cgroups are.
#[derive(Debug, Default)]
pub(super) struct ErrorLog(HashMap<ErrorKey, (Instant, u64)>);

impl ErrorLog {
    /// The number of errors of this kind that were suppressed since the last logged one; `None` if
    /// this error is to be suppressed, too.
    pub(super) fn suppressed_before(&mut self, key: ErrorKey, now: Instant) -> Option<u64> {
        match self.0.get_mut(&key) {
            Some((at, suppressed)) if now.saturating_duration_since(*at) < REPEAT_EVERY => {
                *suppressed += 1;
                None
            }
            _ => Some(self.0.insert(key, (now, 0)).map_or(0, |(_, suppressed)| suppressed)),
        }
    }
}

/// The key of a failure to read a file.
pub(super) fn key_of(error: ReadErrorKind) -> ErrorKey {
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
        let mut log = ErrorLog::default();
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
        assert_eq!(log.0.len(), 2, "whatever cgroups the errors are about");
    }
}
