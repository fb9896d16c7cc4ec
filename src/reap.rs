//! `psi-agent reap`: takes away what agents left on Nodes and nobody renews, since most readers of
//! it know no expiry. It never touches a key that is not the prefix's.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;

use crate::cluster::{ClearOutcome, Connection, NodeKeys, clear_node, list_nodes};
use crate::contract::{Freshness, NodePressure, Prefix};

/// What is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reap {
    /// Values that were not renewed for this long.
    OlderThan {
        /// The age.
        age: Duration,
        /// Also where more than half of the nodes are stale.
        force: bool,
    },
    /// Everything: the uninstall.
    All,
}

/// How often a Node that changes under our hands is looked at again.
const TRIES: usize = 3;

/// Clears the Nodes and says which on `out`.
///
/// # Errors
/// Where the API server refuses, or most values are stale: that is an outage, not dead agents.
pub fn reap(
    connection: &Connection,
    prefix: &Prefix,
    reap: Reap,
    now: Timestamp,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let nodes = list_nodes(connection)?;
    let scored: Vec<&NodeKeys> = nodes.iter().filter(|node| node.has_own_keys(prefix)).collect();
    let due: Vec<&&NodeKeys> =
        scored.iter().filter(|node| is_due(node, prefix, reap, now)).collect();
    if let Reap::OlderThan { force: false, .. } = reap
        && due.len() * 2 > scored.len()
    {
        bail!(
            "{} of {} nodes with a value are stale: that looks like an outage of the agents or of \
             the API server, so nothing was cleared; --force clears them all the same",
            due.len(),
            scored.len()
        );
    }
    let mut cleared = 0;
    for node in &due {
        if clear(connection, prefix, reap, node, now)? {
            cleared += 1;
            writeln!(out, "{}: cleared", node.name).context("cannot write what was cleared")?;
        }
    }
    writeln!(out, "{cleared} of {} nodes with a value cleared", scored.len())
        .context("cannot write what was cleared")
}

/// A value without a date that reads is nobody's to renew; so is a label or a taint alone.
fn is_due(node: &NodeKeys, prefix: &Prefix, reap: Reap, now: Timestamp) -> bool {
    let Reap::OlderThan { age, .. } = reap else { return true };
    match NodePressure::from_annotations(prefix, &node.annotations) {
        Ok(Some(pressure)) => !matches!(pressure.freshness(now, age), Freshness::Fresh { .. }),
        Ok(None) | Err(_) => true,
    }
}

/// Clears one Node as it was seen; if it has changed meanwhile, it is looked at again. Answers
/// whether there was something to clear in the end.
fn clear(
    connection: &Connection,
    prefix: &Prefix,
    reap: Reap,
    node: &NodeKeys,
    now: Timestamp,
) -> anyhow::Result<bool> {
    let mut seen = node.clone();
    for _ in 0..TRIES {
        match clear_node(connection, prefix, &seen)? {
            ClearOutcome::Cleared => return Ok(true),
            ClearOutcome::Gone => return Ok(false),
            ClearOutcome::Changed(newer) => seen = newer,
        }
        if !seen.has_own_keys(prefix) || !is_due(&seen, prefix, reap, now) {
            return Ok(false);
        }
    }
    bail!("node {} changes faster than it can be cleared: try again", node.name)
}
