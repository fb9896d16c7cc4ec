//! What people see of the agent itself: what goes wrong, and what came of publishing.

use std::collections::BTreeMap;

use serde::Serialize;

/// What goes wrong, and what stands on the Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HealthView {
    /// Kernel files that could not be read, and rows that were dropped, since the agent started:
    /// by kind, as `psi_agent_read_errors_total` counts them.
    pub read_errors: BTreeMap<&'static str, u64>,
    /// The last of those files; absent while there was none.
    pub last_read_error: Option<Trouble>,
    /// Why the pods are not told; absent while they are.
    pub pods_error: Option<Trouble>,
    /// What came of publishing.
    pub publish: PublishView,
}

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What, with the path or the server's words.
    pub message: String,
    /// When it was last so, milliseconds since the epoch.
    pub at_ms: u64,
}

/// The score's way onto the Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PublishView {
    /// `--publish`: `on`, `dry-run` or `off`.
    pub mode: Option<&'static str>,
    /// The last value that was written or, in a dry run, would have been; absent before the first.
    pub last: Option<PublishedValue>,
    /// Why it cannot be written; absent while it can.
    pub error: Option<Trouble>,
}

/// A value as it stands on the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PublishedValue {
    /// The score, 0 to 100.
    pub score: u8,
    /// `low`, `medium` or `high`; absent where neither label nor taints show it.
    pub level: Option<&'static str>,
    /// When it was so, milliseconds since the epoch.
    pub observed_at_ms: u64,
}
