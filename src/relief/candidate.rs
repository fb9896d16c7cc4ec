//! The VMs of a node whose moves help most, by slow demand.

use std::time::Duration;

use jiff::Timestamp;
use strum::IntoStaticStr;

use super::assessment::{Assessment, Relief};
use crate::contract::Level;
use crate::identity::{Vm, Workload};
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};

/// Least relief that pays for a migration, as a share of the VM's own demand.
const WORTHWHILE: f64 = 0.1;

/// Least relief, CPUs.
const LEAST_CPUS: f64 = 0.05;

/// VMs with at least this share of the largest relief count as equal.
const NEARLY: f64 = 0.9;

/// Why there is no candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum NoCandidate {
    NoScore,
    LevelLow,
    /// The agent started too recently, or the demand of a VM is unknown.
    TooLittleHistory,
    /// No move would end enough waiting, or the VM would wait elsewhere as well.
    NoMoveHelps,
    /// The VMs whose move would help arrived too recently, or are excluded from eviction.
    #[strum(serialize = "vms_excluded")]
    Excluded,
}

/// A VM whose move pays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<'a> {
    pub cgroup: &'a Cgroup,
    pub workload: &'a Workload,
    pub relief: Relief,
}

/// The VMs whose moves pay at this level, of those that arrived or started at least `min_age` ago: the
/// one with the most relief first.
pub fn candidates(
    assessment: &Assessment,
    level: Level,
    min_age: Duration,
) -> Result<Vec<Candidate<'_>>, NoCandidate> {
    if assessment.score.score.is_none() {
        return Err(NoCandidate::NoScore);
    }
    if level < Level::Medium {
        return Err(NoCandidate::LevelLow);
    }
    let slow = assessment.slow.as_ref().ok_or(NoCandidate::TooLittleHistory)?;
    let pays =
        |relief: &Relief| relief.cpus >= LEAST_CPUS && relief.cpus >= WORTHWHILE * relief.demand;
    let vms = assessment.score.containers.iter().map(|vm| &vm.measured);
    let all = vms.filter_map(|vm| Some((vm, *slow.relief.get(&vm.cgroup.id)?)));
    let mut helpful = all.filter(|(_, relief)| pays(relief)).peekable();
    if helpful.peek().is_none() {
        return Err(NoCandidate::NoMoveHelps);
    }
    let now = assessment.score.moment.timestamp();
    let movable = helpful.filter_map(|(vm, relief)| {
        let workload = vm.workload.as_deref().filter(|one| is_movable(one, min_age, now))?;
        Some(Candidate { cgroup: &vm.cgroup, workload, relief })
    });
    let mut movable: Vec<Candidate<'_>> = movable.collect();
    if movable.is_empty() {
        return Err(NoCandidate::Excluded);
    }
    movable.sort_by(|a, b| {
        let by_relief = b.relief.cpus.total_cmp(&a.relief.cpus);
        by_relief.then(a.cgroup.id.cmp(&b.cgroup.id))
    });
    Ok(movable)
}

/// The VM to move first: among those with nearly equal relief the one named before (`last`), else the one with
/// the least memory to copy.
pub fn first<'a>(candidates: &[Candidate<'a>], last: Option<CgroupId>) -> Option<Candidate<'a>> {
    let most = candidates.first()?.relief.cpus;
    let equal = candidates.iter().filter(|one| one.relief.cpus >= NEARLY * most);
    let order = |Candidate { cgroup, workload, .. }: &Candidate<'_>| {
        (last != Some(cgroup.id), workload.memory_request.unwrap_or(u64::MAX), cgroup.id)
    };
    equal.copied().min_by_key(order)
}

fn is_movable(workload: &Workload, min_age: Duration, now: Timestamp) -> bool {
    let Some(Vm { created_at, prefers_no_eviction, .. }) = workload.vm.as_deref() else {
        return false;
    };
    let has_settled = created_at.is_none_or(|at| {
        let since = now.duration_since(at);
        since.is_negative() || since.unsigned_abs() >= min_age
    });
    has_settled && !prefers_no_eviction
}

#[cfg(test)]
mod tests {
    use super::super::assessment::SlowAssessment;
    use super::*;
    use crate::clock::Moment;
    use crate::clock::now;
    use crate::measured_vms::{measured_vm, tick_of_vms};
    use crate::score::{NodeScore, Resource, Scorer};
    use crate::waiting::Ratio;
    use std::sync::Arc;

    const MIN_AGE: Duration = Duration::from_secs(15 * 60);

    /// A VM's number, relief and demand in CPUs, and its memory request.
    type Row = (u64, f64, f64, u64);

    /// VMs with a contention of 0.4.
    fn assessment(rows: &[Row], change: impl Fn(u64, &mut Vm)) -> Assessment {
        let ratio = |value| Ratio::of(value, 1.0);
        let measured = |&(number, _, _, memory): &Row| {
            let mut vm = Vm::default();
            change(number, &mut vm);
            let (container, vm) = ("compute".into(), Some(Arc::new(vm)));
            let memory_request = Some(memory);
            let workload = Workload { container, vm, memory_request, ..Workload::default() };
            let cgroup = Arc::new(Cgroup::new(CgroupId(number), format!("/{number}"), None));
            measured_vm(cgroup, Some(Arc::new(workload)), 0.6, 0.4)
        };
        let moment = Moment { at: now().at, unix_ms: 1_800_000_000_000 };
        let vms = rows.iter().map(measured).collect();
        let tick = tick_of_vms(moment, Duration::from_secs(5), 4, vms);
        let score = Scorer::of_one_window(vec![Resource::Cpu], &tick);
        let score = NodeScore { score: ratio(0.4), ..score };
        let score_without = Ratio::ZERO;
        let relief = rows.iter().map(|&(number, cpus, demand, _)| {
            (CgroupId(number), Relief { demand, cpus, score_without })
        });
        let relief = relief.collect();
        let slow =
            SlowAssessment { headroom_cpus: 0.0, vms: 1.0, others: 0.0, waiting: 1.0, relief };
        Assessment { slow: Some(slow), ..Assessment::from(score) }
    }

    fn choose(
        assessment: &Assessment,
        level: Level,
        last: Option<CgroupId>,
    ) -> Result<u64, NoCandidate> {
        let candidates = candidates(assessment, level, MIN_AGE)?;
        Ok(first(&candidates, last).unwrap().cgroup.id.0)
    }

    fn chosen(rows: &[Row], level: Level, named: Option<u64>) -> Result<u64, NoCandidate> {
        let assessment = assessment(rows, |_, _| ());
        choose(&assessment, level, named.map(CgroupId))
    }

    #[test]
    fn the_vm_with_the_most_relief_is_named_from_medium_on() {
        let rows = [(1, 0.5, 1.0, 1), (2, 2.0, 2.0, 9), (3, 0.0, 1.0, 1)];
        assert_eq!(chosen(&rows, Level::Medium, None), Ok(2));
        assert_eq!(chosen(&rows, Level::High, Some(1)), Ok(2), "another one helps more");
        assert_eq!(chosen(&rows, Level::Low, Some(2)), Err(NoCandidate::LevelLow));
        let unscored = Assessment {
            score: NodeScore { score: None, ..assessment(&rows, |_, _| ()).score },
            ..assessment(&rows, |_, _| ())
        };
        assert_eq!(choose(&unscored, Level::High, None), Err(NoCandidate::NoScore));
        let recent = Assessment { slow: None, ..assessment(&rows, |_, _| ()) };
        assert_eq!(choose(&recent, Level::High, None), Err(NoCandidate::TooLittleHistory));
    }

    #[test]
    fn of_nearly_equal_ones_the_named_one_stays_else_the_smallest_goes() {
        let rows = [(1, 2.0, 2.0, 8), (2, 1.9, 2.0, 4), (3, 1.7, 2.0, 1)];
        assert_eq!(chosen(&rows, Level::Medium, None), Ok(2));
        assert_eq!(chosen(&rows, Level::Medium, Some(1)), Ok(1));
        assert_eq!(chosen(&rows, Level::Medium, Some(3)), Ok(2));
    }

    #[test]
    fn no_vm_is_named_where_no_move_helps() {
        // On a node of any size, what counts is how much of the VM's own demand the move ends.
        assert_eq!(chosen(&[(1, 0.3, 4.0, 1)], Level::High, None), Err(NoCandidate::NoMoveHelps));
        assert_eq!(chosen(&[(1, 0.3, 2.0, 1)], Level::High, None), Ok(1));
        assert_eq!(chosen(&[(1, 0.04, 0.1, 1)], Level::High, None), Err(NoCandidate::NoMoveHelps));
        // A VM that is larger than the node would wait elsewhere as well.
        assert_eq!(chosen(&[(1, 0.0, 8.0, 1)], Level::High, None), Err(NoCandidate::NoMoveHelps));
        assert_eq!(chosen(&[], Level::High, None), Err(NoCandidate::NoMoveHelps));
    }

    #[test]
    fn a_vm_that_arrived_lately_or_wants_no_eviction_is_not_named() {
        let rows = [(1, 2.0, 2.0, 1), (2, 1.0, 2.0, 1)];
        let arrived = |minutes: i64| {
            let at = Timestamp::from_second(1_800_000_000 - minutes * 60).unwrap();
            let change = move |number, vm: &mut Vm| {
                vm.created_at = (number == 1).then_some(at);
            };
            choose(&assessment(&rows, change), Level::High, None).unwrap()
        };
        assert_eq!([arrived(0), arrived(14), arrived(15), arrived(500)], [2, 2, 1, 1]);
        let stays = |_, vm: &mut Vm| vm.prefers_no_eviction = true;
        let none = assessment(&rows, stays);
        assert_eq!(choose(&none, Level::High, Some(CgroupId(1))), Err(NoCandidate::Excluded));
    }
}
