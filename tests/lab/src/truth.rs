//! What VMs really waited for, from their threads' run delay and from what their loads say they
//! missed; and one number of a node's VMs. No pressure file is looked at. Pure.

use crate::missed::Ran;
use crate::rates::{PodRates, Window, population, windows};
use crate::record::Record;
use crate::scenario::{JUDGED_FROM, Pod, WINDOW};

/// VMs that want less than this in all, in CPUs or as a share of the node's, want nothing; from there
/// to twice as much what they wait for comes to count.
const LEAST_CPUS: f64 = 0.5;
const LEAST_SHARE: f64 = 0.02;

/// A VM's share of waiting, and the CPUs that it wanted.
pub type Weighted = (f64, f64);

/// By run delay, on average of the judged windows.
pub fn by_run_delay(record: &Record) -> f64 {
    average(record, |window| in_window(record, window))
}

/// The same between two moments, of windows that lie wholly within them; none where none does.
pub fn between(record: &Record, from: f64, to: f64) -> Option<f64> {
    let all = windows(record);
    let within = all.iter().filter(|window| window.until > from + 5.5 && window.until < to + 0.5);
    let shares: Vec<f64> = within.map(|window| in_window(record, window)).collect();
    mean(&shares)
}

fn in_window(record: &Record, window: &Window<'_>) -> f64 {
    of_node(waits_in(record, window), record.scenario.vcpus)
}

fn waits_in(record: &Record, window: &Window<'_>) -> Vec<Weighted> {
    let vms = population(record).into_iter();
    let waits = vms.filter_map(|(name, pod)| {
        window.pods.get(name.as_str()).map(|rates| waited(pod, rates, record.scenario.vcpus))
    });
    waits.collect()
}

/// The same of all VMs together: the share of all that they wanted. It has no edge, as a quartile has.
pub fn together_by_run_delay(record: &Record) -> f64 {
    average(record, |window| of_all(&waits_in(record, window)))
}

/// By what the loads missed, on average of the judged windows: of the time that their bursts took, the
/// share without a CPU; of those that a quota holds back, of the work that it allows the share that was
/// not done. Late timers are not counted: no CPU was waited for.
pub fn by_loads(record: &Record) -> f64 {
    of_windows(record, missed, |waits| of_node(waits, record.scenario.vcpus))
}

/// The same with late timers.
pub fn by_loads_and_timers(record: &Record) -> f64 {
    let missed = |pod: &Pod, ran: Ran| missed(pod, Ran { late: 0.0, ..ran });
    of_windows(record, missed, |waits| of_node(waits, record.scenario.vcpus))
}

/// As [`by_loads`], of all VMs together.
pub fn together_by_loads(record: &Record) -> f64 {
    of_windows(record, missed, |waits| of_all(&waits))
}

fn of_windows(
    record: &Record,
    missed: impl Fn(&Pod, Ran) -> Weighted,
    of_vms: impl Fn(Vec<Weighted>) -> f64,
) -> f64 {
    let mut shares = Vec::new();
    let (mut at, mut number) = (JUDGED_FROM, 0);
    while at < record.scenario.seconds {
        let there = population(record)
            .into_iter()
            .filter(|(_, pod)| pod.from <= at && at + WINDOW <= pod.ends(&record.scenario));
        let waits = there.map(|(name, pod)| {
            let ran = record.missed.get(&name).and_then(|missed| missed.windows.get(number));
            missed(pod, ran.copied().unwrap_or_default())
        });
        shares.push(of_vms(waits.collect()));
        at += WINDOW;
        number += 1;
    }
    mean(&shares).unwrap_or_default()
}

/// Something of each judged window, on average.
pub fn average(record: &Record, of: impl Fn(&Window<'_>) -> f64) -> f64 {
    let values: Vec<f64> = windows(record).iter().map(of).collect();
    mean(&values).unwrap_or_default()
}

/// Run delay less what its own quota explains: the time that it was throttled, for each thread
/// that waited then, and what a quota forbids of what the load asks for. Who runs for as long as the quota
/// allows waits for nothing else.
fn waited(pod: &Pod, rates: &PodRates, vcpus: u32) -> Weighted {
    let threads = f64::from(pod.load.threads);
    let throttled = rates.throttled * (threads / f64::from(vcpus)).max(1.0);
    let forbidden = pod.allowed().map_or(0.0, |allowed| threads * pod.load.duty - allowed);
    let own = throttled.max(forbidden).clamp(0.0, rates.delayed.max(0.0));
    let left = pod.allowed().map_or(f64::INFINITY, |allowed| (allowed - rates.ran).max(0.0));
    let waited = (rates.delayed - own).min(left);
    let wanted = waited + rates.ran;
    (if wanted > 0.0 { waited / wanted } else { 0.0 }, wanted)
}

/// Who never had a CPU to say what it missed missed all.
fn missed(pod: &Pod, Ran { had, took, late }: Ran) -> Weighted {
    let asked = f64::from(pod.load.threads) * pod.load.duty * WINDOW;
    let wanted = match pod.allowed() {
        Some(allowed) => asked.min(allowed * WINDOW),
        None => (took - late).max(asked),
    };
    if wanted <= 0.0 {
        return (0.0, 0.0);
    }
    ((1.0 - had / wanted).max(0.0), wanted / WINDOW)
}

/// The smallest share that three quarters of what is wanted do not exceed.
pub fn of_node(mut waits: Vec<Weighted>, vcpus: u32) -> f64 {
    let wanted: f64 = waits.iter().map(|(_, wanted)| wanted).sum();
    let counts = wanted / LEAST_CPUS.min(LEAST_SHARE * f64::from(vcpus)) - 1.0;
    waits.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut above = 0.0;
    let quartile = waits.iter().find(|(_, wants)| {
        above += wants;
        above > wanted / 4.0 * (1.0 + 1e-9)
    });
    quartile.map_or(0.0, |(share, _)| *share * counts.clamp(0.0, 1.0))
}

/// The share of all that is wanted.
pub fn of_all(waits: &[Weighted]) -> f64 {
    let wanted: f64 = waits.iter().map(|(_, wanted)| wanted).sum();
    let waited: f64 = waits.iter().map(|(share, wanted)| share * wanted).sum();
    if wanted > 0.0 { waited / wanted } else { 0.0 }
}

/// None of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_what_is_wanted_may_be_worse_off() {
        assert_eq!(of_node(vec![(0.9, 1.0), (0.3, 1.0), (0.2, 1.0), (0.1, 1.0)], 4), 0.3);
        assert_eq!(of_node(vec![(0.9, 1.1), (0.3, 1.0), (0.2, 1.0), (0.1, 1.0)], 4), 0.9);
        // Of 2 % of four CPUs nothing counts, of twice as much all.
        assert_eq!(of_node(vec![(0.8, 0.08)], 4), 0.0);
        assert!((of_node(vec![(0.8, 0.12)], 4) - 0.4).abs() < 1e-9);
        assert_eq!(of_node(vec![(0.8, 0.16)], 4), 0.8);
    }

    #[test]
    fn what_a_quota_forbids_is_not_missed() {
        let pod: Pod =
            serde_json::from_str(r#"{"name": "vm", "threads": 4, "container_cpus": 2.0}"#).unwrap();
        let (share, wanted) = missed(&pod, Ran { had: 10.0, took: 20.0, late: 0.0 });
        assert_eq!((share, wanted), (0.0, 2.0));
        let (share, _) = missed(&pod, Ran { had: 5.0, took: 20.0, late: 0.0 });
        assert_eq!(share, 0.5);
        let free = Pod { container_cpus: None, ..pod };
        assert_eq!(missed(&free, Ran { had: 10.0, took: 20.0, late: 0.0 }), (0.5, 4.0));
        assert_eq!(missed(&free, Ran::default()), (1.0, 4.0));
    }

    #[test]
    fn a_late_timer_is_not_missed() {
        let pod = r#"{"name": "vm", "threads": 1, "duty": 0.1}"#;
        let pod: Pod = serde_json::from_str(pod).unwrap();
        assert_eq!(missed(&pod, Ran { had: 0.5, took: 1.0, late: 0.0 }), (0.5, 0.2));
        assert_eq!(missed(&pod, Ran { had: 0.5, took: 1.0, late: 0.5 }), (0.0, 0.1));
        assert_eq!(of_all(&[(0.5, 0.2), (0.0, 0.2)]), 0.25);
        assert_eq!(of_all(&[]), 0.0);
    }
}
