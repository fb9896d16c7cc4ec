//! The score of nodes that are put together by hand.

use super::*;
use crate::cgroup_path::Place;
use crate::identity::Vm;
use crate::kernel::limits::{CpuMax, Limit};
use crate::rates::{
    CpuRates, IoRates, MemoryRates, NodeRates, PressureRates, ThreadRates, WaitShares,
};
use crate::sample::CpuLimits;
use std::time::Instant;

const TICK: Duration = Duration::from_secs(5);

pub(super) fn ratio(value: f64) -> Option<Ratio> {
    Ratio::of(value, 1.0)
}

/// Limits with a quota of so many CPUs.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
pub(super) fn limits(quota: Option<f64>, tasks: Option<u64>) -> CpuLimits {
    let max = |cpus: f64| CpuMax { quota_us: Limit::At((cpus * 1e6) as u64), period_us: 1_000_000 };
    CpuLimits { container_max: quota.map(max), tasks, ..CpuLimits::default() }
}

/// A VM that stalled for `full`, used so many CPUs, and was throttled for so many.
pub(super) fn vm(number: u64, full: f64, usage: f64, throttled: f64) -> ContainerRates {
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
    ContainerRates {
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
            limits: Some(limits(None, Some(8))),
        },
        threads: None,
        memory: MemoryRates { own_limit: Some(false), ..MemoryRates::default() },
        io: IoRates { has_max: Some(false), others: ratio(1.0), ..IoRates::default() },
    }
}

pub(super) fn node(containers: Vec<ContainerRates>) -> TickRates {
    let some = WaitShares { some: ratio(0.5), full: ratio(0.0) };
    TickRates {
        node: NodeRates {
            window: TICK,
            pressure: PressureRates { cpu: some, memory: some, io: some },
            utilization: ratio(0.5),
            steal: ratio(0.0),
        },
        cpus: Some(4),
        run_delay: None,
        memory_utilization: None,
        reclaims: Some(false),
        has_pressure: true,
        cpu_source: CpuSource::Psi,
        containers: Some(containers),
        others: None,
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
fn settled(rates: &TickRates) -> NodeScore {
    let mut scorer = scorer();
    (0..12).for_each(|_| drop(scorer.advance(moment(), rates)));
    scorer.advance(moment(), rates)
}

fn cpu(rates: &TickRates) -> f64 {
    settled(rates).contention.cpu.unwrap().get()
}

#[test]
fn a_vm_that_only_its_own_limit_throttles_has_no_contention() {
    // As measured: 4 loops with a quota of a twentieth of a CPU, on a node of 4 that is 2 % busy.
    let score = settled(&node(vec![vm(1, 0.988, 0.05, 3.77)]));
    assert!(score.score.unwrap().get() < 0.01, "{score:?}");
    let waiting = score.containers[0].wait.cpu.unwrap();
    assert!(waiting.own_limit.get() > 0.98 && waiting.raw.get() == 0.988);
    assert_eq!(score.waiting_vms, 0);
    let waited = score.containers[0].waited.cpu;
    assert!(waited.own_limit_s > 64.0 && waited.node_s < 0.5, "{waited:?}");
}

#[test]
fn vms_that_share_half_the_cpus_they_want_have_a_contention_of_half() {
    let contended = || (1..=4).map(|number| vm(number, 0.5, 1.0, 0.0));
    let score = settled(&node(contended().collect()));
    assert!((score.score.unwrap().get() - 0.5).abs() < 1e-9);
    assert_eq!(score.waiting_vms, 4);
    assert_eq!(score.containers[0].cpu_ready.unwrap().get(), 0.5);
    // One among them that its own limit holds back changes nothing.
    let with_throttled = contended().chain([vm(5, 0.987, 0.05, 3.83)]).collect();
    assert!((cpu(&node(with_throttled)) - 0.5).abs() < 1e-9);
    // Nor do fifty that are idle.
    let with_idle = contended().chain((10..60).map(|number| vm(number, 0.0, 0.001, 0.0)));
    assert!((cpu(&node(with_idle.collect())) - 0.5).abs() < 1e-9);
}

#[test]
fn a_starved_large_vm_is_seen_among_small_ones_and_an_odd_small_one_is_not() {
    let small = |count: u64| (10..10 + count).map(|number| vm(number, 0.0, 0.1, 0.0));
    assert!(cpu(&node(small(10).chain([vm(1, 0.4, 2.0, 0.0)]).collect())) >= 0.4);
    assert!(cpu(&node(small(10).chain([vm(1, 0.1, 0.02, 0.0)]).collect())) < 0.01);
}

#[test]
fn a_vm_that_wants_little_is_not_counted_as_waiting() {
    let score = settled(&node(vec![vm(1, 0.5, 1.0, 0.0), vm(2, 0.02, 0.02, 0.0)]));
    assert!(score.containers[1].contention.cpu.unwrap().get() >= 0.4);
    assert_eq!(score.waiting_vms, 1);
}

#[test]
fn a_node_with_hardly_any_demand_scores_0() {
    assert_eq!(cpu(&node(vec![])), 0.0);
    assert_eq!(cpu(&node(vec![vm(1, 0.02, 0.02, 0.0)])), 0.0);
    assert!(cpu(&node(vec![vm(1, 0.2, 0.2, 0.0)])) > 0.4);
    // A floor of 0.08 CPUs, and half as much again.
    let little = cpu(&node(vec![vm(1, 0.06, 0.06, 0.0)]));
    assert!((0.2..0.3).contains(&little), "{little}");
}

#[test]
fn what_could_not_be_read_is_absent() {
    let unknown = |change: fn(&mut TickRates)| {
        let mut rates = node(vec![vm(1, 0.5, 1.0, 0.0)]);
        change(&mut rates);
        let score = settled(&rates);
        (score.score, score.contention.cpu, score.contention.memory)
    };
    let zero = ratio(0.0);
    assert_eq!(unknown(|rates| rates.containers = None), (None, None, None));
    assert_eq!(
        unknown(|rates| rates.node.pressure.cpu = WaitShares::default()),
        (None, None, zero)
    );
    let no_stat = |rates: &mut TickRates| {
        rates.containers.iter_mut().flatten().for_each(|member| member.cpu.usage = None);
    };
    assert_eq!(unknown(no_stat), (None, None, zero));
    let no_limits = |rates: &mut TickRates| {
        for member in rates.containers.iter_mut().flatten() {
            member.pressure.memory.some = ratio(0.3);
            member.memory.own_limit = None;
        }
    };
    let (score, cpu, memory) = unknown(no_limits);
    assert_eq!((score, memory), (None, None));
    assert!(cpu.is_some());
}

#[test]
fn a_container_that_could_not_be_read_costs_itself() {
    let mut unread = vm(2, 0.5, 1.0, 0.0);
    unread.cpu.throttled = None;
    let score = settled(&node(vec![vm(1, 0.5, 1.0, 0.0), unread]));
    assert!((score.score.unwrap().get() - 0.5).abs() < 1e-9);
    assert_eq!(score.containers[1].wait.cpu, None);
}

#[test]
fn memory_counts_while_the_node_reclaims_less_the_part_of_own_limits() {
    let memory = |reclaims, own_limit, scanned_for_node: Option<f64>| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        member.pressure.memory.some = ratio(0.3);
        let scanned_for_node = scanned_for_node.and_then(ratio);
        member.memory =
            MemoryRates { own_limit: Some(own_limit), scanned_for_node, ..member.memory };
        let score = settled(&TickRates { reclaims: Some(reclaims), ..node(vec![member]) });
        let waited = score.containers[0].waited.memory;
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
fn memory_weighs_by_what_containers_have() {
    let memory = |large: f64| {
        let with = |number, gigabytes, waits| {
            let mut container = vm(number, 0.0, 0.1, 0.0);
            container.memory.current = Some(gigabytes);
            container.pressure.memory.some = ratio(waits);
            container
        };
        let large = (1..=4).map(|number| with(number, large, 0.8));
        let small = (5..=20).map(|number| with(number, 1.0, 0.0));
        let rates = TickRates { reclaims: Some(true), ..node(large.chain(small).collect()) };
        settled(&rates).contention.memory.unwrap().get()
    };
    assert!(memory(32.0) > 0.79, "four large VMs that thrash have most of the memory");
    assert_eq!(memory(1.0), 0.0);
}

#[test]
fn cpu_ready_is_of_the_vm_at_the_quartile() {
    let wide = |number, ran, delayed| {
        let threads = Some(ThreadRates { ran, delayed, vcpus: Some(4.0) });
        ContainerRates { threads, ..vm(number, 0.0, 0.0, 0.0) }
    };
    let containers = vec![wide(1, 0.4, 0.04), wide(2, 0.02, 0.02)];
    let rates = TickRates { cpu_source: CpuSource::RunDelay, ..node(containers) };
    let with_limits = |rates: &TickRates| {
        let mut rates = rates.clone();
        let all = rates.containers.iter_mut().flatten();
        all.for_each(|one| one.cpu.limits = Some(limits(None, None)));
        settled(&rates)
    };
    let score = with_limits(&rates);
    assert!((score.contention.cpu.unwrap().get() - 0.04 / 0.44).abs() < 1e-9);
    assert!((score.cpu_ready.unwrap().get() - 0.01).abs() < 1e-9);
    assert_eq!(score.waiting_vms, 0);
}

#[test]
fn a_vm_that_never_runs_has_a_contention_of_1() {
    let threads = Some(ThreadRates { ran: 0.0, delayed: 2.0, vcpus: Some(2.0) });
    let mut starved = ContainerRates { threads, ..vm(1, 1.0, 0.0, 0.0) };
    starved.cpu.limits = Some(limits(None, None));
    for cpu_source in [CpuSource::RunDelay, CpuSource::Psi] {
        let score = settled(&TickRates { cpu_source, ..node(vec![starved.clone()]) });
        assert_eq!(score.score, ratio(1.0), "{cpu_source:?}");
        assert_eq!((score.cpu_ready, score.waiting_vms), (ratio(1.0), 1), "{cpu_source:?}");
    }
}

#[test]
fn io_is_published_but_not_scored_and_containers_with_io_max_are_left_out() {
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
fn io_wait_is_the_time_of_reads_and_refaults_from_swap_count_whole() {
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
fn page_cache_evicted_for_the_memory_of_others_counts_whole() {
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
fn refaults_from_swap_are_memory_wait() {
    let memory = |stalled, own_limit, swapped_in, unstalled| {
        let mut member = vm(1, 0.0, 1.0, 0.0);
        (member.pressure.memory.some, member.pressure.io.some) = (ratio(stalled), ratio(0.2));
        member.memory.own_limit = Some(own_limit);
        let (reading, swapped_in) = (Some(0.4), ratio(swapped_in));
        let swapped_in_unstalled = ratio(unstalled);
        member.io = IoRates { reading, swapped_in, swapped_in_unstalled, ..member.io };
        let score = settled(&TickRates { reclaims: Some(true), ..node(vec![member]) });
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
fn steal_from_the_hypervisor_is_contention_of_the_node() {
    let stolen = |containers| {
        let mut rates = node(containers);
        rates.node.steal = ratio(0.25);
        rates
    };
    let score = settled(&stolen(vec![vm(1, 0.0, 1.0, 0.0)]));
    assert!((score.score.unwrap().get() - 0.25 / 0.75).abs() < 1e-9);
    assert!((score.steal.unwrap().get() - 0.25 / 0.75).abs() < 1e-9);
    // Where nobody wants anything, nothing was stolen from anybody.
    assert_eq!(cpu(&stolen(vec![])), 0.0);
}

#[test]
fn there_is_no_score_without_history_unless_a_published_one_is_adopted() {
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
    let with_threads = |threads| ContainerRates { threads, ..vm(1, 0.9, 1.0, 0.0) };
    let node = |threads, has_pressure| TickRates {
        cpu_source: CpuSource::RunDelay,
        has_pressure,
        ..node(vec![with_threads(threads)])
    };
    let half = Some(ThreadRates { ran: 1.0, delayed: 1.0, vcpus: None });
    let score = settled(&node(half, true));
    assert_eq!((score.basis, score.score.unwrap().get()), (Basis::RunDelay(5), 0.5));
    // Where PSI is off nobody tells of memory: the score is CPU's.
    let mut without_psi = node(half, false);
    without_psi.node.pressure = PressureRates::default();
    without_psi
        .containers
        .iter_mut()
        .flatten()
        .for_each(|vm| vm.pressure = PressureRates::default());
    let score = settled(&without_psi);
    assert_eq!((score.contention.memory, score.score.unwrap().get()), (None, 0.5));
    // Threads that are not seen are not made up for by pressure, which is there.
    let unseen = settled(&node(None, true));
    assert_eq!((unseen.contention.cpu, unseen.score), (None, None));
    assert!(unseen.contention.memory.is_some());
}

#[test]
fn counters_of_a_vm_start_again_when_it_comes_back() {
    let mut scorer = scorer();
    scorer.advance(moment(), &node(vec![vm(1, 0.5, 1.0, 0.0)]));
    scorer.advance(moment(), &node(vec![]));
    let back = scorer.advance(moment(), &node(vec![vm(1, 0.5, 1.0, 0.0)]));
    assert!((back.containers[0].waited.cpu.node_s - 2.5).abs() < 1e-9);
}

proptest::proptest! {
    #[test]
    fn every_score_is_a_number_from_0_to_1(
        members in proptest::collection::vec((0.0..=1.0, 0.0..=300.0, 0.0..=300.0), 0..8),
        steal in 0.0..=1.0,
        run_delay in proptest::option::of(0.0..=1e5),
    ) {
        let numbered = members.into_iter().zip(1..);
        let containers = numbered.map(|((full, usage, throttled), n)| vm(n, full, usage, throttled));
        let mut rates =
            TickRates { run_delay, others: Some(vec![]), ..node(containers.collect()) };
        rates.node.steal = ratio(steal);
        let score = settled(&rates);
        proptest::prop_assert!((0.0..=1.0).contains(&score.score.unwrap().get()));
        for container in score.containers {
            let wait = container.wait.cpu.unwrap();
            proptest::prop_assert!(wait.own_limit <= wait.raw);
            proptest::prop_assert!((0.0..=1.0).contains(&wait.node.get()));
            proptest::prop_assert!((0.0..=1.0).contains(&container.contention.cpu.unwrap().get()));
            proptest::prop_assert!(wait.demand >= 0.0 && wait.demand.is_finite());
        }
    }
}
