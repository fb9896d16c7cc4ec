//! The operations of the node's disks, per second. Pure.

use std::collections::BTreeMap;

use super::series::{Window, increase};
use crate::kernel::io_stat::Device;
use crate::kernel::node_text::DiskStat;

/// Operations of a disk, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DiskRates {
    pub(super) reads: Operations,
    pub(super) writes: Operations,
    /// Reads in flight, on average.
    pub(super) reading: f64,
    /// Whether it is made of other disks, by device mapper or md.
    pub(super) is_on_top: bool,
}

/// Operations of one kind, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Operations {
    pub(super) completed: f64,
    /// Operations before merging.
    pub(super) requested: f64,
}

/// Operations of each disk; `None` if they could not be read.
pub fn disk_rates(
    disks: &Window<BTreeMap<Device, DiskStat>>,
) -> Option<BTreeMap<Device, DiskRates>> {
    let ((before, after), seconds) = (disks.both()?, disks.seconds()?);
    // No rows mean that the file could not be read.
    if before.is_empty() || after.is_empty() {
        return None;
    }
    let rates = |(device, after): (&Device, &DiskStat)| {
        // A device may be missing in the earlier reading because its row could not be read.
        let before = before.get(device)?;
        let rate = |of: fn(&DiskStat) -> u64| Some(increase(of(before), of(after))? / seconds);
        let operations = |completed, merged| {
            let completed = rate(completed)?;
            Some(Operations { completed, requested: completed + rate(merged)? })
        };
        let rates = DiskRates {
            reads: operations(|disk| disk.reads, |disk| disk.merged)?,
            writes: operations(|disk| disk.writes, |disk| disk.writes_merged)?,
            reading: wrapped_increase(before.time_reading, after.time_reading) / seconds / 1000.0,
            is_on_top: after.name.starts_with("dm-") || after.name.starts_with("md"),
        };
        Some((*device, rates))
    };
    Some(after.iter().filter_map(rates).collect())
}

/// The kernel writes times of disks as numbers of 32 bits.
fn wrapped_increase(before: u64, after: u64) -> f64 {
    (after.wrapping_sub(before) & u64::from(u32::MAX)) as f64
}

/// The devices of swap space by these names, but for those that count nothing. For a partition of an NVMe disk with
/// several paths, its whole disk stands.
pub fn swap_devices(names: &[String], disks: &BTreeMap<Device, DiskStat>) -> Vec<Device> {
    let counts = |disk: &DiskStat| disk.reads + disk.writes > 0;
    let find = |name: &str| disks.iter().find(|(_, disk)| disk.name == name && counts(disk));
    let counted = |name: &String| {
        let whole = || find(name.rsplit_once('p').filter(|_| name.starts_with("nvme"))?.0);
        find(name).or_else(whole)
    };
    names.iter().filter_map(counted).map(|(device, _)| *device).collect()
}

impl Operations {
    /// The share of `own` operations of a container in all requested ones.
    pub(super) fn share(self, own: f64) -> f64 {
        // The two counts were not read at the same moment, so the container's can be the larger
        // one.
        own / self.requested.max(own).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_disk_stands_for_a_partition_that_counts_nothing() {
        let disks = [("nvme0n1", 9), ("nvme0n1p2", 0), ("nvme1n1p1", 3), ("vda2", 0), ("vda", 9)];
        let line =
            |(minor, (name, reads))| format!("8 {minor} {name} {reads} 0 0 0 0 0 0 0 0 0 0\n");
        let text: String = (0..).zip(disks).map(line).collect();
        let disks = crate::kernel::node_text::parse_diskstats(text.as_bytes());
        let minors = |names: &[&str]| -> Vec<u32> {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            swap_devices(&names, &disks).iter().map(|device| device.minor).collect()
        };
        assert_eq!(minors(&["nvme0n1p2", "nvme1n1p1", "vda2"]), [0, 2]);
        assert_eq!(minors(&["nvme0n1", "zram0"]), [0]);
    }

    #[test]
    fn a_time_that_wrapped_around_goes_on() {
        let most = u64::from(u32::MAX);
        assert_eq!(wrapped_increase(most - 99, 400), 500.0);
        assert_eq!(wrapped_increase(100, 600), 500.0);
    }
}
