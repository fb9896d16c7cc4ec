//! Who asks a node's disks for how much. Pure.

use std::collections::BTreeMap;

use super::{Ratio, increase};
use crate::kernel::io_stat::Device;
use crate::sample::{DiskOperations, IoUse, Sample};

/// What tells whose doing it is that a container waits for disks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IoRates {
    /// Whether it or its pod has an `io.max`.
    pub has_max: Option<bool>,
    /// Of the operations on the disks that it used, the share that others asked for; `None` where
    /// nothing tells.
    pub others: Option<Ratio>,
}

/// Operations of each disk between two samples.
pub(super) fn disk_operations(earlier: &Sample, later: &Sample) -> Option<BTreeMap<Device, f64>> {
    let before = earlier.node.disk_operations.as_ref()?;
    Some(more_operations(before, later.node.disk_operations.as_ref()?))
}

fn more_operations(
    before: &BTreeMap<Device, u64>,
    after: &BTreeMap<Device, u64>,
) -> BTreeMap<Device, f64> {
    let more = |(device, after): (&Device, &u64)| {
        // A device that was not there before started from nothing.
        let before = before.get(device).copied().unwrap_or_default();
        Some((*device, increase(before, *after)?))
    };
    after.iter().filter_map(more).collect()
}

/// The share that others have of what disks were asked for, each disk counted as much as the
/// container used it. A container that asked none for anything waits for none: its storage is
/// elsewhere.
pub(super) fn others(
    before: &IoUse,
    after: &IoUse,
    disks: &BTreeMap<Device, f64>,
) -> Option<Ratio> {
    let (before, after) = match (before.operations.as_ref()?, after.operations.as_ref()?) {
        (DiskOperations::Counted(before), DiskOperations::Counted(after)) => (before, after),
        (DiskOperations::Uncounted, _) | (_, DiskOperations::Uncounted) => {
            return Ratio::of(1.0, 1.0);
        }
    };
    let own = more_operations(before, after);
    let all: f64 = own.values().sum();
    let others = own.iter().map(|(device, own)| {
        // The two were not read in the same moment.
        let everybody = disks.get(device).copied().unwrap_or_default().max(*own);
        own * (everybody - own) / everybody.max(1.0)
    });
    if all > 0.0 { Ratio::of(others.sum(), all) } else { Some(Ratio::ZERO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(device: u32, operations: u64) -> IoUse {
        let operations = BTreeMap::from([(Device { major: 8, minor: device }, operations)]);
        IoUse { has_max: Some(false), operations: Some(DiskOperations::Counted(operations)) }
    }

    #[test]
    fn others_have_what_is_left_of_the_disks_that_it_used() {
        let disks = BTreeMap::from([(Device { major: 8, minor: 0 }, 400.0)]);
        let others = |before: &IoUse, after: &IoUse| others(before, after, &disks).map(Ratio::get);
        assert_eq!(others(&counted(0, 1_000), &counted(0, 1_100)), Some(0.75));
        assert_eq!(others(&counted(0, 1_000), &counted(0, 1_500)), Some(0.0));
        // Its storage is elsewhere, or on a disk of which the node tells nothing.
        assert_eq!(others(&counted(0, 1_000), &counted(0, 1_000)), Some(0.0));
        assert_eq!(others(&counted(1, 1_000), &counted(1, 1_100)), Some(0.0));
        // A disk that it did not use before.
        let none =
            IoUse { operations: Some(DiskOperations::Counted(BTreeMap::new())), ..counted(0, 0) };
        assert_eq!(others(&none, &counted(0, 100)), Some(0.75));
        // Nobody counts: then nothing can be taken off. Not read: nothing can be said.
        let uncounted = IoUse { operations: Some(DiskOperations::Uncounted), ..counted(0, 0) };
        assert_eq!(others(&uncounted, &uncounted), Some(1.0));
        let unread = IoUse { operations: None, ..counted(0, 0) };
        assert_eq!(others(&unread, &counted(0, 100)), None);
    }
}
