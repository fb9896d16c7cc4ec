//! The state of a running agent that the snapshot shows: errors, and the published value.

use strum::VariantNames;
use tokio::sync::watch;

use crate::client::snapshot::AgentStatus;
use crate::kernel::ReadErrorKind;

/// The status that the parts of an agent update.
pub type SharedStatus = watch::Sender<AgentStatus>;

/// The status of an agent that has just started.
pub fn shared() -> SharedStatus {
    let read_errors = ReadErrorKind::VARIANTS.iter().map(|kind| ((*kind).into(), 0)).collect();
    watch::Sender::new(AgentStatus { read_errors, ..AgentStatus::default() })
}
