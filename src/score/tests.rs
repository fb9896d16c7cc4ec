//! The score of nodes with given rates.

use super::*;
use crate::clock::now;
use crate::identity::Vm;
use crate::kernel::limits::{CpuMax, Limit};
use crate::rates::{
    CpuRates, IoRates, MemoryRates, NodeRates, PressureRates, ThreadRates, WaitShares,
};
use crate::sample::CpuLimits;

const TICK: Duration = Duration::from_secs(5);
const COUNTED: [Resource; 2] = [Resource::Cpu, Resource::Memory];

pub(super) fn ratio(value: f64) -> Option<Ratio> {
    Ratio::of(value, 1.0)
}

/// Limits with a quota of this number of CPUs.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
pub(super) fn limits(quota: Option<f64>, tasks: Option<u64>) -> CpuLimits {
    let max = |cpus: f64| CpuMax { quota_us: Limit::At((cpus * 1e6) as u64), period_us: 1_000_000 };
    CpuLimits { container_max: quota.map(max), tasks, ..CpuLimits::default() }
}

/// A VM with the CPU pressure `full`, and these numbers of CPUs used and throttled.
pub(super) fn vm(number: u64, full: f64, usage: f64, throttled: f64) -> ContainerRates {
    let path = format!("/kubepods/pod{number}/{number:064x}");
    let (container, vm) = ("compute".into(), Some(Arc::new(Vm::default())));
    let waits = WaitShares { some: ratio(full), full: ratio(full) };
    let nothing = WaitShares { some: ratio(0.0), full: ratio(0.0) };
    ContainerRates {
        cgroup: Arc::new(Cgroup::new(CgroupId(number), path, None)),
        workload: Some(Arc::new(Workload { container, vm, ..Workload::default() })),
        pressure: PressureRates { cpu: waits, memory: nothing, io: nothing },
        cpu: CpuRates {
            waits,
            usage: Some(usage),
            throttled: Some(throttled),
            limits: Some(limits(None, Some(8))),
        },
        threads: None,
        memory: MemoryRates { own_limit: Some(false), ..MemoryRates::default() },
        io: IoRates { has_max: Some(false), others: ratio(1.0), ..IoRates::default() },
    }
}

/// A node of four CPUs with these containers.
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

/// The score after a minute with the same rates.
fn settled(rates: &TickRates) -> NodeScore {
    let mut scorer = Scorer::new(COUNTED.into());
    (0..12).for_each(|_| drop(scorer.advance(now(), rates)));
    scorer.advance(now(), rates)
}

/// The score of a VM that `change` was made to, while the node reclaims memory or not.
fn of_one(reclaims: bool, change: impl FnOnce(&mut ContainerRates)) -> NodeScore {
    let mut container = vm(1, 0.0, 1.0, 0.0);
    change(&mut container);
    settled(&TickRates { reclaims: Some(reclaims), ..node(vec![container]) })
}

fn rounded(share: Option<Ratio>) -> Option<f64> {
    share.map(|share| (share.get() * 1e6).round() / 1e6)
}

fn cpu(rates: &TickRates) -> f64 {
    rounded(settled(rates).contention.cpu).unwrap()
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
    assert_eq!((rounded(score.score), score.waiting_vms), (Some(0.5), 4));
    assert_eq!(score.containers[0].cpu_ready, ratio(0.5));
    // A VM that its own limit throttles does not change the score, nor do fifty idle VMs.
    assert_eq!(cpu(&node(contended().chain([vm(5, 0.987, 0.05, 3.83)]).collect())), 0.5);
    let idle = (10..60).map(|number| vm(number, 0.0, 0.001, 0.0));
    assert_eq!(cpu(&node(contended().chain(idle).collect())), 0.5);
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
    // A demand of one and a half times the floor, which is 0.08 CPUs.
    let little = cpu(&node(vec![vm(1, 0.06, 0.06, 0.0)]));
    assert!((0.2..0.3).contains(&little), "{little}");
}

#[test]
fn what_could_not_be_read_is_absent() {
    let unknown = |change: fn(&mut TickRates, &mut ContainerRates)| {
        let (mut rates, mut container) = (node(vec![]), vm(1, 0.5, 1.0, 0.0));
        change(&mut rates, &mut container);
        rates.containers = rates.containers.map(|_| vec![container]);
        let NodeScore { score, contention, .. } = settled(&rates);
        (score, rounded(contention.cpu), contention.memory)
    };
    assert_eq!(unknown(|node, _| node.containers = None), (None, None, None));
    let no_pressure = unknown(|node, _| node.node.pressure.cpu = WaitShares::default());
    assert_eq!(no_pressure, (None, None, ratio(0.0)));
    assert_eq!(unknown(|_, vm| vm.cpu.usage = None), (None, None, ratio(0.0)));
    let no_limits = unknown(|_, vm| {
        (vm.pressure.memory.some, vm.memory.own_limit) = (ratio(0.3), None);
    });
    assert_eq!(no_limits, (None, Some(0.5), None));
    // An unreadable container does not affect the other one.
    let mut unread = vm(2, 0.5, 1.0, 0.0);
    unread.cpu.throttled = None;
    let score = settled(&node(vec![vm(1, 0.5, 1.0, 0.0), unread]));
    assert_eq!((rounded(score.score), score.containers[1].wait.cpu), (Some(0.5), None));
}

#[test]
fn memory_counts_while_the_node_reclaims_less_the_part_of_own_limits() {
    let memory = |reclaims, own_limit, scanned_for_node| {
        let score = of_one(reclaims, |vm| {
            vm.pressure.memory.some = ratio(0.3);
            vm.memory = MemoryRates { own_limit: Some(own_limit), scanned_for_node, current: None };
        });
        let waited = score.containers[0].waited.memory;
        (rounded(score.score).unwrap(), waited.node_s > 0.0, waited.own_limit_s > 0.0)
    };
    assert_eq!(memory(false, false, None), (0.0, false, false));
    assert_eq!(memory(false, true, None), (0.0, false, true));
    assert_eq!(memory(false, true, ratio(0.8)), (0.0, false, true));
    // The share that was reclaimed because of the node is unknown, so it counts as 0.
    assert_eq!(memory(true, true, None), (0.0, false, true));
    assert_eq!(memory(true, true, ratio(0.8)), (0.24, true, true));
    assert_eq!(memory(true, false, ratio(0.8)), (0.3, true, false));
}

#[test]
fn memory_weighs_by_what_containers_have() {
    let memory = |large: f64| {
        let container = |number| {
            let mut container = vm(number, 0.0, 0.1, 0.0);
            let (size, waits) = if number <= 4 { (large, 0.8) } else { (1.0, 0.0) };
            (container.memory.current, container.pressure.memory.some) = (Some(size), ratio(waits));
            container
        };
        let rates = TickRates { reclaims: Some(true), ..node((1..=20).map(container).collect()) };
        rounded(settled(&rates).contention.memory)
    };
    assert_eq!(memory(32.0), Some(0.8), "four large VMs that thrash have most of the memory");
    assert_eq!(memory(1.0), Some(0.0));
}

#[test]
fn a_vm_that_never_runs_has_a_contention_of_1() {
    let threads = Some(ThreadRates { ran: 0.0, delayed: 2.0, vcpus: Some(2.0) });
    let starved = ContainerRates { threads, ..vm(1, 1.0, 0.0, 0.0) };
    for cpu_source in [CpuSource::RunDelay, CpuSource::Psi] {
        let score = settled(&TickRates { cpu_source, ..node(vec![starved.clone()]) });
        assert_eq!(score.score, ratio(1.0), "{cpu_source:?}");
        assert_eq!((score.cpu_ready, score.waiting_vms), (ratio(1.0), 1), "{cpu_source:?}");
    }
}

/// I/O contention of a VM whose pressure is `some`.
fn io(some: f64, own_limit: bool, io: IoRates) -> Option<f64> {
    let score = of_one(false, |vm| {
        (vm.pressure.io.some, vm.memory.own_limit, vm.io) = (ratio(some), Some(own_limit), io);
    });
    rounded(score.contention.io)
}

/// A VM on whose disks other workloads have this share.
fn beside(others: f64) -> IoRates {
    IoRates { has_max: Some(false), others: ratio(others), ..IoRates::default() }
}

#[test]
fn io_counts_by_the_part_that_others_have_of_the_disk() {
    assert_eq!(io(0.4, false, beside(1.0)), Some(0.4));
    assert_eq!(io(0.4, false, beside(0.25)), Some(0.1));
    let score = of_one(false, |vm| vm.pressure.io.some = ratio(0.4)).score;
    assert_eq!(score, ratio(0.0), "I/O is published, and not scored");
    // On a disk of its own there is no contention.
    assert_eq!(io(0.4, false, beside(0.0)), Some(0.0));
    // The share of others is unknown, which matters only if the VM waits for the disk.
    assert_eq!(io(0.4, false, IoRates { others: None, ..beside(1.0) }), None);
    assert_eq!(io(0.005, false, IoRates { others: None, ..beside(1.0) }), Some(0.005));
    assert_eq!(io(0.4, false, IoRates { has_max: Some(true), ..beside(1.0) }), None);
}

#[test]
fn io_wait_is_the_time_of_reads_and_refaults_count_whole() {
    let swap = |some, reading, swapped_in, own_limit| {
        let (reading, swapped_in) = (Some(reading), ratio(swapped_in));
        io(some, own_limit, IoRates { reading, swapped_in, ..beside(0.5) }).unwrap()
    };
    // As measured on two CPUs: pressure shows 0.4 for a thread that slept for 0.7 of the time.
    assert_eq!(swap(0.4, 0.7, 0.0, false), 0.35);
    // Reads for which no task waits do not decrease it, nor increase it beyond what is possible.
    assert_eq!(swap(0.4, 0.1, 0.0, false), 0.2);
    assert_eq!(swap(0.4, 30.0, 0.0, false), 0.5);
    assert_eq!(swap(0.02, 30.0, 0.0, false), 0.04);
    // Reading pages that were swapped out because of the node counts in full, but not because of
    // its own limit.
    assert_eq!(swap(0.4, 0.7, 1.0, false), 0.7);
    assert_eq!(swap(0.4, 0.7, 0.5, false), 0.525);
    assert_eq!(swap(0.4, 0.7, 1.0, true), 0.35);
    // So does reading page cache that was evicted for the memory of other pods.
    let file = |swapped_in, displaced, own_limit| {
        let (swapped_in, displaced) = (ratio(swapped_in), ratio(displaced));
        io(0.4, own_limit, IoRates { swapped_in, displaced, ..beside(0.25) }).unwrap()
    };
    assert_eq!(file(0.0, 0.6, false), 0.28);
    assert_eq!(file(0.3, 0.6, false), 0.37);
    assert_eq!(file(0.6, 0.6, false), 0.4);
    assert_eq!(file(0.0, 0.6, true), 0.1);
}

#[test]
fn refaults_from_swap_are_memory_wait() {
    let memory = |stalled, own_limit, swapped_in, unstalled| {
        let score = of_one(true, |vm| {
            (vm.pressure.memory.some, vm.pressure.io.some) = (ratio(stalled), ratio(0.2));
            vm.memory.own_limit = Some(own_limit);
            let (swapped_in, swapped_in_unstalled) = (ratio(swapped_in), ratio(unstalled));
            vm.io = IoRates { reading: Some(0.4), swapped_in, swapped_in_unstalled, ..beside(1.0) };
        });
        rounded(score.contention.memory).unwrap()
    };
    // As measured on Linux 6.1, which counts none of it as a stall.
    assert_eq!(memory(0.0, false, 1.0, 1.0), 0.4);
    // Waiting for reclaim is added.
    assert_eq!(memory(0.3, false, 1.0, 1.0), 0.7);
    // Newer kernels count a part of it as a stall, which is in the pressure already.
    assert_eq!(memory(0.3, false, 0.5, 0.0), 0.3);
    assert_eq!(memory(0.3, false, 0.5, 0.25), 0.4);
    // Pressure is an average over CPUs, so it may show only a part of that.
    assert_eq!(memory(0.1, false, 1.0, 0.0), 0.4);
    // Pages that were swapped out because of its own limit do not count.
    assert_eq!(memory(0.0, true, 1.0, 1.0), 0.0);
}

#[test]
fn steal_from_the_hypervisor_is_contention_of_the_node() {
    let mut rates = node(vec![vm(1, 0.0, 1.0, 0.0)]);
    rates.node.steal = ratio(0.25);
    let score = settled(&rates);
    assert_eq!([score.score, score.steal].map(rounded), [Some(0.333_333); 2]);
    // Without demand, steal is not contention.
    assert_eq!(cpu(&TickRates { containers: Some(vec![]), ..rates }), 0.0);
}

#[test]
fn there_is_no_score_without_history_unless_a_published_one_is_adopted() {
    let rates = node(vec![vm(1, 0.5, 1.0, 0.0)]);
    let mut fresh = Scorer::new(COUNTED.into());
    let scores: Vec<bool> = (0..7).map(|_| fresh.advance(now(), &rates).score.is_some()).collect();
    assert_eq!(scores, [false, false, false, false, false, true, true]);
    let mut heir = Scorer::new(COUNTED.into());
    heir.adopt(&NodePressure {
        score: 40,
        cpu: Some(40),
        memory: Some(0),
        io: None,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
        basis: basis(CpuSource::Psi),
    });
    let first = heir.advance(now(), &rates);
    let expected = 0.4 + 0.1 * (1.0 - (-5.0_f64 / 30.0).exp());
    assert!((first.score.unwrap().get() - expected).abs() < 1e-9);
    assert_eq!(first.contention.io, None);
}

#[test]
fn run_delay_needs_no_psi_and_never_falls_back_to_it() {
    let half = Some(ThreadRates { ran: 1.0, delayed: 1.0, vcpus: None });
    let container = ContainerRates { threads: half, ..vm(1, 0.9, 1.0, 0.0) };
    let mut rates = TickRates { cpu_source: CpuSource::RunDelay, ..node(vec![container.clone()]) };
    let score = settled(&rates);
    assert_eq!((score.basis, score.score), (Basis::RunDelay(5), ratio(0.5)));
    // Pressure does not replace threads that are not readable.
    let unseen = vec![ContainerRates { threads: None, ..container.clone() }];
    let unseen = settled(&TickRates { containers: Some(unseen), ..rates.clone() });
    assert_eq!((unseen.contention.cpu, unseen.score), (None, None));
    assert!(unseen.contention.memory.is_some());
    // Where PSI is off, memory contention is unknown, and the score is that of CPU.
    (rates.has_pressure, rates.node.pressure) = (false, PressureRates::default());
    let container = ContainerRates { pressure: PressureRates::default(), ..container };
    let without_psi = settled(&TickRates { containers: Some(vec![container]), ..rates });
    assert_eq!((without_psi.contention.memory, without_psi.score), (None, ratio(0.5)));
}

#[test]
fn counters_of_a_vm_start_again_when_it_comes_back() {
    let mut scorer = Scorer::new(COUNTED.into());
    scorer.advance(now(), &node(vec![vm(1, 0.5, 1.0, 0.0)]));
    scorer.advance(now(), &node(vec![]));
    let back = scorer.advance(now(), &node(vec![vm(1, 0.5, 1.0, 0.0)]));
    assert!((back.containers[0].waited.cpu.node_s - 2.5).abs() < 1e-9);
}

proptest::proptest! {
    #[test]
    fn every_score_is_a_number_from_0_to_1(
        members in proptest::collection::vec(
            (0.0..=1.0, 0.0..=1.0, 0.0..=300.0, 0.0..=300.0, 0.0..=1e5), 0..8),
        quota in proptest::option::of(0.01..300.0),
        tasks in 0u64..100_000,
        steal in 0.0..=1.0,
        run_delay in proptest::option::of(0.0..=1e5),
    ) {
        let container = |(number, (some, part, usage, throttled, delayed))| {
            let mut container = vm(number, some, usage, throttled);
            container.cpu.waits.full = ratio(some * part);
            container.cpu.limits = Some(limits(quota, Some(tasks)));
            container.threads = Some(ThreadRates { ran: usage, delayed, vcpus: None });
            container
        };
        let containers = (1..).zip(members).map(container).collect();
        let mut rates = TickRates { run_delay, others: Some(vec![]), ..node(containers) };
        rates.node.steal = ratio(steal);
        for cpu_source in [CpuSource::RunDelay, CpuSource::Psi] {
            rates.cpu_source = cpu_source;
            let score = settled(&rates);
            proptest::prop_assert!((0.0..=1.0).contains(&score.score.unwrap().get()));
            for container in score.containers {
                let wait = container.wait.cpu.unwrap();
                proptest::prop_assert!(wait.own_limit <= wait.raw);
                proptest::prop_assert!(wait.demand >= container.usage.unwrap());
                proptest::prop_assert!(wait.demand.is_finite());
            }
        }
    }
}
