//! I/O wait of a container: the part of its waiting for disks that other workloads on them explain, or
//! reclaim by the node. Pure.
//!
//! Pressure shows only I/O in which a task sleeps. With native AIO none does, so reads in flight count
//! too. Contention is a share of demand, as for memory: time that the container ran and waited.

use std::time::Instant;

use super::cpu_limits::is_due;
use super::disks::DiskUse;
use super::node::NodeReadings;
use super::readings::{Needs, Readings};
use super::run_delay::ran;
use super::series::{Ratio, lately};
use super::wait::{NEGLIGIBLE, Wait};

/// Whether it waits.
pub(super) fn waits(readings: &Readings, node: &NodeReadings) -> bool {
    let reading = || DiskUse::of(readings, node).reading;
    readings.pressure.io.some().is_some_and(|some| some >= NEGLIGIBLE)
        || reading().is_some_and(|reading| reading >= NEGLIGIBLE)
}

/// `io.stat` costs many times as much as pressure, so it is read while the container waits. Of one
/// that does not, it is read often enough to notice native AIO, and not at all while the node's disks
/// are idle. Refaults are read only while the node has reclaimed memory lately.
pub(super) fn needs(readings: &Readings, node: &NodeReadings, now: Instant) -> Needs {
    let counters_due = lately(readings.io.waited_at, now)
        || node.reads_in_flight() >= NEGLIGIBLE && is_due(readings.io.counters.read_at(), now);
    Needs::IO_MAX.when(readings.io.limited.is_none() || readings.pressure.io.moved())
        | Needs::IO_COUNTERS.when(counters_due)
        | Needs::CPU_COUNTERS.when(counters_due && !readings.threads.are_read())
        | Needs::REFAULTS.when(counters_due && lately(node.reclaimed_at, now))
}

/// The wait is multiplied by the share of other workloads in the operations of the container's
/// disks: on a disk that no other workload uses, there is no contention. Refaults count in full,
/// since with more memory there would be none. A container with an `io.max`, which may explain all of
/// the wait, has no weight. `None` if the wait is unknown.
pub(super) fn wait(readings: &Readings, node: &NodeReadings) -> Option<Wait> {
    let raw = readings.pressure.io.shares().some?;
    if readings.io.limited? {
        return Some(Wait::of_stall(raw, raw, Ratio::ZERO, 0.0));
    }
    let wait = |share| Wait::of_stall(raw, Ratio::ZERO, share, 1.0);
    let disk = DiskUse::of(readings, node);
    if raw.get() < NEGLIGIBLE && disk.reading.unwrap_or(0.0) < NEGLIGIBLE {
        return Some(wait(raw));
    }
    let by_node = share_by_node(&disk, || readings.memory.reclaimed_by_node())?;
    let (waited, ran) = (waited(raw, &disk), ran(readings)?);
    let contention = contention(waited, ran, by_node)?;
    Some(Wait { cpus: waited * by_node, ..wait(contention) })
}

/// Time that the container waited for disks, for all its tasks: reads in flight. I/O pressure shows a
/// part of it at least: it is an average over the CPUs on which a task sleeps in turn, and includes other
/// waiting than for reads.
fn waited(raw: Ratio, disk: &DiskUse) -> f64 {
    disk.reading.unwrap_or(0.0).max(raw.get())
}

/// The share of its waiting that the node explains. `reclaimed` is the share of its reclaimed pages that
/// were reclaimed because of the node.
fn share_by_node(disk: &DiskUse, reclaimed: impl Fn() -> Option<f64>) -> Option<f64> {
    let again = disk.swapped_in.unwrap_or(0.0) + disk.displaced.unwrap_or(0.0);
    let again = if again > 0.0 { (again * reclaimed()?).min(1.0) } else { 0.0 };
    Some(again + (1.0 - again) * disk.others?)
}

/// The share of its demand that it waited because of the node. Its demand is at least one CPU.
fn contention(waited: f64, ran: f64, by_node: f64) -> Option<Ratio> {
    Ratio::of(waited * by_node, (ran + waited).max(1.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::disk_rates::DiskRates;
    use super::super::series::Reading;
    use super::super::tests::{container, pressure, window};
    use super::*;
    use crate::kernel::io_stat::Device;

    fn share(some: f64, disk: DiskUse, by_node: f64) -> Option<f64> {
        let by_node = share_by_node(&disk, || Some(by_node))?;
        let share = contention(waited(Ratio::of(some, 1.0)?, &disk), 0.0, by_node)?;
        Some((share.get() * 1e6).round() / 1e6)
    }

    /// A VM on whose disks other workloads have this share.
    fn beside(others: f64) -> DiskUse {
        DiskUse { others: Some(others), ..DiskUse::default() }
    }

    #[test]
    fn io_counts_by_the_part_that_others_have_of_the_disk() {
        assert_eq!(share(0.4, beside(1.0), 1.0), Some(0.4));
        assert_eq!(share(0.4, beside(0.25), 1.0), Some(0.1));
        // On a disk of its own there is no contention.
        assert_eq!(share(0.4, beside(0.0), 1.0), Some(0.0));
        assert_eq!(share(0.4, DiskUse::default(), 1.0), None);
    }

    #[test]
    fn io_contention_is_a_share_of_demand() {
        let contention = |waited, ran| contention(waited, ran, 0.5).unwrap().get();
        assert_eq!(contention(0.5, 0.25), 0.25, "of one CPU at least");
        assert_eq!(contention(1.0, 1.0), 0.25);
        // Two threads that wait are no larger share than one.
        assert_eq!([contention(1.0, 0.0), contention(2.0, 0.0)], [0.5, 0.5]);
    }

    #[test]
    fn io_wait_is_the_time_of_reads_and_refaults_count_whole() {
        let swap = |some, reading, swapped_in, by_node| {
            let (reading, swapped_in) = (Some(reading), Some(swapped_in));
            share(some, DiskUse { reading, swapped_in, ..beside(0.5) }, by_node).unwrap()
        };
        // As measured on two CPUs: pressure shows 0.4 for a thread that slept for 0.7 of the time.
        assert_eq!(swap(0.4, 0.7, 0.0, 1.0), 0.35);
        // Other waiting than for reads counts as well.
        assert_eq!(swap(0.4, 0.1, 0.0, 1.0), 0.2);
        // With native AIO no task sleeps, and many reads are in flight at once.
        assert_eq!([swap(0.0, 0.7, 0.0, 1.0), swap(0.02, 30.0, 0.0, 1.0)], [0.35, 0.5]);
        // Reading pages that were swapped out because of the node counts in full, but not because of
        // its own limit.
        assert_eq!(swap(0.4, 0.7, 1.0, 1.0), 0.7);
        assert_eq!(swap(0.4, 0.7, 0.5, 1.0), 0.525);
        assert_eq!(swap(0.4, 0.7, 1.0, 0.0), 0.35);
        // So does reading page cache that was evicted for the memory of other pods.
        let file = |swapped_in, displaced, by_node| {
            let (swapped_in, displaced) = (Some(swapped_in), Some(displaced));
            share(0.4, DiskUse { swapped_in, displaced, ..beside(0.25) }, by_node).unwrap()
        };
        assert_eq!(file(0.0, 0.6, 1.0), 0.28);
        assert_eq!(file(0.3, 0.6, 1.0), 0.37);
        assert_eq!(file(0.6, 0.6, 1.0), 0.4);
        assert_eq!(file(0.0, 0.6, 0.0), 0.1);
    }

    #[test]
    fn a_container_with_an_io_max_has_no_weight_and_an_unread_one_is_unknown() {
        let node = NodeReadings::default();
        let mut vm = container(0.0, 1.0, 0.0, None);
        vm.pressure.io = pressure(0.4);
        let demand = |vm: &Readings| wait(vm, &node).map(|wait| (wait.node.get(), wait.demand));
        assert_eq!(demand(&vm), None);
        vm.io.limited = Some(true);
        assert_eq!(demand(&vm), Some((0.0, 0.0)));
        // The share of others matters only if the VM waits for the disk.
        vm.io.limited = Some(false);
        assert_eq!(demand(&vm), None);
        vm.pressure.io = pressure(0.005);
        assert_eq!(demand(&vm), Some((0.005, 1.0)));
    }

    #[test]
    fn costly_files_are_read_while_the_container_waits() {
        let (mut vm, mut node) = (container(0.0, 1.0, 0.0, None), NodeReadings::default());
        let now = crate::clock::now().at;
        assert_eq!(needs(&vm, &node, now), Needs::IO_MAX, "not read yet");
        vm.io.limited = Some(false);
        assert_eq!(needs(&vm, &node, now), Needs::empty());
        vm.pressure.io = pressure(0.4);
        assert!(waits(&vm, &node));
        // For a minute after a wait, so that counters have a rate.
        vm.io.waited_at = Some(now);
        let counters = Needs::IO_COUNTERS | Needs::CPU_COUNTERS;
        assert_eq!(needs(&vm, &node, now), Needs::IO_MAX | counters);
        node.reclaimed_at = Some(now);
        assert!(needs(&vm, &node, now).contains(Needs::REFAULTS));
    }

    #[test]
    fn native_aio_is_noticed_by_the_reads_of_the_nodes_disks() {
        let now = crate::clock::now().at;
        let mut vm = container(0.0, 1.0, 0.0, None);
        vm.io.limited = Some(false);
        vm.pressure.io = window(Default::default(), Default::default());
        let mut node = NodeReadings::default();
        assert_eq!(needs(&vm, &node, now), Needs::empty());
        let disk = DiskRates { reading: 0.5, ..DiskRates::default() };
        node.disk_rates = Some([(Device { major: 8, minor: 0 }, disk)].into());
        let counters = Needs::IO_COUNTERS | Needs::CPU_COUNTERS;
        assert_eq!(needs(&vm, &node, now), counters);
        // It did not read.
        for _ in 0..2 {
            vm.io.counters.push(Some(Reading { at: now, value: Some(vec![]) }));
        }
        assert_eq!(needs(&vm, &node, now), Needs::empty());
        assert_eq!(needs(&vm, &node, now + Duration::from_secs(30)), counters);
    }
}
