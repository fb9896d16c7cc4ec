//! The score of nodes that are put together by hand.

use super::*;
use crate::cgroup_path::Place;
use crate::identity::Vm;
use crate::rates::{CpuRates, IoRates, MemoryRates, PressureRates, Room, ThreadRates, WaitShares};
use std::time::Instant;

const TICK: Duration = Duration::from_secs(5);

pub(super) fn ratio(value: f64) -> Option<Ratio> {
    Ratio::of(value, 1.0)
}

/// A VM that stalled for `full`, used so many CPUs, and was throttled for so many.
pub(super) fn vm(number: u64, full: f64, usage: f64, throttled: f64) -> MemberRates {
    let path = format!("/kubepods/pod{number}/{number:064x}");
    let workload = Workload {
        namespace: "vms".into(),
        pod: format!("virt-launcher-{number}").into(),
        container: "compute".into(),
        name: "".into(),
        image: "".into(),
        cpu_request: None,
        vm: Some(Arc::new(Vm {
            name: format!("vm-{number}").into(),
            uid: "".into(),
            awaits_handover: false,
        })),
    };
    let nothing = WaitShares { some: ratio(0.0), full: ratio(0.0) };
    MemberRates {
        cgroup: Arc::new(Cgroup {
            id: CgroupId(number),
            place: Place::of_path(&path),
            path: path.into(),
            made_at_s: None,
        }),
        workload: Some(Arc::new(workload)),
        pressure: PressureRates {
            cpu: WaitShares { some: ratio(full), full: ratio(full) },
            memory: nothing,
            io: nothing,
        },
        cpu: CpuRates {
            waits: WaitShares { some: ratio(full), full: ratio(full) },
            usage: Some(usage),
            throttled: Some(throttled),
            room: Some(Room { quota: None, cpus: None, tasks: Some(8.0) }),
        },
        threads: None,
        memory: MemoryRates { own_limit: Some(false), scanned_for_node: None },
        io: IoRates { has_max: Some(false), others: ratio(1.0), ..IoRates::default() },
    }
}

pub(super) fn node(members: Vec<MemberRates>) -> Rates {
    let told = WaitShares { some: ratio(0.5), full: ratio(0.0) };
    Rates {
        window: TICK,
        node: PressureRates { cpu: told, memory: told, io: told },
        utilization: ratio(0.5),
        steal: ratio(0.0),
        cpus: Some(4),
        tells_pressure: true,
        reclaims: Some(false),
        members: Some(members),
        ..Rates::default()
    }
}

#[allow(clippy::disallowed_methods, reason = "any moment will do")]
pub(super) fn moment() -> Moment {
    Moment { at: Instant::now(), unix_ms: 0 }
}

fn scorer() -> Scorer {
    Scorer::new(vec![Resource::Cpu, Resource::Memory])
}

/// The score after a minute of the same.
fn settled(rates: &Rates) -> NodeScore {
    let mut scorer = scorer();
    (0..12).for_each(|_| drop(scorer.advance(moment(), rates)));
    scorer.advance(moment(), rates)
}

fn cpu(rates: &Rates) -> f64 {
    settled(rates).contention.cpu.unwrap().get()
}

#[test]
fn a_vm_that_only_its_own_limit_holds_back_does_not_count() {
    // As measured: 4 loops with a quota of a twentieth of a CPU, on a node of 4 that is 2 % busy.
    let score = settled(&node(vec![vm(1, 0.988, 0.05, 3.77)]));
    assert!(score.score.unwrap().get() < 0.01, "{score:?}");
    let waiting = score.members[0].waiting.cpu.unwrap();
    assert!(waiting.own_limit.get() > 0.98 && waiting.raw.get() == 0.988);
    assert_eq!(score.held_back, 0);
    let waited = score.members[0].waited.cpu;
    assert!(waited.own_limit_s > 64.0 && waited.node_s < 0.5, "{waited:?}");
}

#[test]
fn vms_that_share_too_few_cpus_wait_for_half_of_what_they_want() {
    let contended = || (1..=4).map(|number| vm(number, 0.5, 1.0, 0.0));
    let score = settled(&node(contended().collect()));
    assert!((score.score.unwrap().get() - 0.5).abs() < 1e-9);
    assert_eq!(score.held_back, 4);
    assert_eq!(score.members[0].wait.unwrap().get(), 0.5);
    // One among them that its own limit holds back changes nothing.
    let with_throttled = contended().chain([vm(5, 0.987, 0.05, 3.83)]).collect();
    assert!((cpu(&node(with_throttled)) - 0.5).abs() < 1e-9);
    // Nor do fifty that are idle.
    let with_idle = contended().chain((10..60).map(|number| vm(number, 0.0, 0.001, 0.0)));
    assert!((cpu(&node(with_idle.collect())) - 0.5).abs() < 1e-9);
}

#[test]
fn the_nodes_total_tells_on_how_many_cpus_vms_wait_and_only_in_a_window_without_changes() {
    // As measured: eight threads of four VMs, moved about on four CPUs, waited for half of what
    // they wanted.
    let vms = || (1..=4).map(|number| vm(number, 0.42, 0.98, 0.0));
    let told = Rates { run_delay: Some(4.0), bystanders: Some(vec![]), ..node(vms().collect()) };
    assert!((cpu(&told) - 0.5).abs() < 0.01, "{}", cpu(&told));
    let score = settled(&told);
    let wait = score.members[0].wait.unwrap().get();
    assert!((wait - 0.5).abs() < 0.01, "{wait}");
    let least = cpu(&node(vms().collect()));
    assert!((0.4..0.45).contains(&least), "{least}");
    assert_eq!(cpu(&Rates { bystanders: None, ..told.clone() }), least);
    assert_eq!(cpu(&Rates { run_delay: None, ..told.clone() }), least);
    // The same waiting, when system daemons or another pod explain it.
    let daemon = CpuRates {
        waits: WaitShares { some: ratio(0.6), full: ratio(0.6) },
        usage: Some(0.4),
        throttled: Some(0.0),
        room: Some(Room { quota: None, cpus: None, tasks: Some(100.0) }),
    };
    assert_eq!(cpu(&Rates { bystanders: Some(vec![daemon]), ..told }), least);
}

#[test]
fn a_starved_large_vm_is_seen_among_small_ones_and_an_odd_small_one_is_not() {
    let small = |count: u64| (10..10 + count).map(|number| vm(number, 0.0, 0.1, 0.0));
    assert!(cpu(&node(small(10).chain([vm(1, 0.4, 2.0, 0.0)]).collect())) >= 0.4);
    assert!(cpu(&node(small(10).chain([vm(1, 0.1, 0.02, 0.0)]).collect())) < 0.01);
}

#[test]
fn a_vm_that_is_nearly_idle_is_not_held_back_however_it_waits_for_that_little() {
    let score = settled(&node(vec![vm(1, 0.5, 1.0, 0.0), vm(2, 0.005, 0.005, 0.0)]));
    assert!(score.members[1].contention.cpu.unwrap().get() >= 0.4);
    assert_eq!(score.held_back, 1);
}

#[test]
fn a_node_that_hardly_anybody_asks_anything_of_scores_0() {
    assert_eq!(cpu(&node(vec![])), 0.0);
    assert_eq!(cpu(&node(vec![vm(1, 0.02, 0.02, 0.0)])), 0.0);
    assert!(cpu(&node(vec![vm(1, 0.2, 0.2, 0.0)])) > 0.4);
    // A floor of 0.08 CPUs, and half as much again.
    let little = cpu(&node(vec![vm(1, 0.06, 0.06, 0.0)]));
    assert!((0.2..0.3).contains(&little), "{little}");
}

#[test]
fn what_cannot_be_told_is_absent() {
    let unknown = |change: fn(&mut Rates)| {
        let mut rates = node(vec![vm(1, 0.5, 1.0, 0.0)]);
        change(&mut rates);
        let score = settled(&rates);
        (score.score, score.contention.cpu, score.contention.memory)
    };
    let zero = ratio(0.0);
    assert_eq!(unknown(|rates| rates.members = None), (None, None, None));
    assert_eq!(unknown(|rates| rates.node.cpu = WaitShares::default()), (None, None, zero));
    let no_stat = |rates: &mut Rates| {
        rates.members.iter_mut().flatten().for_each(|member| member.cpu.usage = None);
    };
    assert_eq!(unknown(no_stat), (None, None, zero));
    let no_limits = |rates: &mut Rates| {
        for member in rates.members.iter_mut().flatten() {
            member.pressure.memory.some = ratio(0.3);
            member.memory.own_limit = None;
        }
    };
    let (score, cpu, memory) = unknown(no_limits);
    assert_eq!((score, memory), (None, None));
    assert!(cpu.is_some());
}

#[test]
fn one_container_that_does_not_read_costs_itself() {
    let mut unread = vm(2, 0.5, 1.0, 0.0);
    unread.cpu.throttled = None;
    let score = settled(&node(vec![vm(1, 0.5, 1.0, 0.0), unread]));
    assert!((score.score.unwrap().get() - 0.5).abs() < 1e-9);
    assert_eq!(score.members[1].waiting.cpu, None);
}

#[test]
fn memory_counts_while_the_node_reclaims_and_as_far_as_no_own_limit_does() {
    let memory = |reclaims, own_limit, scanned_for_node: Option<f64>| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        member.pressure.memory.some = ratio(0.3);
        let scanned_for_node = scanned_for_node.and_then(ratio);
        member.memory = MemoryRates { own_limit: Some(own_limit), scanned_for_node };
        let score = settled(&Rates { reclaims: Some(reclaims), ..node(vec![member]) });
        let waited = score.members[0].waited.memory;
        (score.score.unwrap().get(), waited.node_s > 0.0, waited.own_limit_s > 0.0)
    };
    assert_eq!(memory(false, false, None), (0.0, false, false));
    assert_eq!(memory(false, true, None), (0.0, false, true));
    assert_eq!(memory(false, true, Some(0.8)), (0.0, false, true));
    // Nothing tells how much was for the node: nothing is put on it.
    assert_eq!(memory(true, true, None), (0.0, false, true));
    let (score, node, own_limit) = memory(true, true, Some(0.8));
    assert!((score - 0.24).abs() < 1e-9 && node && own_limit);
    let (score, node, own_limit) = memory(true, false, Some(0.8));
    assert!((score - 0.3).abs() < 1e-9 && node && !own_limit);
}

#[test]
fn io_is_told_but_not_part_of_the_score_and_own_io_limits_are_left_out() {
    let io = |some, has_max, others: Option<f64>| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        member.pressure.io.some = ratio(some);
        let others = others.and_then(ratio);
        member.io = IoRates { has_max: Some(has_max), others, ..IoRates::default() };
        let score = settled(&node(vec![member]));
        assert_eq!(score.score, ratio(0.0));
        score.contention.io.map(|contention| (contention.get() * 1e6).round() / 1e6)
    };
    // Of a disk that others use too, as much as they use of it.
    assert_eq!(io(0.4, false, Some(1.0)), Some(0.4));
    assert_eq!(io(0.4, false, Some(0.25)), Some(0.1));
    // A disk of its own is as slow as it is.
    assert_eq!(io(0.4, false, Some(0.0)), Some(0.0));
    // Nobody knows yet who else uses it, which matters where it waits for it at all.
    assert_eq!(io(0.4, false, None), None);
    assert_eq!(io(0.005, false, None), Some(0.005));
    assert_eq!(io(0.4, true, Some(1.0)), None);
}

#[test]
fn io_is_what_reads_took_and_whole_what_was_in_swap() {
    let io = |some, reading, swapped_in, own_limit| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        member.pressure.io.some = ratio(some);
        member.memory.own_limit = Some(own_limit);
        let (has_max, others) = (Some(false), ratio(0.5));
        let (reading, swapped_in) = (Some(reading), ratio(swapped_in));
        member.io = IoRates { has_max, others, reading, swapped_in, ..member.io };
        let score = settled(&node(vec![member]));
        (score.contention.io.unwrap().get() * 1e6).round() / 1e6
    };
    // As measured on two CPUs: of a thread that slept for .7 pressure tells the half.
    assert_eq!(io(0.4, 0.7, 0.0, false), 0.35);
    // Reads that nobody waits for do not make it less, nor more than it can have been.
    assert_eq!(io(0.4, 0.1, 0.0, false), 0.2);
    assert_eq!(io(0.4, 30.0, 0.0, false), 0.5);
    assert_eq!(io(0.02, 30.0, 0.0, false), 0.04);
    // What the node put into swap it would not have to read; what its own limit did, it would.
    assert_eq!(io(0.4, 0.7, 1.0, false), 0.7);
    assert_eq!(io(0.4, 0.7, 0.5, false), 0.525);
    assert_eq!(io(0.4, 0.7, 1.0, true), 0.35);
}

#[test]
fn io_is_whole_what_left_the_page_cache_for_others_memory() {
    let io = |swapped_in, displaced, own_limit| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        member.pressure.io.some = ratio(0.4);
        member.memory.own_limit = Some(own_limit);
        let (has_max, others) = (Some(false), ratio(0.25));
        let (swapped_in, displaced) = (ratio(swapped_in), ratio(displaced));
        member.io = IoRates { has_max, others, swapped_in, displaced, ..member.io };
        let score = settled(&node(vec![member]));
        (score.contention.io.unwrap().get() * 1e6).round() / 1e6
    };
    // The rest of its reads wait for the disk as others use it.
    assert_eq!(io(0.0, 0.6, false), 0.28);
    assert_eq!(io(0.3, 0.6, false), 0.37);
    assert_eq!(io(0.6, 0.6, false), 0.4);
    assert_eq!(io(0.0, 0.6, true), 0.1);
}

#[test]
fn what_comes_back_from_swap_is_waiting_for_memory() {
    let memory = |stalled, own_limit, swapped_in, unstalled| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        (member.pressure.memory.some, member.pressure.io.some) = (ratio(stalled), ratio(0.2));
        member.memory.own_limit = Some(own_limit);
        let (reading, swapped_in) = (Some(0.4), ratio(swapped_in));
        let swapped_in_unstalled = ratio(unstalled);
        member.io = IoRates { reading, swapped_in, swapped_in_unstalled, ..member.io };
        let score = settled(&Rates { reclaims: Some(true), ..node(vec![member]) });
        (score.contention.memory.unwrap().get() * 1e6).round() / 1e6
    };
    // As measured on Linux 6.1, which calls none of it a stall.
    assert_eq!(memory(0.0, false, 1.0, 1.0), 0.4);
    // What it waits to get memory comes on top of that.
    assert_eq!(memory(0.3, false, 1.0, 1.0), 0.7);
    // As newer kernels have it: what they call a stall is in the pressure already.
    assert_eq!(memory(0.3, false, 0.5, 0.0), 0.3);
    assert_eq!(memory(0.3, false, 0.5, 0.25), 0.4);
    // Of which pressure, an average over CPUs, may tell a part.
    assert_eq!(memory(0.1, false, 1.0, 0.0), 0.4);
    // What its own limit put there is its own.
    assert_eq!(memory(0.0, true, 1.0, 1.0), 0.0);
}

#[test]
fn steal_from_below_is_the_nodes_shortage_too() {
    let stolen = |members| Rates { steal: ratio(0.25), ..node(members) };
    let score = settled(&stolen(vec![vm(1, 0.0, 1.0, 0.0)]));
    assert!((score.score.unwrap().get() - 0.25 / 0.75).abs() < 1e-9);
    assert!((score.steal.unwrap().get() - 0.25 / 0.75).abs() < 1e-9);
    // Where nobody wants anything, nothing was stolen from anybody.
    assert_eq!(cpu(&stolen(vec![])), 0.0);
}

#[test]
fn there_is_no_score_without_a_history_unless_one_was_taken_over() {
    let rates = node(vec![vm(1, 0.5, 1.0, 0.0)]);
    let mut fresh = scorer();
    let scores: Vec<bool> =
        (0..7).map(|_| fresh.advance(moment(), &rates).score.is_some()).collect();
    assert_eq!(scores, [false, false, false, false, false, true, true]);

    let mut heir = scorer();
    heir.adopt(&NodePressure {
        score: 40,
        cpu: Some(40),
        memory: Some(0),
        io: None,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
        basis: basis(CpuSource::Psi),
    });
    let first = heir.advance(moment(), &rates);
    let expected = 0.4 + 0.1 * (1.0 - (-5.0_f64 / 30.0).exp());
    assert!((first.score.unwrap().get() - expected).abs() < 1e-9);
    assert_eq!(first.contention.io, None);
}

#[test]
fn run_delay_needs_no_psi_and_never_falls_back_to_it() {
    let with_threads = |threads| MemberRates { threads, ..vm(1, 0.9, 1.0, 0.0) };
    let node = |threads, tells_pressure| Rates {
        cpu_source: CpuSource::RunDelay,
        tells_pressure,
        ..node(vec![with_threads(threads)])
    };
    let half = Some(ThreadRates { ran: 1.0, delayed: 1.0 });
    let score = settled(&node(half, true));
    assert_eq!((score.basis, score.score.unwrap().get()), (Basis::RunDelay(4), 0.5));
    // Where PSI is off nobody tells of memory: the score is CPU's.
    let mut without_psi = node(half, false);
    without_psi.node = PressureRates::default();
    without_psi.members.iter_mut().flatten().for_each(|vm| vm.pressure = PressureRates::default());
    let score = settled(&without_psi);
    assert_eq!((score.contention.memory, score.score.unwrap().get()), (None, 0.5));
    // Threads that are not seen are not made up for by pressure, which is there.
    let unseen = settled(&node(None, true));
    assert_eq!((unseen.contention.cpu, unseen.score), (None, None));
    assert!(unseen.contention.memory.is_some());
}

#[test]
fn a_vm_that_goes_takes_its_counters_along() {
    let mut scorer = scorer();
    scorer.advance(moment(), &node(vec![vm(1, 0.5, 1.0, 0.0)]));
    scorer.advance(moment(), &node(vec![]));
    let back = scorer.advance(moment(), &node(vec![vm(1, 0.5, 1.0, 0.0)]));
    assert!((back.members[0].waited.cpu.node_s - 2.5).abs() < 1e-9);
}

proptest::proptest! {
    #[test]
    fn every_score_is_a_number_from_0_to_1(
        members in proptest::collection::vec((0.0..=1.0, 0.0..=300.0, 0.0..=300.0), 0..8),
        steal in 0.0..=1.0,
        run_delay in proptest::option::of(0.0..=1e5),
    ) {
        let members = members.into_iter().zip(1..);
        let members = members.map(|((full, usage, throttled), n)| vm(n, full, usage, throttled));
        let score = settled(&Rates {
            steal: ratio(steal),
            run_delay,
            bystanders: Some(vec![]),
            ..node(members.collect())
        });
        proptest::prop_assert!((0.0..=1.0).contains(&score.score.unwrap().get()));
        for member in score.members {
            let waiting = member.waiting.cpu.unwrap();
            proptest::prop_assert!(waiting.own_limit <= waiting.raw);
            proptest::prop_assert!((0.0..=1.0).contains(&waiting.left.get()));
            proptest::prop_assert!((0.0..=1.0).contains(&member.contention.cpu.unwrap().get()));
            proptest::prop_assert!(waiting.demand >= 0.0 && waiting.demand.is_finite());
        }
    }
}
