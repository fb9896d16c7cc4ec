//! Between which bounds a container's waiting for CPU lies, from its own files alone. Pure.
//!
//! The kernel's `some` is an average over CPUs: of each the share of time in which somebody of the
//! container waits there, weighted by the share in which somebody of it wants to run there. So it
//! says how much is waited where the container is, and not on how many CPUs that is.

use crate::rates::{CpuRates, Room};

/// Who waits for less than this share of its time does not wait: what held it back is not read then.
const NEGLIGIBLE: f64 = 0.001;

/// A container that its limit holds back on this share of its CPUs has no room to spread out.
const CROWDED: f64 = 0.5;

/// What a container waited for because of the node, in CPUs: for each thread that waits all the
/// time, 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuRange {
    /// It waits on as few CPUs as can be.
    pub(super) least: f64,
    /// Its waiting is spread evenly over all CPUs on which it may run.
    pub(super) spread: f64,
    /// And its threads queue behind each other there, as in a simple queue.
    pub(super) queued: f64,
    /// What may be a queue of its own besides, if it is one of very many threads.
    pub(super) more: f64,
    /// CPUs used.
    pub(super) usage: f64,
    /// The share of time that its own limit explains.
    pub(super) own_limit: f64,
    /// For how much its own limit made its threads wait besides.
    pub(super) own_delay: OwnDelay,
}

/// In CPUs, and rather too much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OwnDelay {
    pub(super) least: f64,
    pub(super) most: f64,
}

impl CpuRange {
    /// `None` where a file that matters could not be read. `cpus` are the node's.
    pub(super) fn of(rates: &CpuRates, cpus: Option<u64>) -> Option<Self> {
        let raw = rates.waits.some?.get();
        if raw < NEGLIGIBLE {
            return Some(Self::calm(rates.usage.unwrap_or(0.0)));
        }
        let (usage, throttled, room) = (rates.usage?, rates.throttled?, rates.room?);
        let cpus = cpus_of(&room, cpus);
        // Throttled time is summed over CPUs: over those on which it ran or would have run, and one
        // at the least, it is a share of time.
        let own = (throttled / (usage + throttled).max(1.0)).min(raw);
        let some = raw - own;
        let full = (rates.waits.full?.get() - own).max(0.0);
        // A CPU that always has to do with the container runs it when nobody of it waits in vain:
        // for `1 - full` of the time. There are at least as many as its usage fills.
        let fewest = if usage < 1.0 - full { 1.0 } else { (usage / (1.0 - full)).clamp(1.0, cpus) };
        let least = some * fewest;
        let spread = (cpus * (raw - (throttled / cpus).min(raw))).max(least);
        // As in a queue that is as long as it is often not empty: but never more than there are.
        let tasks = room.tasks.map(|tasks| (tasks - usage).max(0.0));
        let queued = (cpus * some / (1.0 - some)).min(tasks.unwrap_or(spread)).max(spread);
        // Who gets what its limit allows is not held back by the node.
        let left = room.quota.map_or(f64::INFINITY, |quota| (quota - usage).max(0.0));
        let by_node = if least > 0.0 { (left / least).min(1.0) } else { 1.0 };
        let own_limit = raw - some * by_node;
        // What waits without effect, since the limit would hold it back anyway, waits all the same.
        let in_vain = queued * (1.0 - by_node);
        let own_delay = if throttled <= 0.0 && by_node >= 1.0 {
            OwnDelay::NONE
        } else if usage + throttled < CROWDED * cpus {
            // Throttled time counts once for each CPU, and who is held back waits on one at the least.
            // There are CPUs to spare: on how many it waits is as unknown as of all other waiting.
            let least = throttled.max(own_limit).max(in_vain);
            let most = tasks.unwrap_or(least);
            OwnDelay { least: least.min(most), most }
        } else {
            // Else any number of tasks waits behind each other.
            let all =
                tasks.map_or(f64::INFINITY, |tasks| tasks * (1.0 - (1.0 - own_limit).powi(2)));
            OwnDelay::known(all.max(in_vain))
        };
        Some(Self {
            least: least.min(left),
            spread: spread.min(left),
            queued: queued.min(left),
            more: more_queued(least, some)
                .min(tasks.map_or(f64::INFINITY, |tasks| (tasks - spread).max(0.0)))
                .min(left),
            usage,
            own_limit,
            own_delay,
        })
    }

    /// The same for one of which less is known: it may wait anywhere, and want nothing else.
    pub(super) fn at_worst(rates: &CpuRates, cpus: Option<u64>) -> Option<Self> {
        let some = rates.waits.some?.get();
        let cpus = cpus_of(&rates.room.unwrap_or_default(), cpus);
        let (spread, more) = (cpus * some, more_queued(some, some));
        Some(Self { least: some, spread, queued: spread, more, ..Self::calm(0.0) })
    }

    fn calm(usage: f64) -> Self {
        Self {
            least: 0.0,
            spread: 0.0,
            queued: 0.0,
            more: 0.0,
            usage,
            own_limit: 0.0,
            own_delay: OwnDelay::NONE,
        }
    }
}

impl OwnDelay {
    const NONE: Self = Self::known(0.0);

    const fn known(delay: f64) -> Self {
        Self { least: delay, most: delay }
    }
}

/// How much longer than it looks a queue may be that is not empty for the share `some` of the time:
/// squared, since waiting comes in bursts and pressure reads too little.
fn more_queued(least: f64, some: f64) -> f64 {
    if least > 0.0 { least * ((1.0 - some).powi(-2) - 1.0) } else { 0.0 }
}

/// On how many CPUs it may run.
#[allow(clippy::cast_precision_loss, reason = "nobody has 2^52 CPUs")]
pub(super) fn cpus_of(room: &Room, cpus: Option<u64>) -> f64 {
    let node = cpus.unwrap_or(1).max(1) as f64;
    room.cpus.map_or(node, |own| own.clamp(1.0, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{Ratio, WaitShares};
    use proptest::prelude::*;

    fn rates(some: f64, full: f64, usage: f64, throttled: f64, room: Room) -> CpuRates {
        let ratio = |value| Ratio::of(value, 1.0);
        CpuRates {
            waits: WaitShares { some: ratio(some), full: ratio(full) },
            usage: Some(usage),
            throttled: Some(throttled),
            room: Some(room),
        }
    }

    fn range(some: f64, full: f64, usage: f64, throttled: f64, room: Room) -> CpuRange {
        CpuRange::of(&rates(some, full, usage, throttled, room), Some(4)).unwrap()
    }

    fn tasks(tasks: f64) -> Room {
        Room { tasks: Some(tasks), ..Room::default() }
    }

    #[test]
    fn a_thread_waits_on_one_cpu_at_the_least_and_on_all_at_the_most() {
        let one = range(0.2, 0.2, 0.7, 0.0, tasks(2.0));
        assert_eq!((one.least, one.spread), (0.2, 0.8));
        let pinned = range(0.2, 0.2, 0.7, 0.0, Room { cpus: Some(1.0), ..tasks(2.0) });
        assert_eq!((pinned.least, pinned.spread), (0.2, 0.2));
    }

    #[test]
    fn a_vm_of_many_threads_fills_as_many_cpus_as_its_usage_needs() {
        // Each of four CPUs runs it for half of the time, and makes it wait for the other.
        let four = range(0.5, 0.5, 2.0, 0.0, tasks(8.0));
        assert_eq!((four.least, four.spread), (2.0, 2.0));
        // Four threads that hardly ever run wait behind each other; more than four cannot.
        let starved = range(0.574, 0.565, 0.094, 0.0, tasks(4.0));
        assert!((starved.queued - 3.906).abs() < 1e-9, "{starved:?}");
    }

    #[test]
    fn a_limit_that_is_used_up_leaves_nothing() {
        // As measured in a lab: a VM of four threads with two CPUs, on a node that has no more,
        // and one with a twentieth of a CPU on a node of four.
        let limited = |quota| Room { quota: Some(quota), ..tasks(5.0) };
        let full = range(0.985, 0.01, 1.98, 0.005, limited(2.0));
        assert!(full.queued < 0.03 && full.own_limit > 0.95, "{full:?}");
        let small = range(0.988, 0.988, 0.05, 3.77, limited(0.05));
        assert_eq!((small.queued, small.own_limit), (0.0, 0.988));
        // One that gets half of what it may have does wait for the node.
        let held_back = range(0.5, 0.5, 0.5, 0.0, limited(1.0));
        assert_eq!((held_back.least, held_back.own_limit), (0.5, 0.0));
    }

    #[test]
    fn a_queue_within_a_limit_that_is_nearly_used_up_is_its_own() {
        // As measured: sixteen threads with two CPUs of four used 1.63 beside VMs that wanted much,
        // were not throttled, and waited for 14.4.
        let build = range(0.95, 0.55, 1.63, 0.0, Room { quota: Some(2.0), ..tasks(17.0) });
        assert!(build.queued < 0.38, "{build:?}");
        assert!((12.0..14.4).contains(&build.own_delay.least), "{build:?}");
        assert!((14.4..15.4).contains(&build.own_delay.most), "{build:?}");
        // One that has room below its limit waits for the node.
        let roomy = range(0.3, 0.3, 0.7, 0.0, Room { quota: Some(2.0), ..tasks(2.0) });
        assert_eq!(roomy.own_delay, OwnDelay::NONE);
    }

    #[test]
    fn tasks_behind_a_limit_wait_on_more_cpus_than_throttled_time_says() {
        // As measured: two threads with half a CPU of four waited for 1.5.
        let limited = range(0.52, 0.52, 0.49, 0.54, Room { quota: Some(0.5), ..tasks(2.0) });
        assert!(limited.queued < 0.02, "{limited:?}");
        assert_eq!(limited.own_delay, OwnDelay { least: 0.54, most: 1.51 });
        // More than there are cannot wait.
        let alone = range(0.9, 0.9, 0.5, 0.9, Room { quota: Some(0.5), ..tasks(1.0) });
        assert_eq!(alone.own_delay, OwnDelay::known(0.5));
    }

    #[test]
    fn what_was_not_read_is_not_guessed() {
        let known = rates(0.5, 0.5, 1.0, 0.0, tasks(2.0));
        let all = [
            CpuRates { waits: WaitShares::default(), ..known },
            CpuRates { usage: None, ..known },
            CpuRates { throttled: None, ..known },
            CpuRates { room: None, ..known },
        ];
        assert!(all.iter().all(|rates| CpuRange::of(rates, Some(4)).is_none()));
        // A CPU time that nobody read is none to speak of where nobody waited.
        let calm = rates(0.0, 0.0, 1.0, 0.0, tasks(2.0));
        let calm = CpuRange::of(&CpuRates { usage: None, ..calm }, Some(4)).unwrap();
        assert_eq!((calm.queued, calm.usage), (0.0, 0.0));
    }

    proptest! {
        #[test]
        fn bounds_are_numbers_in_order_and_grow_with_the_stall(
            (some, more) in (0.0..=1.0, 0.0..=1.0),
            part in 0.0..=1.0,
            (usage, throttled) in (0.0..=300.0, 0.0..=300.0),
            quota in proptest::option::of(0.001..300.0),
            (cpus, count) in (proptest::option::of(0.0..300.0), 0.0..1e6),
        ) {
            let room = Room { quota, cpus, tasks: Some(count) };
            let low = range(some, some * part, usage, throttled, room);
            prop_assert!(0.0 <= low.least && low.least <= low.spread && low.spread <= low.queued);
            prop_assert!(low.queued.is_finite() && low.own_delay.most.is_finite());
            prop_assert!(low.own_delay.least <= low.own_delay.most);
            prop_assert!((0.0..=1.0).contains(&low.own_limit), "{:?}", low);
            let stalled = some + (1.0 - some) * more;
            let high = range(stalled, some * part, usage, throttled, room);
            prop_assert!(high.least >= low.least - 1e-9 && high.spread >= low.spread - 1e-9);
        }
    }
}
