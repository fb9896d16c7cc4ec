//! The score of nodes with given measurements.

use std::sync::Arc;

use super::*;
use crate::clock::now;
use crate::identity::Vm;
use crate::kernel::cgroup_tree::Cgroup;
use crate::measured_vms::{measured_vm, tick_of_vms};
use crate::sample::Scored;
use crate::waiting::Unknown;

const TICK: Duration = Duration::from_secs(5);
const COUNTED: [Resource; 2] = [Resource::Cpu, Resource::Memory];

fn ratio(value: f64) -> Option<Ratio> {
    Ratio::of(value, 1.0)
}

fn share(value: f64) -> Ratio {
    ratio(value).unwrap()
}

/// A VM that used and waited for these numbers of CPUs.
fn vm(number: u64, used: f64, waited: f64) -> Measurement {
    let path = format!("/kubepods/pod{number}/{number:064x}");
    let (container, vm) = ("compute".into(), Some(Arc::new(Vm::default())));
    let workload = Workload { container, vm, ..Workload::default() };
    let cgroup = Arc::new(Cgroup::new(CgroupId(number), path, None));
    measured_vm(cgroup, Some(Arc::new(workload)), used, waited)
}

/// A node of four CPUs with these VMs.
fn node(vms: Vec<Measurement>) -> Tick {
    tick_of_vms(now(), TICK, 4, vms)
}

/// A node where these are scored, and none is there.
fn without_any(population: Population) -> Tick {
    let tick = node(vec![]);
    let scored = tick.scored.map(|scored| Scored { population, ..scored });
    Tick { scored, ..tick }
}

/// The score after a minute with the same ticks.
fn settled(tick: &Tick) -> NodeScore {
    settled_of(&COUNTED, tick)
}

fn settled_of(counted: &[Resource], tick: &Tick) -> NodeScore {
    let mut scorer = Scorer::new(counted.into());
    (0..12).for_each(|_| drop(scorer.advance(tick)));
    scorer.advance(tick)
}

fn rounded(share: Option<Ratio>) -> Option<f64> {
    share.map(|share| (share.get() * 1e6).round() / 1e6)
}

fn cpu(tick: &Tick) -> f64 {
    rounded(settled(tick).contention.cpu).unwrap()
}

#[test]
fn a_vm_that_only_its_own_limit_throttles_has_no_contention() {
    let mut limited = vm(1, 0.05, 0.0);
    let none = Ratio::ZERO;
    limited.waits.cpu = Ok(Wait::of_cpu(0.05, 0.0, share(0.988), share(0.988)).unwrap());
    limited.waits.memory = Ok(Wait::of_stall(share(0.3), share(0.3), none, 1.0));
    let score = settled(&node(vec![limited]));
    assert_eq!((score.score, score.contended), (ratio(0.0), 0));
    let waited = score.containers[0].waited;
    assert!(waited.cpu.own_limit_s > 64.0 && waited.cpu.node_s == 0.0, "{waited:?}");
    assert!(waited.memory.own_limit_s > 19.0 && waited.memory.node_s == 0.0, "{waited:?}");
}

#[test]
fn vms_that_share_half_the_cpus_they_want_have_a_contention_of_half() {
    let contended = || (1..=4).map(|number| vm(number, 1.0, 1.0));
    let score = settled(&node(contended().collect()));
    assert_eq!((rounded(score.score), score.contended), (Some(0.5), 4));
    assert_eq!(score.containers[0].cpu_ready, ratio(0.5));
    // A VM that its own limit throttles does not change the score, nor do fifty idle VMs.
    assert_eq!(cpu(&node(contended().chain([vm(5, 0.05, 0.0)]).collect())), 0.5);
    let idle = (10..60).map(|number| vm(number, 0.001, 0.0));
    assert_eq!(cpu(&node(contended().chain(idle).collect())), 0.5);
}

#[test]
fn a_vm_that_wants_little_is_not_counted_as_waiting() {
    let score = settled(&node(vec![vm(1, 1.0, 1.0), vm(2, 0.02, 0.02)]));
    assert_eq!(score.containers[1].contention.cpu, ratio(0.5));
    assert_eq!(score.contended, 1);
}

#[test]
fn a_node_with_hardly_any_demand_scores_little() {
    assert_eq!(cpu(&node(vec![])), 0.0);
    // Half a CPU of demand is averaged at least.
    assert_eq!(cpu(&node(vec![vm(1, 0.02, 0.02)])), 0.04);
    assert_eq!(cpu(&node(vec![vm(1, 0.25, 0.25)])), 0.5);
}

#[test]
fn a_resource_without_contention_has_a_reason() {
    let absence = |change: fn(&mut Tick)| {
        let mut tick = node(vec![vm(1, 1.0, 1.0)]);
        change(&mut tick);
        let score = settled(&tick);
        (score.score.is_some(), score.absence.cpu, score.absence.memory)
    };
    let unknown = Some(Absence::WorkloadsUnknown);
    assert_eq!(absence(|tick| tick.scored = None), (false, unknown, unknown));
    let off = Some(Absence::PressureOff);
    let without_psi: fn(&mut Tick) = |tick| {
        (tick.node.pressure, tick.node.reports) = Default::default();
    };
    // By run delay the score is then that of CPU alone.
    assert_eq!(absence(without_psi), (true, None, off));
    let by_psi: fn(&mut Tick) = |tick| {
        (tick.node.pressure, tick.node.reports) = Default::default();
        tick.cpu_source = CpuSource::Psi;
    };
    assert_eq!(absence(by_psi), (false, off, off));
    let first = Scorer::new(COUNTED.into()).advance(&node(vec![]));
    assert_eq!((first.score, first.absence.cpu), (None, Some(Absence::WarmingUp)));
}

#[test]
fn an_empty_node_of_a_cluster_is_calm_and_a_host_without_units_is_unknown() {
    let empty = |population| {
        let score = settled(&without_any(population));
        (score.score, score.absence.cpu)
    };
    assert_eq!(empty(Population::Containers), (ratio(0.0), None));
    assert_eq!(empty(Population::Units), (None, Some(Absence::NothingToScore)));
}

#[test]
fn there_is_no_score_where_a_quarter_of_the_demand_may_be_hidden() {
    let beside = |most_demand: f64| {
        let mut hidden = vm(2, 0.0, 0.0);
        hidden.waits.cpu = Err(Unknown { most_demand });
        let score = settled(&node(vec![vm(1, 3.0, 0.0), hidden]));
        assert_eq!((score.hidden.cpu, score.hidden.memory), (1, 0));
        (score.score, score.absence.cpu)
    };
    let hidden = (None, Some(Absence::HiddenContainers));
    assert_eq!(beside(0.9), (ratio(0.0), None));
    assert_eq!([beside(1.0), beside(f64::INFINITY)], [hidden; 2]);
    // It does not wait, by its pressure.
    assert_eq!(beside(0.0), (ratio(0.0), None));
    let mut alone = vm(1, 0.0, 0.0);
    alone.waits.cpu = Err(Unknown { most_demand: 0.0 });
    assert_eq!(settled(&node(vec![alone])).absence.cpu, Some(Absence::HiddenContainers));
    // Bytes of memory count likewise.
    let memory = |most_demand: f64| {
        let (mut known, mut hidden) = (vm(1, 1.0, 0.0), vm(2, 1.0, 0.0));
        known.waits.memory = Ok(Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::ZERO, 3e9));
        hidden.waits.memory = Err(Unknown { most_demand });
        settled(&node(vec![known, hidden])).absence.memory
    };
    assert_eq!((memory(0.9e9), memory(1e9)), (None, Some(Absence::HiddenContainers)));
}

#[test]
fn memory_weighs_by_what_vms_have() {
    let memory = |large: f64| {
        let container = |number| {
            let mut vm = vm(number, 0.1, 0.0);
            let (bytes, waits) = if number <= 4 { (large, 0.8) } else { (1.0, 0.0) };
            vm.waits.memory = Ok(Wait::of_stall(share(waits), Ratio::ZERO, share(waits), bytes));
            vm
        };
        rounded(settled(&node((1..=20).map(container).collect())).contention.memory)
    };
    assert_eq!(memory(32.0), Some(0.8), "four large VMs that thrash have most of the memory");
    assert_eq!(memory(1.0), Some(0.32), "four of ten VMs in the half that waits most");
}

#[test]
fn io_drops_out_of_the_score_where_limits_explain_all_of_it() {
    let all = [Resource::Cpu, Resource::Io];
    let limited = || {
        let mut vm = vm(1, 1.0, 1.0);
        vm.waits.io = Ok(Wait::of_stall(share(0.9), share(0.9), Ratio::ZERO, 0.0));
        vm
    };
    let score = settled_of(&all, &node(vec![limited()]));
    assert_eq!((score.score, score.contention.io), (ratio(0.5), None));
    assert_eq!(score.absence.io, Some(Absence::OwnLimits));
    // A VM without a limit counts alone.
    let score = settled_of(&all, &node(vec![limited(), vm(2, 1.0, 1.0)]));
    assert_eq!((score.contention.io, score.absence.io), (ratio(0.0), None));
}

#[test]
fn a_vm_that_never_runs_has_a_contention_of_1() {
    let score = settled(&node(vec![vm(1, 0.0, 2.0)]));
    assert_eq!((score.score, score.contended), (ratio(1.0), 1));
    assert_eq!(score.cpu_for_levels.map(|all| all.map(Ratio::get)), Some([1.0; 2]));
}

#[test]
fn steal_from_the_hypervisor_is_contention_of_the_node() {
    let mut tick = node(vec![vm(1, 1.0, 0.0)]);
    (tick.node.steal, tick.node.utilization) = (ratio(0.25), ratio(0.5));
    let score = settled(&tick);
    assert_eq!([score.score, score.steal].map(rounded), [Some(0.333_333); 2]);
    // Without demand, steal is not contention.
    tick.scored = without_any(Population::Vms).scored;
    assert_eq!(cpu(&tick), 0.0);
}

#[test]
fn there_is_no_score_without_history_unless_a_published_one_is_adopted() {
    let tick = node(vec![vm(1, 1.0, 1.0)]);
    let mut fresh = Scorer::new(COUNTED.into());
    let scores: Vec<bool> = (0..7).map(|_| fresh.advance(&tick).score.is_some()).collect();
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
    let first = heir.advance(&tick);
    let expected = 0.4 + 0.1 * (1.0 - (-5.0_f64 / 30.0).exp());
    assert!((first.score.unwrap().get() - expected).abs() < 1e-9);
    assert_eq!(first.contention.io, None);
}

#[test]
fn another_population_has_a_history_of_its_own() {
    let mut scorer = Scorer::new(COUNTED.into());
    let vms = node(vec![vm(1, 1.0, 1.0)]);
    (0..12).for_each(|_| drop(scorer.advance(&vms)));
    assert_eq!(scorer.advance(&vms).score, ratio(0.5));
    let scored = without_any(Population::Containers).scored;
    let containers = Tick { scored, ..vms.clone() };
    let first = scorer.advance(&containers);
    assert_eq!((first.score, first.absence.cpu), (None, Some(Absence::WarmingUp)));
    (0..6).for_each(|_| drop(scorer.advance(&containers)));
    assert_eq!(scorer.advance(&containers).score, ratio(0.0));
    // While pods are not known, the population is not, and history goes on.
    let unknown = Tick { scored: None, ..vms };
    assert_eq!(scorer.advance(&unknown).score, ratio(0.0));
}

#[test]
fn counters_of_a_vm_start_again_when_it_comes_back() {
    let mut scorer = Scorer::new(COUNTED.into());
    scorer.advance(&node(vec![vm(1, 1.0, 1.0)]));
    scorer.advance(&node(vec![]));
    let back = scorer.advance(&node(vec![vm(1, 1.0, 1.0)]));
    // Its vCPUs waited for one CPU together, for 5 s.
    assert!((back.containers[0].waited.cpu.node_s - 5.0).abs() < 1e-9);
}

proptest::proptest! {
    #[test]
    fn every_score_is_a_number_from_0_to_1(
        members in proptest::collection::vec((0.0..=300.0, 0.0..=1e5), 0..8),
        steal in 0.0..=1.0,
    ) {
        let vms = (1..).zip(members).map(|(number, (used, waited))| vm(number, used, waited));
        let mut tick = node(vms.collect());
        tick.node.steal = ratio(steal);
        let score = settled(&tick);
        proptest::prop_assert!((0.0..=1.0).contains(&score.score.unwrap().get()));
    }
}
