//! The state of a running agent that the snapshot shows: errors, and the published value.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serialize;

use crate::kernel::ReadErrorKind;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentStatus {
    /// `psi_agent_read_errors_total` by kind, since the agent started.
    pub read_errors: BTreeMap<&'static str, u64>,
    /// The last of those errors; absent before the first.
    pub last_read_error: Option<DatedError>,
    /// Why the pods can't be listed or watched; absent while they can be.
    pub pods_error: Option<DatedError>,
    pub publish: PublishStatus,
}

impl Default for AgentStatus {
    fn default() -> Self {
        Self {
            read_errors: ReadErrorKind::WORDS.map(|kind| (kind, 0)).into(),
            last_read_error: None,
            pods_error: None,
            publish: PublishStatus::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatedError {
    /// The message, with the path or the server's reason.
    pub message: String,
    /// The last time, milliseconds since the epoch.
    pub at_ms: u64,
}

impl DatedError {
    pub fn new(error: &(impl Display + ?Sized), at_ms: u64) -> Self {
        Self { message: error.to_string(), at_ms }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PublishStatus {
    /// `--publish`: `on`, `dry-run` or `off`.
    pub mode: Option<&'static str>,
    /// The level after the last score: `low`, `medium` or `high`; absent before the first, and with
    /// `--publish off`.
    pub level: Option<&'static str>,
    /// The last value that was published or, in a dry run, would have been; absent before the first.
    pub last: Option<PublishedValue>,
    /// The VM whose move helps the node most; absent if none is named.
    pub candidate: Option<CandidateName>,
    /// Why publishing fails; absent while it works.
    pub error: Option<DatedError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PublishedValue {
    /// The score, 0 to 100.
    pub score: u8,
    /// The time of the score, milliseconds since the epoch.
    pub observed_at_ms: u64,
}

/// The VM to move first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CandidateName {
    pub namespace: String,
    /// Name of the VM.
    pub name: String,
}
