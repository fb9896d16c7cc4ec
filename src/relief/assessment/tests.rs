//! Predictions for nodes with given measurements.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::now;
use crate::identity::{Vm, Workload};
use crate::kernel::cgroup_tree::Cgroup;
use crate::measured_vms::{measured_vm, tick_of_vms};
use crate::sample::Scored;
use crate::waiting::readings::CpuLimits;
use crate::waiting::{Measurement, Unknown, Wait};

const COUNTED: [Resource; 2] = [Resource::Cpu, Resource::Memory];

/// A VM whose two vCPUs ran on `ran` CPUs and waited for `delayed` CPUs.
fn vm(number: u64, ran: f64, delayed: f64) -> Measurement {
    let path = format!("/kubepods/pod{number}/{number:064x}");
    let (container, vm) = ("compute".into(), Some(Arc::new(Vm::default())));
    let workload = Workload { container, vm, ..Workload::default() };
    let cgroup = Arc::new(Cgroup::new(CgroupId(number), path, None));
    let vm = measured_vm(cgroup, Some(Arc::new(workload)), ran, delayed);
    Measurement { memory: Some(1e9), ..vm }
}

/// A workload that is not scored.
fn other(used: f64, waited: f64) -> Measurement {
    let cgroup = Cgroup::new(CgroupId(9), "/system.slice", None);
    measured_vm(Arc::new(cgroup), None, used, waited)
}

/// A node of two CPUs with these VMs and other workloads.
fn node(vms: Vec<Measurement>, others: Vec<Measurement>) -> Tick {
    let others_use: f64 = others.iter().filter_map(|other| other.used).sum();
    let mut tick = tick_of_vms(now(), Duration::from_secs(5), 2, vms);
    let used = tick.node.utilization.unwrap().get() + others_use / 2.0;
    tick.node.utilization = Ratio::of(used, 1.0);
    tick.scored.as_mut().unwrap().others = others;
    tick
}

fn assessor() -> Assessor {
    Assessor::new(COUNTED.into(), Thresholds::default(), Duration::from_secs(30))
}

/// The assessment after a minute with the same ticks.
fn settled(tick: &Tick) -> Assessment {
    let mut assessor = assessor();
    (0..12).for_each(|_| drop(assessor.advance(tick)));
    assessor.advance(tick)
}

/// Relief in CPUs, and the score without the VM, in hundredths.
fn relief(assessment: &Assessment, number: u64) -> (f64, f64) {
    let Relief { cpus, score_without, .. } = assessment.relief[&CgroupId(number)];
    ((cpus * 100.0).round() / 100.0, (score_without.get() * 100.0).round() / 100.0)
}

#[test]
fn nothing_is_predicted_before_there_is_a_score() {
    let tick = node(vec![vm(1, 1.0, 1.0), vm(2, 1.0, 1.0)], vec![]);
    let first = assessor().advance(&tick);
    assert_eq!((first.headroom_cpus, first.relief.len()), (None, 0));
    let unread = Tick { scored: None, ..tick };
    assert_eq!(settled(&unread).headroom_cpus, None);
}

#[test]
fn memory_that_is_read_only_while_a_task_waits_for_it_counts_meanwhile() {
    let with = |memory: [Option<f64>; 2]| {
        let vms = [(1, 0.0), (2, 1.0)].into_iter().zip(memory).map(|((number, waited), memory)| {
            let vm = vm(number, 1.0, 0.0);
            let wait =
                Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::of(waited, 2.0).unwrap(), 1.0);
            let waits = PerResource { memory: Ok(wait), ..vm.waits };
            Measurement { memory, waits, ..vm }
        });
        node(vms.collect(), vec![])
    };
    let mut assessor = assessor();
    (0..12).for_each(|_| drop(assessor.advance(&with([Some(9e9), Some(1e9)]))));
    let read = assessor.advance(&with([Some(9e9), Some(1e9)]));
    let unread = assessor.advance(&with([None, None]));
    assert!(relief(&read, 1).0 > 0.0);
    assert_eq!(relief(&read, 1), relief(&unread, 1));
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
fn without_a_calm_vm_one_that_waits_is_a_larger_part_of_the_demand() {
    let on = |cpu: u32, vm: Measurement| {
        let cpus = Some(Arc::new([cpu].into_iter().collect()));
        Measurement { limits: Some(CpuLimits { cpus, ..CpuLimits::default() }), ..vm }
    };
    let calm = |number| on(1, vm(number, 0.33, 0.0));
    let waits = on(0, vm(1, 0.125, 0.125));
    let assessment = settled(&node(vec![waits, calm(2), calm(3), calm(4)], vec![]));
    let now = assessment.score.score.unwrap().get();
    assert!(relief(&assessment, 2).1 > now + 0.04, "{now} {:?}", relief(&assessment, 2));
}

#[test]
fn a_calm_node_has_headroom_and_needs_no_relief() {
    let calm = settled(&node(vec![vm(1, 0.5, 0.0)], vec![]));
    assert_eq!(relief(&calm, 1), (0.0, 0.0));
    let headroom = calm.headroom_cpus.unwrap();
    assert!((1.5..2.0).contains(&headroom), "{headroom}");
    // CPUs that other workloads use are not available.
    let daemon = other(1.0, 0.0);
    let busy = settled(&node(vec![vm(1, 0.5, 0.0)], vec![daemon]));
    assert!(busy.headroom_cpus.unwrap() < 1.0, "{:?}", busy.headroom_cpus);
    let memory_alone = Assessor::of_one_window(
        vec![Resource::Memory],
        Thresholds::default(),
        &node(vec![vm(1, 0.5, 0.0)], vec![]),
    );
    assert_eq!(memory_alone.headroom_cpus, None);
}

#[test]
fn another_workload_that_waits_takes_its_part_of_the_freed_cpus() {
    let batch = other(1.0, 1.0);
    let beside = |others| settled(&node(vec![vm(1, 0.5, 0.5), vm(2, 0.5, 0.5)], others));
    // A batch workload that waits for one CPU gets two thirds of the half CPU that is freed.
    assert_eq!(relief(&beside(vec![batch]), 1).0, 0.67);
    assert_eq!(relief(&beside(vec![]), 1).0, 1.0);
}

#[test]
fn a_short_tick_does_not_change_the_prediction_at_once() {
    let tick = |delayed| node(vec![vm(1, 1.0, delayed), vm(2, 1.0, 1.0)], vec![]);
    let mut assessor = assessor();
    (0..60).for_each(|_| drop(assessor.advance(&tick(0.0))));
    let before = relief(&assessor.advance(&tick(0.0)), 1).0;
    let after = relief(&assessor.advance(&tick(1.0)), 1).0;
    assert!(after > before && after < before + 0.2, "{before} {after}");
}

/// A VM that waits for its memory for 40 % of the time.
fn thrashes(number: u64, bytes: f64) -> Measurement {
    let share = Ratio::of(0.4, 1.0).unwrap();
    let mut vm = Measurement { memory: Some(bytes), ..vm(number, 0.1, 0.0) };
    vm.waits.memory = Ok(Wait::of_stall(share, Ratio::ZERO, share, bytes));
    vm
}

#[test]
fn memory_contention_decreases_by_the_part_of_the_vm_that_leaves() {
    let short = settled(&node(vec![thrashes(1, 3e9), thrashes(2, 1e9)], vec![]));
    assert_eq!((relief(&short, 1), relief(&short, 2)), ((0.7, 0.1), (0.5, 0.3)));
    assert_eq!(short.headroom_cpus, Some(0.0));
}

/// Slow demand after the ticks, each repeated for so many minutes.
fn slow_after(ticks: &[(&Tick, u32)]) -> Option<SlowAssessment> {
    let mut assessor = assessor();
    let repeated = ticks.iter().flat_map(|(tick, minutes)| (0..minutes * 12).map(move |_| *tick));
    repeated.map(|tick| assessor.advance(tick)).last()?.slow
}

#[test]
fn slow_demand_is_an_average_that_needs_some_history() {
    let busy = node(vec![vm(1, 1.0, 1.0), vm(2, 1.0, 1.0)], vec![]);
    let calm = node(vec![vm(1, 0.0, 0.0), vm(2, 1.0, 0.0)], vec![]);
    let mut recent = assessor();
    let five: Vec<bool> = (0..7).map(|_| recent.advance(&busy).slow.is_some()).collect();
    assert_eq!(five, [false, false, false, false, false, true, true], "after 30 s");
    let always = slow_after(&[(&busy, 60)]).unwrap();
    assert!((always.vms - 4.0).abs() < 1e-6 && (always.waiting - 2.0).abs() < 1e-6, "{always:?}");
    assert_eq!(always.headroom_cpus, 0.0);
    // Half an hour later 63 % of the change is in the average.
    let later = slow_after(&[(&busy, 240), (&calm, 30)]).unwrap();
    assert!((later.vms - (1.0 + 3.0 * (-1.0_f64).exp())).abs() < 0.01, "{later:?}");
    let relief = later.relief[&CgroupId(1)];
    assert!((relief.demand - 2.0 * (-1.0_f64).exp()).abs() < 0.01, "{relief:?}");
}

#[test]
fn a_vm_with_little_history_counts_with_what_it_uses_and_not_with_its_waiting() {
    let calm = vm(1, 1.0, 0.0);
    let beside = |number| node(vec![calm.clone(), vm(number, 1.0, 1.0)], vec![]);
    let mut assessor = assessor();
    (0..12).for_each(|_| drop(assessor.advance(&node(vec![calm.clone()], vec![]))));
    // It starts again and again, so that no other VM would have to leave.
    let restarts = (2..40).map(|number| assessor.advance(&beside(number)).slow.unwrap());
    for slow in restarts {
        assert_eq!(slow.relief[&CgroupId(1)].cpus, 0.0);
        assert!(slow.headroom_cpus < 0.3, "{slow:?}");
    }
    (0..12).for_each(|_| drop(assessor.advance(&beside(40))));
    let later = assessor.advance(&beside(40)).slow.unwrap();
    assert!((later.relief[&CgroupId(1)].cpus - 1.0).abs() < 0.01, "{later:?}");
}

#[test]
fn slow_demand_is_unknown_while_that_of_a_vm_is() {
    let waits = PerResource::by(|_| Err(Unknown { most_demand: 0.01 }));
    let unread = Measurement { undelayed: None, waits, ..vm(3, 0.1, 0.0) };
    let others = vec![vm(1, 1.0, 0.5), vm(2, 1.0, 0.5)];
    let tick = node([others, vec![unread]].concat(), vec![]);
    let mut assessor = assessor();
    let known: Vec<bool> = (0..20).map(|_| assessor.advance(&tick).slow.is_some()).collect();
    assert_eq!(known.iter().rposition(|known| *known), Some(11), "{known:?}");
}

#[test]
fn what_others_use_leaves_less_room_and_is_of_one_population() {
    let alone = slow_after(&[(&node(vec![vm(1, 0.5, 0.0)], vec![]), 60)]).unwrap();
    let beside = node(vec![vm(1, 0.5, 0.0)], vec![other(1.0, 0.0)]);
    let beside = slow_after(&[(&beside, 60)]).unwrap();
    assert!((beside.others - 1.0).abs() < 1e-6 && alone.others < 1e-6, "{beside:?}");
    assert!(beside.headroom_cpus < alone.headroom_cpus - 0.9, "{alone:?} {beside:?}");
    // While pods are not listed, it is unknown what others use. Containers that were scored before the
    // first VM are others from then on.
    let containers = node(vec![vm(2, 1.5, 0.0)], vec![]);
    let scored = containers.scored.clone().unwrap();
    let containers = Tick {
        scored: Some(Scored { population: Population::Containers, ..scored }),
        ..containers
    };
    let vms = node(vec![vm(1, 0.5, 0.0)], vec![other(1.0, 0.0)]);
    let unlisted = Tick { scored: None, ..vms.clone() };
    for before in [&containers, &unlisted] {
        let after = slow_after(&[(before, 60), (&vms, 2)]).unwrap();
        assert!((after.others - 1.0).abs() < 1e-6, "{after:?}");
    }
}

#[test]
fn without_vms_all_are_others_however_short_they_live() {
    // A job of 30 s uses a CPU, and for as long there is none.
    let tick_with = |vms| {
        let tick = node(vms, vec![]);
        let scored = Scored { population: Population::Containers, ..tick.scored.clone().unwrap() };
        Tick { scored: Some(scored), ..tick }
    };
    let mut assessor = assessor();
    let jobs =
        (0..720).map(|tick| if tick / 6 % 2 == 0 { vec![vm(tick / 6, 1.0, 0.0)] } else { vec![] });
    let slow = jobs.map(|vms| assessor.advance(&tick_with(vms))).last().unwrap().slow.unwrap();
    assert_eq!((slow.vms, slow.waiting), (0.0, 0.0));
    assert!((slow.others - 0.5).abs() < 0.02, "{slow:?}");
    assert!((1.0..2.0).contains(&slow.headroom_cpus), "{slow:?}");
    // What waits for memory shows that a VM would wait, too.
    let slow = slow_after(&[(&tick_with(vec![thrashes(1, 1e9)]), 10)]).unwrap();
    assert_eq!((slow.vms, slow.headroom_cpus), (0.0, 0.0));
}
