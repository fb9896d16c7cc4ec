//! What VMs really waited for, from their threads' run delay and from what their loads say they
//! missed; and one number of a node's VMs. No pressure file is looked at. Pure.

use crate::load::Missed;
use crate::rates::{PodRates, Window, population, windows};
use crate::record::Record;
use crate::scenario::{JUDGED_FROM, Pod, SECONDS};

/// VMs that want less than this in all, in CPUs or as a share of the node's, want nothing.
const LEAST_CPUS: f64 = 0.5;
const LEAST_SHARE: f64 = 0.02;

/// A VM's share of waiting, and the CPUs that it wanted.
pub type Weighted = (f64, f64);

/// By run delay, on average of the judged windows.
pub fn by_run_delay(record: &Record) -> f64 {
    average(record, |window| {
        let vms = population(record).into_iter();
        let waits = vms.filter_map(|(name, pod)| {
            window.pods.get(name.as_str()).map(|rates| waited(pod, rates, record.scenario.vcpus))
        });
        of_node(waits.collect(), record.scenario.vcpus)
    })
}

/// By what the loads missed: of the time that their bursts took, the share without a CPU; of those
/// that a quota holds back, of the work that it allows the share that was not done.
pub fn by_loads(record: &Record) -> f64 {
    let vms = population(record).into_iter();
    let waits = vms.filter_map(|(name, pod)| Some(missed(pod, record.missed.get(&name)?)));
    of_node(waits.collect(), record.scenario.vcpus)
}

/// Something of each judged window, on average.
pub fn average(record: &Record, of: impl Fn(&Window<'_>) -> f64) -> f64 {
    let windows = windows(record);
    windows.iter().map(of).sum::<f64>()
        / f64::from(u32::try_from(windows.len()).unwrap_or(1).max(1))
}

/// Run delay less what its own quota explains: the time that it was throttled, for each thread
/// that waited then, and what a quota forbids of what the load asks for.
fn waited(pod: &Pod, rates: &PodRates, vcpus: u32) -> Weighted {
    let threads = f64::from(pod.load.threads);
    let throttled = rates.throttled * (threads / f64::from(vcpus)).max(1.0);
    let forbidden = pod.allowed().map_or(0.0, |allowed| threads * pod.load.duty - allowed);
    let own = throttled.max(forbidden).clamp(0.0, rates.delayed.max(0.0));
    let (waited, wanted) = (rates.delayed - own, rates.delayed - own + rates.ran);
    (if wanted > 0.0 { waited / wanted } else { 0.0 }, wanted)
}

fn missed(pod: &Pod, missed: &Missed) -> Weighted {
    let seconds = pod.to.min(SECONDS) - pod.from.max(JUDGED_FROM);
    let (had, wanted) = match pod.allowed() {
        Some(allowed) => (missed.had, missed.asked.min(allowed * seconds)),
        // Who was starved to the end has no burst that ended.
        None => (missed.had, missed.took.max(missed.asked)),
    };
    if wanted <= 0.0 || seconds <= 0.0 {
        return (0.0, 0.0);
    }
    ((1.0 - had / wanted).max(0.0), wanted / seconds)
}

/// The smallest share that three quarters of what is wanted do not exceed.
pub fn of_node(mut waits: Vec<Weighted>, vcpus: u32) -> f64 {
    let wanted: f64 = waits.iter().map(|(_, wanted)| wanted).sum();
    if wanted < LEAST_CPUS.min(LEAST_SHARE * f64::from(vcpus)) {
        return 0.0;
    }
    waits.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut above = 0.0;
    let quartile = waits.iter().find(|(_, wants)| {
        above += wants;
        above > wanted / 4.0 * (1.0 + 1e-9)
    });
    quartile.map_or(0.0, |(share, _)| *share)
}
