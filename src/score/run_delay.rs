//! One container's waiting for CPU by its threads' run delay, which is how long each of them was
//! kept from running: what pressure is a likeness of. Pure.

use super::contention::Waiting;
use super::cpu_range::cpus_of;
use crate::rates::{MemberRates, Ratio, ThreadRates};

/// Who waits for less than this share of its time does not wait: what held it back is not read then.
const NEGLIGIBLE: f64 = 0.001;

/// What is left of the delay when its own limit is taken off; `None` where a file that matters could
/// not be read. `cpus` are the node's.
pub(super) fn run_delay_waiting(member: &MemberRates, cpus: Option<u64>) -> Option<Waiting> {
    let threads = member.threads?;
    let waited = if threads.delayed < NEGLIGIBLE {
        threads.delayed
    } else {
        (threads.delayed - own_delay(member, threads, cpus)?).min(left(member)?).max(0.0)
    };
    let demand = waited + threads.ran;
    // For each CPU that was wanted, as CPU ready is told.
    let share = |delay: f64| Ratio::of(delay, (threads.delayed + threads.ran).max(1.0));
    Some(Waiting {
        raw: share(threads.delayed)?,
        own_limit: share(threads.delayed - waited)?,
        left: Ratio::of(waited, demand.max(1.0))?,
        contention: Ratio::of(if waited > 0.0 { waited / demand } else { 0.0 }, 1.0)?,
        demand,
    })
}

/// For how long its own limit made its threads wait: while a CPU is throttled, as many wait there as
/// queue on one of its CPUs on average, and one at the least. It runs on none that is throttled; Linux
/// 7.2 counts some of that time, too.
fn own_delay(member: &MemberRates, threads: ThreadRates, cpus: Option<u64>) -> Option<f64> {
    let throttled = member.cpu.throttled?;
    let cpus = cpus_of(&member.cpu.room?, cpus);
    let throttled = throttled.min((cpus - threads.ran).max(0.0));
    let queued = (threads.ran + threads.delayed) / cpus;
    Some((throttled * queued.max(1.0)).min(threads.delayed))
}

/// What its limit leaves, in CPUs: who gets what it allows is not held back by the node.
fn left(member: &MemberRates) -> Option<f64> {
    match member.cpu.room?.quota {
        Some(quota) => Some((quota - member.cpu.usage?).max(0.0)),
        None => Some(f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{CpuRates, Room};
    use crate::score::tests::vm;
    use proptest::prelude::*;

    /// Threads that ran and waited for so many CPUs, of a VM with perhaps a quota.
    fn member(ran: f64, delayed: f64, throttled: f64, quota: Option<f64>) -> MemberRates {
        let room = Room { quota, cpus: None, tasks: None };
        let cpu = CpuRates {
            usage: Some(ran),
            throttled: Some(throttled),
            room: Some(room),
            ..CpuRates::default()
        };
        let threads = Some(ThreadRates { ran, delayed });
        MemberRates { cpu, threads, ..vm(1, 0.0, 0.0, 0.0) }
    }

    fn waiting(member: &MemberRates) -> (f64, f64) {
        let waiting = run_delay_waiting(member, Some(4)).unwrap();
        (waiting.contention.get(), waiting.demand)
    }

    #[test]
    fn the_share_is_waited_over_wanted() {
        assert_eq!(waiting(&member(1.0, 1.0, 0.0, None)), (0.5, 2.0));
        assert_eq!(waiting(&member(0.5, 0.0, 0.0, None)), (0.0, 0.5));
        assert_eq!(waiting(&member(0.0, 0.0, 0.0, None)), (0.0, 0.0));
        // CPU ready: two CPUs were wanted, and each was waited for half of the time.
        let told = run_delay_waiting(&member(1.0, 1.0, 0.0, None), Some(4)).unwrap();
        assert_eq!((told.raw.get(), told.left.get(), told.own_limit.get()), (0.5, 0.5, 0.0));
    }

    #[test]
    fn what_its_own_limit_took_is_not_the_nodes() {
        // One thread of a quota of a fifth: for the rest of the time it is throttled.
        let (contention, demand) = waiting(&member(0.2, 0.8, 0.8, Some(0.2)));
        assert!(contention < 1e-9 && (demand - 0.2).abs() < 1e-9, "{contention} {demand}");
        // Eight threads on four CPUs: two wait behind each throttled one.
        assert_eq!(waiting(&member(0.5, 7.0, 3.5, None)), (0.4375 / 0.9375, 0.9375));
        // As measured on two CPUs of Linux 7.2: it got 0.36 of a CPU less than its limit allows, and more
        // was counted as throttled than it left of the CPUs.
        let fills = member(1.64, 2.38, 1.05, Some(2.0));
        let waiting_there = run_delay_waiting(&fills, Some(2)).unwrap();
        assert!((waiting_there.contention.get() - 0.18).abs() < 1e-9, "{waiting_there:?}");
        // Who gets all that its limit allows is not held back, however its threads queue...
        assert_eq!(waiting(&member(2.0, 2.0, 0.0, Some(2.0))).0, 0.0);
        // ...and who gets half of it is.
        assert_eq!(waiting(&member(0.5, 1.5, 0.0, Some(1.0))), (0.5, 1.0));
    }

    #[test]
    fn what_was_not_read_is_not_guessed() {
        let known = member(1.0, 1.0, 0.0, Some(4.0));
        for cpu in [
            CpuRates { usage: None, ..known.cpu },
            CpuRates { throttled: None, ..known.cpu },
            CpuRates { room: None, ..known.cpu },
        ] {
            assert_eq!(run_delay_waiting(&MemberRates { cpu, ..known.clone() }, Some(4)), None);
        }
        assert_eq!(run_delay_waiting(&MemberRates { threads: None, ..known }, Some(4)), None);
        // Of who hardly waited nothing else was read.
        let calm = MemberRates { cpu: CpuRates::default(), ..member(1.0, 0.0001, 0.0, None) };
        assert!(waiting(&calm).0 < 0.001);
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_grows_with_the_delay(
            (ran, delayed, more) in (0.0..300.0, 0.0..1e5, 0.0..1e5),
            throttled in 0.0..300.0,
            quota in proptest::option::of(0.0..300.0),
            cpus in proptest::option::of(0u64..300),
        ) {
            let share = |delayed| {
                let member = member(ran, delayed, throttled, quota);
                run_delay_waiting(&member, cpus).unwrap()
            };
            let (low, high) = (share(delayed), share(delayed + more));
            prop_assert!(low.demand.is_finite() && low.demand >= 0.0);
            prop_assert!(low.contention.get() <= 1.0);
            if throttled == 0.0 {
                prop_assert!(low.contention.get() <= high.contention.get() + 1e-9);
            }
        }
    }
}
