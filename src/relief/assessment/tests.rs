//! Predictions for nodes with given rates.

use std::sync::Arc;

use super::*;
use crate::clock::now;
use crate::identity::Vm;
use crate::kernel::cgroup_tree::Cgroup;
use crate::rates::{IoRates, MemoryRates, NodeRates, PressureRates, ThreadRates, WaitShares};
use crate::sample::{CpuLimits, CpuSource};

const COUNTED: [Resource; 2] = [Resource::Cpu, Resource::Memory];

fn ratio(value: f64) -> Option<Ratio> {
    Ratio::of(value, 1.0)
}

/// A VM whose two vCPUs ran on `ran` CPUs and waited for `delayed` CPUs.
fn vm(number: u64, ran: f64, delayed: f64) -> ContainerRates {
    let path = format!("/kubepods/pod{number}/{number:064x}");
    let (container, vm) = ("compute".into(), Some(Arc::new(Vm::default())));
    let share = WaitShares { some: ratio(0.0), full: ratio(0.0) };
    let limits = Some(CpuLimits::default());
    ContainerRates {
        cgroup: Arc::new(Cgroup::new(CgroupId(number), path, None)),
        workload: Some(Arc::new(Workload { container, vm, ..Workload::default() })),
        pressure: PressureRates { cpu: share, memory: share, io: share },
        cpu: CpuRates { waits: share, usage: Some(ran), throttled: Some(0.0), limits },
        threads: Some(ThreadRates { ran, delayed, vcpus: Some(2.0) }),
        memory: MemoryRates {
            own_limit: Some(false),
            current: Some(1e9),
            ..MemoryRates::default()
        },
        io: IoRates { has_max: Some(false), ..IoRates::default() },
    }
}

/// A node of two CPUs with these containers and other workloads.
fn node(containers: Vec<ContainerRates>, others: Vec<CpuRates>) -> TickRates {
    let share = WaitShares { some: ratio(0.5), full: ratio(0.0) };
    let others_use: f64 = others.iter().filter_map(|one| one.usage).sum();
    let used: f64 = containers.iter().filter_map(|one| one.cpu.usage).sum();
    TickRates {
        node: NodeRates {
            window: Duration::from_secs(5),
            pressure: PressureRates { cpu: share, memory: share, io: share },
            utilization: ratio((used + others_use) / 2.0),
            steal: ratio(0.0),
        },
        cpus: Some(2),
        run_delay: None,
        memory_utilization: None,
        reclaims: Some(true),
        has_pressure: true,
        cpu_source: CpuSource::RunDelay,
        containers: Some(containers),
        others: Some(others),
    }
}

fn assessor() -> Assessor {
    Assessor::new(COUNTED.into(), Thresholds::default())
}

/// The assessment after a minute with the same rates.
fn settled(rates: &TickRates) -> Assessment {
    let mut assessor = assessor();
    (0..12).for_each(|_| drop(assessor.advance(now(), rates)));
    assessor.advance(now(), rates)
}

/// Relief in CPUs, and the score without the VM, in hundredths.
fn relief(assessment: &Assessment, number: u64) -> (f64, f64) {
    let Relief { cpus, score_without } = assessment.relief[&CgroupId(number)];
    ((cpus * 100.0).round() / 100.0, (score_without.get() * 100.0).round() / 100.0)
}

#[test]
fn nothing_is_predicted_before_there_is_a_score() {
    let rates = node(vec![vm(1, 1.0, 1.0), vm(2, 1.0, 1.0)], vec![]);
    let first = assessor().advance(now(), &rates);
    assert_eq!((first.headroom_cpus, first.relief.len()), (None, 0));
    let unread = TickRates { containers: None, ..rates };
    assert_eq!(settled(&unread).headroom_cpus, None);
}

#[test]
fn two_vms_that_want_the_whole_node_are_each_others_relief() {
    let contended = settled(&node(vec![vm(1, 1.0, 1.0), vm(2, 1.0, 1.0)], vec![]));
    assert_eq!(relief(&contended, 1), (2.0, 0.0));
    assert_eq!(contended.headroom_cpus, Some(0.0));
    // An idle VM beside them gives no relief.
    let idle = settled(&node(vec![vm(1, 1.0, 1.0), vm(2, 1.0, 1.0), vm(3, 0.0, 0.0)], vec![]));
    assert_eq!(relief(&idle, 3), (0.0, 0.5));
}

#[test]
fn without_a_vm_that_hardly_waits_one_that_starves_is_a_larger_part_of_the_demand() {
    let fed = |number| vm(number, 0.66, 0.5);
    let starved = settled(&node(vec![vm(1, 0.02, 1.0), fed(2), fed(3), fed(4)], vec![]));
    assert!(starved.score.score < ratio(0.5));
    assert!(relief(&starved, 2).1 > 0.9);
}

#[test]
fn a_calm_node_has_headroom_and_needs_no_relief() {
    let calm = settled(&node(vec![vm(1, 0.5, 0.0)], vec![]));
    assert_eq!(relief(&calm, 1), (0.0, 0.0));
    let headroom = calm.headroom_cpus.unwrap();
    assert!((1.5..2.0).contains(&headroom), "{headroom}");
    // CPUs that other workloads use are not available.
    let waits = WaitShares { some: ratio(0.0), full: ratio(0.0) };
    let daemon = CpuRates { waits, usage: Some(1.0), ..CpuRates::default() };
    let busy = settled(&node(vec![vm(1, 0.5, 0.0)], vec![daemon]));
    assert!(busy.headroom_cpus.unwrap() < 1.0, "{:?}", busy.headroom_cpus);
    let memory_alone = Assessor::of_one_window(
        vec![Resource::Memory],
        Thresholds::default(),
        now(),
        &node(vec![vm(1, 0.5, 0.0)], vec![]),
    );
    assert_eq!(memory_alone.headroom_cpus, None);
}

#[test]
fn another_workload_that_waits_takes_its_part_of_the_freed_cpus() {
    let batch = CpuRates {
        waits: WaitShares { some: ratio(1.0), full: ratio(0.0) },
        usage: Some(1.0),
        throttled: Some(0.0),
        limits: Some(CpuLimits::default()),
    };
    let beside = |others| settled(&node(vec![vm(1, 0.5, 0.5), vm(2, 0.5, 0.5)], others));
    // A batch workload that waits for one CPU gets two thirds of the half CPU that is freed.
    assert_eq!(relief(&beside(vec![batch]), 1).0, 0.67);
    assert_eq!(relief(&beside(vec![]), 1).0, 1.0);
}

#[test]
fn a_short_tick_does_not_change_the_prediction_at_once() {
    let rates = |delayed| node(vec![vm(1, 1.0, delayed), vm(2, 1.0, 1.0)], vec![]);
    let mut assessor = assessor();
    (0..60).for_each(|_| drop(assessor.advance(now(), &rates(0.0))));
    let before = relief(&assessor.advance(now(), &rates(0.0)), 1).0;
    let after = relief(&assessor.advance(now(), &rates(1.0)), 1).0;
    assert!(after > before && after < before + 0.2, "{before} {after}");
}

#[test]
fn memory_contention_decreases_by_the_part_of_the_vm_that_leaves() {
    let thrashes = |number, bytes| {
        let mut vm = vm(number, 0.1, 0.0);
        (vm.memory.current, vm.pressure.memory.some) = (Some(bytes), ratio(0.4));
        vm
    };
    let short = settled(&node(vec![thrashes(1, 3e9), thrashes(2, 1e9)], vec![]));
    assert_eq!((relief(&short, 1), relief(&short, 2)), ((0.0, 0.1), (0.0, 0.3)));
    assert_eq!(short.headroom_cpus, Some(0.0));
}
