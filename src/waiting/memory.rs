//! Memory wait of a container: the part of its pressure, and of its waiting for swap, that the node
//! explains. Pure.
//!
//! Pressure shows that at least one task waited, so the wait is at least as long. It does not include
//! all waiting for swap: a KVM guest's pages are read by a kernel thread while its vCPU is halted,
//! which is no stall of any task. So each page fault that read from swap counts with the mean time of
//! a read from the swap device.

use super::node::NodeReadings;
use super::readings::{Needs, Readings};
use super::run_delay::ran;
use super::series::Ratio;
use super::wait::{Unknown, Wait, WaitResult};

/// CPUs used and waited, below this number, count as this number: a share of less is noise.
const LEAST_CPUS: f64 = 0.25;

/// Memory in use is a weight, needed while any task of the node waits. Reclaim by limits, pages from
/// swap and CPU usage matter only if the container can have waited since they were read.
pub(super) fn needs(readings: &Readings, node: &NodeReadings) -> Needs {
    let swaps_in = node.swaps_in() == Some(true);
    let may_wait = readings.pressure.memory.moved() || swaps_in;
    Needs::MEMORY_IN_USE.when(node.pressure.memory.moved() || swaps_in)
        | Needs::LIMIT_HITS.when(may_wait)
        | Needs::CPU_COUNTERS.when(may_wait && !readings.threads.are_read())
        | Needs::SWAPPED_IN.when(swaps_in)
}

/// Pressure counts only while the node reclaims memory, or does at a limit of its own, or pages come
/// back from swap. If the container hit its own limit, only the share of its scanned pages that kswapd
/// scanned counts.
pub(super) fn wait(readings: &Readings, node: &NodeReadings) -> WaitResult {
    // If the memory controller is off, all containers have the same weight.
    let weight = readings.memory.in_use.map(|bytes| bytes.map_or(1.0, |bytes| bytes as f64));
    let wait = weight.and_then(|weight| known_wait(readings, node, weight));
    wait.ok_or(Unknown { most_demand: weight.unwrap_or(f64::INFINITY) })
}

fn known_wait(readings: &Readings, node: &NodeReadings, weight: f64) -> Option<Wait> {
    let raw = readings.pressure.memory.shares().some?;
    let (swaps, stat) = (node.swaps_in()?, readings.memory.stat.value());
    // The memory controller counts pages in swap since Linux 5.9.
    let is_counted = readings.memory.in_use != Some(None)
        && stat.is_none_or(|stat| stat.workingset_refault_anon.is_some());
    let (swapping, unstalled) =
        if swaps && is_counted { for_swap(readings, node)? } else { (0.0, 0.0) };
    let stalls = raw > Ratio::ZERO;
    let is_short = swapping > 0.0 || stalls && (swaps && !is_counted || node.reclaims()?);
    let stalled = if is_short { raw.get() } else { 0.0 };
    let reclaimed = (stalled + unstalled).max(swapping);
    let by_node = if reclaimed > 0.0 { readings.memory.reclaimed_by_node()? } else { 1.0 };
    let own_limit = stalls && readings.memory.own_limit()?;
    let own_limit = if own_limit { raw.get() - stalled * by_node } else { 0.0 };
    let waited = reclaimed * by_node;
    let ran = if waited > 0.0 { ran(readings)? } else { 0.0 };
    let own_limit = Ratio::of(own_limit, 1.0)?;
    let contention = Ratio::of(waited, (ran + waited).max(LEAST_CPUS))?;
    let wait = Wait::of_cpu(ran, waited, raw, own_limit)?;
    Some(Wait { contention, demand: weight, own_limit_cpus: own_limit.get(), ..wait })
}

/// CPUs' worth of time that the container waited for its pages in swap, and the part of it that the
/// kernel does not count as a stall.
fn for_swap(readings: &Readings, node: &NodeReadings) -> Option<(f64, f64)> {
    let stat = &readings.memory.stat;
    let pages = stat.rate(|stat| stat.workingset_refault_anon)?;
    let stalled = stat.rate(|stat| stat.workingset_restore_anon)?;
    // A fault can read many pages ahead, and some read files.
    let faults = readings.memory.pages_from_disk()?.min(stat.rate(|stat| stat.pgmajfault)?);
    let waited = if faults > 0.0 { faults * node.swap_read_s()? } else { 0.0 };
    let unstalled = (pages - stalled).max(0.0) / pages.max(f64::MIN_POSITIVE);
    Some((waited, waited * unstalled))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::disk_rates::{DiskRates, Operations};
    use super::super::readings::MemoryReadings;
    use super::super::series::{Reading, Window};
    use super::super::tests::{SECONDS, container, pressure, window};
    use super::*;
    use crate::kernel::counters::MemoryStat;
    use crate::kernel::io_stat::Device;
    use crate::kernel::node_text::Reclaim;

    /// A node that reclaims memory or not.
    fn node(reclaims: bool) -> NodeReadings {
        node_that_swaps(reclaims, 0)
    }

    /// A node on which this number of pages came back from swap, each by a read of 2 ms.
    fn node_that_swaps(reclaims: bool, pages: u64) -> NodeReadings {
        let counted = |scanned, pages| Reclaim {
            pgscan_kswapd: Some(scanned),
            stalls_normal: Some(0),
            stalls_movable: Some(0),
            pswpin: Some(pages),
        };
        let reclaim = window(counted(0, 7), counted(u64::from(reclaims), 7 + pages));
        let disk = |minor, completed, reading| {
            let reads = Operations { completed, requested: completed };
            (Device { major: 8, minor }, DiskRates { reads, reading, ..DiskRates::default() })
        };
        // Another disk is slower.
        let disks = BTreeMap::from([disk(0, 500.0, 1.0), disk(1, 10.0, 1.0)]);
        let swap_devices = vec![Device { major: 8, minor: 0 }];
        NodeReadings {
            reclaim,
            limit_hits: window(0, 0),
            disk_rates: Some(disks),
            swap_devices,
            ..NodeReadings::default()
        }
    }

    /// A VM that waits for 0.3 of the time. Its own limit was hit or not, and kswapd scanned this share
    /// of its pages.
    fn vm(own_limit: bool, by_kswapd: Option<u64>) -> Readings {
        let mut vm = container(0.0, 0.5, 0.0, None);
        vm.pressure.memory = pressure(0.3);
        vm.memory.limit_hits = window(0, u64::from(own_limit));
        if let Some(percent) = by_kswapd {
            let pages = |by_kswapd, directly| {
                let (pgscan_kswapd, pgscan_direct) = (Some(by_kswapd), Some(directly));
                Arc::new(MemoryStat { pgscan_kswapd, pgscan_direct, ..MemoryStat::default() })
            };
            vm.memory.stat = window(pages(7, 7), pages(7 + percent, 107 - percent));
        }
        vm
    }

    fn shares(vm: &Readings, reclaims: bool) -> Option<(f64, f64)> {
        let wait = wait(vm, &node(reclaims)).ok()?;
        let round = |share: Ratio| (share.get() * 1e6).round() / 1e6;
        Some((round(wait.node), round(wait.own_limit)))
    }

    #[test]
    fn pressure_counts_while_the_node_reclaims_less_the_part_of_own_limits() {
        assert_eq!(shares(&vm(false, None), false), Some((0.0, 0.0)));
        assert_eq!(shares(&vm(true, None), false), Some((0.0, 0.3)));
        assert_eq!(shares(&vm(true, Some(80)), false), Some((0.0, 0.3)));
        assert_eq!(shares(&vm(true, None), true), None, "either can be the cause");
        assert_eq!(shares(&vm(true, Some(80)), true), Some((0.24, 0.06)));
        assert_eq!(shares(&vm(false, Some(80)), true), Some((0.3, 0.0)));
        let unread = NodeReadings { limit_hits: Window::default(), ..node(false) };
        assert!(wait(&vm(false, None), &unread).is_err(), "the limit of all pods can be the cause");
        // Waiting for swap does not show in pressure.
        let calm =
            Readings { pressure: container(0.0, 0.5, 0.0, None).pressure, ..vm(false, None) };
        assert_eq!(wait(&calm, &node(false)).map(|wait| wait.contention.get()), Ok(0.0));
        let unread = NodeReadings { reclaim: Window::default(), ..node(false) };
        assert!(wait(&calm, &unread).is_err(), "pages can come back from swap");
    }

    fn counted(pages: u64, stalled: u64, major_faults: u64) -> MemoryStat {
        MemoryStat {
            workingset_refault_anon: Some(pages),
            workingset_restore_anon: Some(stalled),
            pgmajfault: Some(major_faults),
            ..MemoryStat::default()
        }
    }

    /// The two readings of a VM's `memory.stat`, with what is changed in each.
    fn with(vm: Readings, change: [&dyn Fn(&mut MemoryStat); 2]) -> Readings {
        let (before, last) = vm.memory.stat.both().unwrap();
        let (mut before, mut last) = (**before, **last);
        change[0](&mut before);
        change[1](&mut last);
        let memory = MemoryReadings { stat: window(before.into(), last.into()), ..vm.memory };
        Readings { memory, ..vm }
    }

    /// A VM that used this number of CPUs, and of whose pages these came back from swap, per second.
    fn vm_in_swap(ran: f64, pressure_share: f64, swap: [f64; 3]) -> Readings {
        let mut vm = container(0.0, ran, 0.0, None);
        vm.pressure.memory = pressure(pressure_share);
        vm.memory.limit_hits = window(0, 0);
        vm.memory.in_use = Some(Some(4096));
        #[allow(clippy::cast_possible_truncation, reason = "positive")]
        let [pages, stalled, major_faults] = swap.map(|rate| 7 + (rate * SECONDS) as u64);
        vm.memory.stat =
            window(Arc::new(counted(7, 7, 7)), Arc::new(counted(pages, stalled, major_faults)));
        vm
    }

    #[test]
    fn pages_from_swap_are_waited_for_whatever_pressure_shows() {
        let waited = |readings: &Readings| {
            let wait = wait(readings, &node_that_swaps(false, 100)).unwrap();
            [wait.cpus, wait.contention.get()].map(|value| (value * 1e3).round() / 1e3)
        };
        // A KVM guest: its pages are read by a kernel thread, so pressure shows little.
        assert_eq!(waited(&vm_in_swap(0.1, 0.05, [200.0, 100.0, 200.0])), [0.4, 0.8]);
        // A process on Linux 6.12: half of the reading is part of the pressure.
        assert_eq!(waited(&vm_in_swap(0.2, 0.4, [200.0, 100.0, 200.0])), [0.6, 0.75]);
        // The kernel reads ahead, and only faults wait. Not all faults are for pages in swap.
        assert_eq!(waited(&vm_in_swap(0.3, 0.0, [800.0, 0.0, 100.0])), [0.2, 0.4]);
        assert_eq!(waited(&vm_in_swap(0.3, 0.0, [100.0, 0.0, 800.0])), [0.2, 0.4]);
        // A VM that does little waits for little.
        assert_eq!(waited(&vm_in_swap(0.005, 0.0, [10.0, 0.0, 10.0])), [0.02, 0.08]);
        assert_eq!(waited(&vm_in_swap(1.0, 0.0, [0.0; 3])), [0.0; 2]);
        // Most pages were still in memory, in zswap.
        let zswapped = |pages| move |stat: &mut MemoryStat| stat.zswpin = Some(pages);
        let in_zswap = [&zswapped(7), &zswapped(7 + 3500)] as [&dyn Fn(&mut MemoryStat); 2];
        assert_eq!(waited(&with(vm_in_swap(0.3, 0.0, [800.0, 0.0, 800.0]), in_zswap)), [0.2, 0.4]);
        // The kernel counts what it reads, also where it finds only some of these pages to be in memory again.
        let read = |pages| move |stat: &mut MemoryStat| stat.pswpin = Some(pages);
        let counted = with(vm_in_swap(0.3, 0.0, [50.0, 0.0, 800.0]), [&read(7), &read(507)]);
        assert_eq!(waited(&counted), [0.2, 0.4]);
    }

    #[test]
    fn a_held_reading_forgets_what_may_have_changed_since() {
        let stat = MemoryStat {
            pgscan_kswapd: Some(5),
            pgscan_direct: Some(6),
            workingset_refault_file: Some(7),
            ..counted(1, 2, 3)
        };
        let start = crate::clock::now().at;
        let mut memory = MemoryReadings::default();
        memory.read_stat(Some(Reading { at: start, value: stat }));
        let mut held = |seconds| {
            memory.hold_stat(start + Duration::from_secs(seconds));
            **memory.stat.value().unwrap()
        };
        let unread = MemoryStat { workingset_refault_file: None, ..stat };
        assert_eq!(held(5), unread);
        assert_eq!(held(55), unread);
        assert_eq!(held(60), counted(1, 2, 3), "what was scanned by now is not known");
    }

    #[test]
    fn without_a_read_of_its_device_the_time_of_waiting_for_swap_is_unknown() {
        let uncounted = |pages: f64| {
            let mut node = node_that_swaps(false, 100);
            node.disk_rates.as_mut().unwrap().values_mut().for_each(|disk| *disk = <_>::default());
            wait(&vm_in_swap(0.1, 0.0, [pages; 3]), &node).map(|wait| wait.cpus).map_err(drop)
        };
        assert_eq!((uncounted(200.0), uncounted(0.0)), (Err(()), Ok(0.0)));
    }

    #[test]
    fn swap_that_was_not_read_yet_is_unknown() {
        let mut vm = vm_in_swap(0.1, 0.0, [200.0; 3]);
        vm.memory.stat.push(None);
        assert!(wait(&vm, &node_that_swaps(false, 100)).is_err());
        assert!(wait(&vm, &node(false)).is_ok());
        assert!(needs(&vm, &node_that_swaps(false, 100)).contains(Needs::SWAPPED_IN));
    }

    #[test]
    fn where_nothing_counts_pages_in_swap_pressure_shows_them() {
        let of = |change: fn(&mut Readings)| {
            let mut vm = vm_in_swap(0.5, 0.3, [200.0; 3]);
            change(&mut vm);
            wait(&vm, &node_that_swaps(false, 100)).map(|wait| wait.node.get())
        };
        assert_eq!(of(|vm| vm.memory.in_use = Some(None)), Ok(0.3), "the controller is off");
        let before_linux_5_9 = |vm: &mut Readings| {
            let none = || Arc::new(MemoryStat { pgmajfault: Some(7), ..MemoryStat::default() });
            vm.memory.stat = window(none(), none());
        };
        assert_eq!(of(before_linux_5_9), Ok(0.3));
    }

    #[test]
    fn what_could_not_be_read_is_unknown_and_bounded_by_its_memory() {
        let unknown = |change: fn(&mut Readings)| {
            let mut vm = vm(true, Some(80));
            vm.memory.in_use = Some(Some(4096));
            change(&mut vm);
            wait(&vm, &node(true)).map(|_| ()).map_err(|unknown| unknown.most_demand)
        };
        assert_eq!(unknown(|_| ()), Ok(()));
        assert_eq!(unknown(|vm| vm.memory.limit_hits.push(None)), Err(4096.0));
        assert_eq!(unknown(|vm| vm.pressure.memory.push(None)), Err(4096.0));
        assert_eq!(unknown(|vm| vm.memory.in_use = None), Err(f64::INFINITY));
    }

    #[test]
    fn files_are_read_after_the_pressure_has_moved() {
        let (mut node, calm) = (node(false), container(0.0, 1.0, 0.0, None));
        node.pressure.memory = pressure(0.0);
        assert_eq!(needs(&calm, &node), Needs::empty());
        assert_eq!(needs(&vm(false, None), &node), Needs::LIMIT_HITS | Needs::CPU_COUNTERS);
        node.pressure.memory = pressure(0.1);
        assert_eq!(needs(&calm, &node), Needs::MEMORY_IN_USE);
    }
}
