//! Limits how often a repeated read error is logged. Pure: the caller logs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::kernel::ReadErrorKind;

const REPEAT_EVERY: Duration = Duration::from_secs(600);

/// When errors were last logged, by kind and errno. Both are closed sets, so the map stays small,
/// whatever the names of cgroups are.
#[derive(Debug, Default)]
pub(super) struct ErrorLog(HashMap<(&'static str, Option<i32>), LogEntry>);

#[derive(Debug)]
struct LogEntry {
    at: Instant,
    suppressed: u64,
}

impl ErrorLog {
    /// The number of errors of this kind that were suppressed since the last logged one; `None` if
    /// this error is to be suppressed, too.
    pub(super) fn suppressed_before(&mut self, error: ReadErrorKind, now: Instant) -> Option<u64> {
        let errno = match error {
            ReadErrorKind::Vanished(errno)
            | ReadErrorKind::Unsupported(errno)
            | ReadErrorKind::Refused(errno)
            | ReadErrorKind::Failed(errno) => Some(errno as i32),
            ReadErrorKind::Malformed(_) => None,
        };
        let key = (error.word(), errno);
        let logged = self.0.get_mut(&key);
        match logged {
            Some(logged) if now.saturating_duration_since(logged.at) < REPEAT_EVERY => {
                logged.suppressed += 1;
                None
            }
            _ => {
                let suppressed = logged.map_or(0, |logged| logged.suppressed);
                self.0.insert(key, LogEntry { at: now, suppressed: 0 });
                Some(suppressed)
            }
        }
    }
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
        let (refused, failed) =
            (ReadErrorKind::Refused(Errno::EACCES), ReadErrorKind::Failed(Errno::EIO));
        assert_eq!(log.suppressed_before(refused, start), Some(0));
        assert_eq!(log.suppressed_before(failed, start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.suppressed_before(refused, start), None);
        }
        assert_eq!(log.suppressed_before(refused, start + REPEAT_EVERY), Some(1000));
        assert_eq!(log.0.len(), 2, "whatever cgroups the errors are about");
    }
}
