//! Truth of KVM guests: what their loads lost beside others. Neither a pressure file nor a counter of the
//! kernel is read.
//!
//! A load reports its work, the time in which it wanted to work, and the part of that in which it waited for
//! a page or a disk. **Truth is the share of the wanted time that went beyond what the same work takes
//! alone**: of CPU, the lost work. A guest that is alone has its own limits and its own disk, so that their
//! cost counts as nothing here.
//!
//! All windows are in real time on a machine that may be busy, which slows its emulated CPUs down. So the
//! work is that of a second for which a busy CPU of the node really runs on that machine. Pure.

use crate::counters::Point;
use crate::kvm::GuestProgress;
use crate::rates::scored;
use crate::record::{GuestAlone, Record};
use crate::scenario::{Pod, Resource, Scenario};
use crate::truth::{mean, of_node};
use crate::waits::{self, judged};

/// What a guest's load needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Cpu,
    Memory,
    Io,
}

/// What the loads of a scenario's guests need. All guests of a scenario need the same.
pub fn needs(scenario: &Scenario) -> Needs {
    let first = scenario.pods.iter().find(|pod| pod.guest.is_some());
    first.map_or(Needs::Cpu, |pod| match (pod.load.memory, pod.load.io) {
        (Some(_), _) => Needs::Memory,
        (None, Some(_)) => Needs::Io,
        (None, None) => Needs::Cpu,
    })
}

/// One number for all VMs of the node, as the agent makes one.
pub fn of_record(record: &Record) -> f64 {
    of_vms(record, |beside, alone| match needs(&record.scenario) {
        Needs::Cpu => lost(beside, alone),
        Needs::Memory | Needs::Io => beyond_own(beside, alone),
    })
}

/// The same of lost work.
pub fn lost_work(record: &Record) -> f64 {
    of_vms(record, |beside, alone| match needs(&record.scenario) {
        Needs::Cpu => lost(beside, alone),
        Needs::Memory | Needs::Io => 1.0 - rate(beside) / rate(alone),
    })
}

/// Of all kinds of guests that compute, the largest difference of the work alone before and after, as a share of
/// it. Other loads wait for a disk alone as well, now more and now less.
pub fn spread(record: &Record) -> f64 {
    let computes = needs(&record.scenario) == Needs::Cpu;
    let alone: Vec<_> = record.guests.alone.iter().filter(|_| computes).collect();
    let spreads = alone.iter().enumerate().flat_map(|(number, first)| {
        let others = alone.iter().skip(number + 1).filter(|other| other.pod == first.pod);
        others.map(move |other| {
            let pod = record.scenario.pods.iter().find(|pod| pod.name == first.pod);
            let [first, other] = [first, other].map(|alone| {
                pod.map_or(0.0, |pod| {
                    let progress = progress_alone(pod, alone);
                    pace(&Measured { progress, speed: speed_alone(pod, alone) })
                })
            });
            (first - other).abs() / first.max(other)
        })
    });
    spreads.fold(0.0, f64::max)
}

/// The slowest emulated CPUs of all windows, as a share of a CPU.
pub fn slowest(record: &Record) -> f64 {
    let alone = record.guests.alone.iter().map(|alone| speed(&alone.before, &alone.after));
    let beside = judged(record).map(|(before, after)| speed(before, after));
    alone.chain(beside).fold(1.0, f64::min)
}

/// Whether a guest that computes has a limit of its own, or a busy emulator.
pub fn is_slowed_by_itself(pod: &Pod) -> bool {
    pod.cpu_limit().is_some() || pod.load.emulator.is_some()
}

/// What a guest did alone. A filler beside it took time that it would have used otherwise: only the time for which
/// its vCPUs ran counts.
fn progress_alone(pod: &Pod, alone: &GuestAlone) -> GuestProgress {
    let computes = pod.load.is_cpu() && !is_slowed_by_itself(pod);
    let wanted = if computes { ran(alone, &alone.pod) } else { None };
    GuestProgress { wanted: wanted.unwrap_or(alone.progress.wanted), ..alone.progress }
}

/// For how long the vCPUs of the one that ran, of a kind, did so; seconds.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of some minutes")]
fn ran(alone: &GuestAlone, kind: &str) -> Option<f64> {
    let of_kind = |name: &str| name == kind || name == format!("{kind}-0");
    let (name, after) = alone.after.pods.iter().find(|(name, _)| of_kind(name))?;
    let before = alone.before.pods.get(name)?;
    let ran = after.threads.iter().map(|(thread, (now, _))| {
        now.saturating_sub(before.threads.get(thread).map_or(0, |(then, _)| *then))
    });
    Some(ran.sum::<u64>() as f64 / 1e9)
}

/// A load's windows of one kind together, and how fast the emulated CPUs were.
#[derive(Debug, Clone, Copy)]
struct Measured {
    progress: GuestProgress,
    speed: f64,
}

fn of_vms(record: &Record, share: impl Fn(&Measured, &Measured) -> f64) -> f64 {
    let progress = |name: &str, pod: &Pod| {
        let (before, after) = judged(record)?;
        let beside = Measured {
            progress: sum(record.guests.beside.get(name)?.iter()),
            speed: speed(before, after),
        };
        let kind = record.guests.alone.iter().filter(|alone| alone.pod == pod.name);
        let (mut all, mut speeds) = (Vec::new(), Vec::new());
        for alone in kind {
            all.push(progress_alone(pod, alone));
            speeds.push(speed_alone(pod, alone));
        }
        let alone = Measured { progress: sum(all.iter()), speed: mean(&speeds)? };
        (alone.progress.work > 0.0).then_some((beside, alone))
    };
    let of = |name: &str, pod: &Pod| {
        let (beside, alone) = progress(name, pod)?;
        Some(share(&beside, &alone).clamp(0.0, 1.0))
    };
    match needs(&record.scenario) {
        Needs::Memory => waits::of_all(record, Resource::Memory, of),
        Needs::Io => waits::of_all(record, Resource::Io, of),
        Needs::Cpu => {
            let vms = scored(record).into_iter().filter_map(|(name, pod)| {
                let (beside, _) = progress(&name, pod)?;
                let demand = beside.progress.wanted / beside.progress.seconds;
                Some((of(&name, pod)?, pod.cpu_limit().map_or(demand, |limit| demand.min(limit))))
            });
            of_node(vms.collect())
        }
    }
}

/// Several windows as one.
fn sum<'a>(all: impl Iterator<Item = &'a GuestProgress>) -> GuestProgress {
    let mut sum = GuestProgress::default();
    for one in all {
        sum.seconds += one.seconds;
        sum.work += one.work;
        sum.wanted += one.wanted;
        sum.waited += one.waited;
    }
    sum
}

/// For how long a CPU that is busy in the node really runs, as a share of time. A CPU that waits for another
/// one in the emulator does not run, either.
fn speed(before: &Point, after: &Point) -> f64 {
    let run = run(before, after);
    // Records without it are compared as they are.
    if run.is_empty() { 1.0 } else { run.iter().sum::<f64>() / busy_seconds(before, after) }
}

/// The same of a guest alone, of one vCPU: of its CPU, the first, which nothing leaves idle.
fn speed_alone(pod: &Pod, alone: &GuestAlone) -> f64 {
    let run = run(&alone.before, &alone.after);
    let first = run.first().filter(|_| pod.load.threads == 1);
    first.map_or_else(
        || speed(&alone.before, &alone.after),
        |run| run / (alone.after.clock - alone.before.clock),
    )
}

/// What each emulated CPU ran between two points, seconds.
fn run(before: &Point, after: &Point) -> Vec<f64> {
    let cpus = before.emulated.iter().zip(&after.emulated);
    cpus.map(|(before, after)| after - before).collect()
}

/// CPU time that the node used.
#[allow(clippy::cast_precision_loss, reason = "microseconds of some minutes")]
fn busy_seconds(before: &Point, after: &Point) -> f64 {
    let of_pods = |point: &Point| point.pods.values().map(|pod| pod.pod.usage_us).sum::<u64>();
    let usage = |point: &Point| point.node.usage_us.unwrap_or_else(|| of_pods(point));
    (usage(after).saturating_sub(usage(before)) as f64 / 1e6).max(0.1)
}

/// Work in a second of wanted time on CPUs that nothing else slows down.
fn pace(measured: &Measured) -> f64 {
    measured.progress.work / measured.progress.wanted.max(1e-9) / measured.speed
}

fn rate(measured: &Measured) -> f64 {
    measured.progress.work / measured.progress.seconds.max(1e-9)
}

fn lost(beside: &Measured, alone: &Measured) -> f64 {
    1.0 - pace(beside) / pace(alone)
}

fn beyond_own(beside: &Measured, alone: &Measured) -> f64 {
    let (beside, alone) = (beside.progress, alone.progress);
    let own = alone.waited / alone.work * beside.work;
    // A load of which nothing was heard waited all the time.
    if beside.wanted > 0.0 { (beside.waited - own) / beside.wanted } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(work: f64, waited: f64, speed: f64) -> Measured {
        let progress = GuestProgress { seconds: 10.0, work, wanted: 10.0, waited };
        Measured { progress, speed }
    }

    #[test]
    fn work_that_a_slow_machine_leaves_undone_is_not_lost() {
        let alone = measured(100.0, 0.0, 1.0);
        assert!((lost(&measured(50.0, 0.0, 1.0), &alone) - 0.5).abs() < 1e-9);
        assert!(lost(&measured(50.0, 0.0, 0.5), &alone).abs() < 1e-9);
    }

    #[test]
    fn waits_that_the_work_has_alone_are_its_own() {
        let alone = measured(100.0, 2.0, 1.0);
        assert!(beyond_own(&measured(50.0, 1.0, 1.0), &alone).abs() < 1e-9);
        assert!((beyond_own(&measured(50.0, 6.0, 1.0), &alone) - 0.5).abs() < 1e-9);
    }
}
