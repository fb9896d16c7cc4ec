//! Says a repeated error once, then how often it came again. Pure: the caller logs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::kernel::ReadError;

/// How long an error that goes on stays unsaid.
const REPEAT_EVERY: Duration = Duration::from_secs(600);

/// What has been said. One entry for each file name and kind of error, however many cgroups have
/// it, so that it cannot grow with the node.
#[derive(Debug, Default)]
pub(super) struct Complaints(HashMap<(String, &'static str), Said>);

#[derive(Debug)]
struct Said {
    at: Instant,
    since: u64,
}

impl Complaints {
    /// Whether an error should be logged now, and how many like it were not since the last time.
    pub(super) fn hear(&mut self, error: &ReadError, now: Instant) -> Option<u64> {
        let file = error.path.rsplit('/').next().unwrap_or_default().to_owned();
        let said = self.0.entry((file, error.kind.word()));
        let mut first = false;
        let said = said.or_insert_with(|| {
            first = true;
            Said { at: now, since: 0 }
        });
        if first {
            return Some(0);
        }
        if now.saturating_duration_since(said.at) < REPEAT_EVERY {
            said.since += 1;
            return None;
        }
        said.at = now;
        Some(std::mem::take(&mut said.since))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
mod tests {
    use super::*;
    use crate::kernel::ReadErrorKind;
    use nix::errno::Errno;

    #[test]
    fn a_repeated_error_is_said_once_and_counted() {
        let mut complaints = Complaints::default();
        let start = Instant::now();
        let error = |path: &str| ReadError {
            path: path.into(),
            kind: ReadErrorKind::Refused(Errno::EACCES),
        };
        assert_eq!(complaints.hear(&error("/a/memory.stat"), start), Some(0));
        assert_eq!(complaints.hear(&error("/b/memory.stat"), start), None);
        assert_eq!(complaints.hear(&error("/a/memory.stat"), start), None);
        assert_eq!(complaints.hear(&error("/a/cpu.stat"), start), Some(0));
        assert_eq!(complaints.hear(&error("/a/memory.stat"), start + REPEAT_EVERY), Some(2));
    }
}
