//! Truth of KVM guests: what their loads lost beside others. Neither a pressure file nor a counter of the
//! kernel is read. Pure.
//!
//! A load reports its work, the time in which it wanted to work, and the part of that in which it waited for
//! a page or a disk. **Truth is the share of the wanted time that went beyond what the same work takes
//! alone**: of CPU, the lost work. A guest that is alone has its own limits and its own disk, so that their
//! cost counts as nothing here.
//!
//! All windows are in real time on a machine that may be busy. What it takes from the emulated CPUs makes a
//! computing load slower alone and beside others. It is measured, and taken out.

use crate::kvm::GuestProgress;
use crate::rates::scored;
use crate::record::Record;
use crate::scenario::{Pod, Scenario};
use crate::truth::of_node;
use crate::waits::{self, Resource};

/// What a guest's load needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Cpu,
    Memory,
    Io,
}

/// What the VMs of a scenario need: the first of them has to tell.
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
        Needs::Memory | Needs::Io => {
            1.0 - beside.work / beside.seconds / (alone.work / alone.seconds)
        }
    })
}

/// Of all kinds of guests that nothing of their own slows down, the largest difference of the work alone before
/// and after, as a share of it.
pub fn spread(record: &Record) -> f64 {
    let limited = |pod: &&Pod| pod.short_mib.is_some();
    let limited: Vec<&Pod> = record.scenario.pods.iter().filter(limited).collect();
    let alone = record.guests.alone.iter();
    let alone = alone.filter(|alone| limited.iter().all(|pod| pod.name != alone.pod));
    let alone: Vec<_> = alone.collect();
    let spreads = alone.iter().enumerate().flat_map(|(number, first)| {
        let others = alone.iter().skip(number + 1).filter(|other| other.pod == first.pod);
        others.map(move |other| {
            let [first, other] = [first, other].map(|alone| pace(&alone.progress));
            (first - other).abs() / first.max(other)
        })
    });
    spreads.fold(0.0, f64::max)
}

/// The share of time for which this machine held up the emulated CPUs: the most of all windows.
pub fn host_delay(record: &Record) -> f64 {
    let alone = record.guests.alone.iter().map(|alone| &alone.progress);
    let all = alone.chain(record.guests.beside.values().flatten());
    all.map(|progress| progress.host_delay).fold(0.0, f64::max)
}

fn of_vms(record: &Record, share: impl Fn(&GuestProgress, &GuestProgress) -> f64) -> f64 {
    let progress = |name: &str, pod: &Pod| {
        let beside = sum(record.guests.beside.get(name)?.iter());
        let kind = record.guests.alone.iter().filter(|alone| alone.pod == pod.name);
        let alone = sum(kind.map(|alone| &alone.progress));
        (alone.work > 0.0).then_some((beside, alone))
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
                let demand = beside.wanted / beside.seconds;
                Some((of(&name, pod)?, pod.cpu_limit().map_or(demand, |limit| demand.min(limit))))
            });
            of_node(vms.collect(), record.scenario.vcpus)
        }
    }
}

/// Several windows as one. Its delay by the host is their mean.
fn sum<'a>(all: impl Iterator<Item = &'a GuestProgress>) -> GuestProgress {
    let mut sum = GuestProgress::default();
    for one in all {
        sum.seconds += one.seconds;
        sum.work += one.work;
        sum.wanted += one.wanted;
        sum.waited += one.waited;
        sum.host_delay += one.host_delay * one.seconds;
    }
    sum.host_delay /= sum.seconds.max(1e-9);
    sum
}

/// Work in a second of wanted time, on a machine that is not busy.
fn pace(progress: &GuestProgress) -> f64 {
    progress.work / progress.wanted.max(1e-9) / (1.0 - progress.host_delay).max(0.05)
}

fn lost(beside: &GuestProgress, alone: &GuestProgress) -> f64 {
    1.0 - pace(beside) / pace(alone)
}

fn beyond_own(beside: &GuestProgress, alone: &GuestProgress) -> f64 {
    let own = alone.waited / alone.work * beside.work;
    // A load of which nothing was heard waited all the time.
    if beside.wanted > 0.0 { (beside.waited - own) / beside.wanted } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(work: f64, wanted: f64, waited: f64, host_delay: f64) -> GuestProgress {
        GuestProgress { seconds: 10.0, work, wanted, waited, clock: 0.0, host_delay }
    }

    #[test]
    fn work_that_the_host_held_up_is_not_lost() {
        let alone = progress(100.0, 10.0, 0.0, 0.0);
        assert!((lost(&progress(50.0, 10.0, 0.0, 0.0), &alone) - 0.5).abs() < 1e-9);
        assert!(lost(&progress(50.0, 10.0, 0.0, 0.5), &alone).abs() < 1e-9);
    }

    #[test]
    fn waits_that_the_work_has_alone_are_its_own() {
        let alone = progress(100.0, 10.0, 2.0, 0.0);
        assert!(beyond_own(&progress(50.0, 10.0, 1.0, 0.0), &alone).abs() < 1e-9);
        assert!((beyond_own(&progress(50.0, 10.0, 6.0, 0.0), &alone) - 0.5).abs() < 1e-9);
    }
}
