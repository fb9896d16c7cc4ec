//! The state of a running agent that the snapshot shows: errors, and the published value.

use std::collections::BTreeMap;

use serde::Serialize;
use strum::VariantNames;
use tokio::sync::watch;

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

/// The status that the parts of an agent update.
pub type SharedStatus = watch::Sender<AgentStatus>;

impl AgentStatus {
    pub fn shared() -> SharedStatus {
        watch::Sender::new(Self {
            read_errors: ReadErrorKind::VARIANTS.iter().map(|kind| (*kind, 0)).collect(),
            last_read_error: None,
            pods_error: None,
            publish: PublishStatus::default(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatedError {
    /// The message, with the path or the server's reason.
    pub message: String,
    /// The last time, milliseconds since the epoch.
    pub at_ms: u64,
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
