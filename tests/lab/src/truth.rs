//! Truth of CPU: the share of their demand that VMs waited for because of the node, by the run delay of
//! their threads and by what their loads measured; and one number for all VMs of a node. No pressure file
//! is read. Pure.

use std::collections::BTreeMap;

use crate::progress::CpuProgress;
use crate::rates::{PodRates, Window, scored, windows};
use crate::record::Record;
use crate::scenario::{JUDGED_FROM, Pod, Scenario, WINDOW};

/// At least as much demand is averaged, in CPUs.
const LEAST_CPUS: f64 = 0.5;

/// A VM's contention, and its demand in CPUs.
pub type Weighted = (f64, f64);

/// By run delay, the mean of the judged windows.
pub fn by_run_delay(record: &Record) -> f64 {
    average(record, |window| in_window(record, window))
}

/// The same as far as it counts for the level `medium`, the mean of the judged windows.
pub fn counted_for_medium(record: &Record) -> f64 {
    average(record, |window| of_node_for_medium(contentions(record, window)))
}

/// The same contention between two moments, of windows that lie wholly within them; `None` where there are none.
pub fn between(record: &Record, from: f64, to: f64) -> Option<f64> {
    let all = windows(record);
    let within = all.iter().filter(|window| window.until > from + 5.5 && window.until < to + 0.5);
    let shares: Vec<f64> = within.map(|window| in_window(record, window)).collect();
    mean(&shares)
}

/// CPUs that a VM used and waited for because of the node, by run delay, by name: means of the judged windows.
pub fn used_and_waited(record: &Record) -> BTreeMap<String, (f64, f64)> {
    let windows = windows(record);
    let of_vm = |(name, pod): (String, &Pod)| {
        let rates = windows.iter().filter_map(|window| window.pods.get(name.as_str()));
        let (used, waited): (Vec<f64>, Vec<f64>) = rates
            .map(|rates| {
                let (share, wanted) = contention(pod, rates, &record.scenario);
                (wanted * (1.0 - share), wanted * share)
            })
            .unzip();
        Some((name, (mean(&used)?, mean(&waited)?)))
    };
    scored(record).into_iter().filter_map(of_vm).collect()
}

fn in_window(record: &Record, window: &Window<'_>) -> f64 {
    of_node(contentions(record, window))
}

fn contentions(record: &Record, window: &Window<'_>) -> Vec<Weighted> {
    let vms = scored(record).into_iter();
    let contentions = vms.filter_map(|(name, pod)| {
        window.pods.get(name.as_str()).map(|rates| contention(pod, rates, &record.scenario))
    });
    contentions.collect()
}

/// By what the loads measured, the mean of the judged windows. Late timers don't count: meanwhile no
/// thread waits for a CPU.
pub fn by_loads(record: &Record) -> f64 {
    by_reports(record, |progress| progress)
}

/// The same with late timers counted as missed work.
pub fn by_loads_and_timers(record: &Record) -> f64 {
    let with_timers = |progress| CpuProgress { late: 0.0, ..progress };
    by_reports(record, with_timers)
}

fn by_reports(record: &Record, adjust: impl Fn(CpuProgress) -> CpuProgress) -> f64 {
    let windows = windows(record);
    let mut shares = Vec::new();
    let (mut at, mut number) = (JUDGED_FROM, 0);
    while at < record.scenario.seconds {
        let running = scored(record)
            .into_iter()
            .filter(|(_, pod)| pod.from <= at && at + WINDOW <= pod.ends(&record.scenario));
        let vms = running.map(|(name, pod)| {
            let progress = record.reports.get(&name).and_then(|report| report.windows.get(number));
            let rates = windows.get(number).and_then(|window| window.pods.get(name.as_str()));
            let throttled = rates.map_or(0.0, |rates| throttled(pod, rates, record.scenario.vcpus));
            let progress = progress.copied().unwrap_or_default();
            if record.scenario.has_own_cpus(pod) {
                return (0.0, progress.used / WINDOW);
            }
            missed(pod, adjust(progress), throttled)
        });
        shares.push(of_node(vms.collect()));
        at += WINDOW;
        number += 1;
    }
    mean(&shares).unwrap_or_default()
}

/// The mean of a value over the judged windows.
pub fn average(record: &Record, of: impl Fn(&Window<'_>) -> f64) -> f64 {
    let values: Vec<f64> = windows(record).iter().map(of).collect();
    mean(&values).unwrap_or_default()
}

/// Throttled time as run delay, in CPUs: once for each thread that waits on a throttled CPU. A CPU on which the pod
/// runs is not throttled, although Linux 7.2 counts some of that time.
fn throttled(pod: &Pod, rates: &PodRates, vcpus: u32) -> f64 {
    let cpus = f64::from(vcpus);
    let throttled = rates.throttled.min((cpus - rates.ran).max(0.0));
    throttled * (f64::from(pod.load.threads) / cpus).max(1.0)
}

/// Run delay less what the own quota explains: throttled time, and the demand above the quota. A VM that
/// uses all of its quota, or has its CPUs for itself, waits for nothing else.
fn contention(pod: &Pod, rates: &PodRates, scenario: &Scenario) -> Weighted {
    if scenario.has_own_cpus(pod) {
        return (0.0, rates.ran);
    }
    let demand = f64::from(pod.load.threads) * pod.load.average_duty();
    let above_quota = pod.cpu_limit().map_or(0.0, |limit| demand - limit);
    let own =
        throttled(pod, rates, scenario.vcpus).max(above_quota).clamp(0.0, rates.delayed.max(0.0));
    let left = pod.cpu_limit().map_or(f64::INFINITY, |limit| (limit - rates.ran).max(0.0));
    let waited = (rates.delayed - own).min(left);
    let wanted = waited + rates.ran;
    (if wanted > 0.0 { waited / wanted } else { 0.0 }, wanted)
}

/// By a load's own report. Without a limit: of the time that its bursts took, the part without a CPU. A
/// load that always has more to do than its quota allows misses what it does not use of the quota. One
/// that wants less than its quota misses what its bursts took longer, less throttled time, and no more
/// than it leaves of the quota. A load without a report never ran.
fn missed(pod: &Pod, CpuProgress { used, elapsed, late }: CpuProgress, throttled: f64) -> Weighted {
    let threads = f64::from(pod.load.threads);
    let average = threads * pod.load.average_duty() * WINDOW;
    let wanted = match pod.cpu_limit().map(|limit| limit * WINDOW) {
        Some(allowed) if average >= allowed => allowed,
        Some(allowed) => {
            let waited = elapsed - late - used - throttled * WINDOW;
            used + waited.clamp((average - used).max(0.0), (allowed - used).max(0.0))
        }
        None => (elapsed - late).max(threads * pod.load.least_duty() * WINDOW),
    };
    if wanted <= 0.0 {
        return (0.0, 0.0);
    }
    ((1.0 - used / wanted).max(0.0), wanted / WINDOW)
}

/// The mean over the half of the demand that waits most, but over half a CPU at least.
pub fn of_node(mut waits: Vec<Weighted>) -> f64 {
    let wanted: f64 = waits.iter().map(|(_, wanted)| wanted).sum();
    let half = (wanted / 2.0).max(LEAST_CPUS);
    waits.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut left = half;
    let values = waits.into_iter().map(|(share, wanted)| {
        let part = wanted.min(left);
        left -= part;
        share * part
    });
    values.sum::<f64>() / half
}

/// For the level `medium`, a VM counts in part if it wants less than half a CPU.
fn of_node_for_medium(waits: Vec<Weighted>) -> f64 {
    let counted = |(share, wanted): Weighted| (share * (wanted / 0.5).min(1.0), wanted);
    of_node(waits.into_iter().map(counted).collect())
}

/// `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_half_of_the_demand_that_waits_most_counts() {
        let rounded = |waits| (of_node(waits) * 1e6).round() / 1e6;
        assert_eq!(rounded(vec![(0.1, 1.0), (0.9, 1.0), (0.3, 1.0), (0.2, 1.0)]), 0.6);
        assert_eq!(rounded(vec![(0.8, 1.0), (0.0, 3.0)]), 0.4);
        // Less than half a CPU counts in part.
        assert_eq!(rounded(vec![(0.8, 0.25)]), 0.4);
        assert_eq!(rounded(vec![]), 0.0);
        // For a level, one that wants little counts in part, after those that wait more by that.
        let counted = of_node_for_medium(vec![(0.8, 0.125), (0.4, 2.0), (0.0, 1.0)]);
        assert!((counted - 0.4).abs() < 1e-6, "{counted}");
    }

    fn pod(json: &str) -> Pod {
        serde_json::from_str(json).unwrap()
    }

    fn progress(used: f64, elapsed: f64, late: f64) -> CpuProgress {
        CpuProgress { used, elapsed, late }
    }

    #[test]
    fn work_above_the_quota_is_not_missed() {
        let limited = pod(r#"{"name": "vm", "threads": 4, "container_cpus": 2.0}"#);
        assert_eq!(missed(&limited, progress(10.0, 20.0, 0.0), 2.0), (0.0, 2.0));
        assert_eq!(missed(&limited, progress(5.0, 20.0, 0.0), 2.0).0, 0.5);
        let free = Pod { container_cpus: None, ..limited };
        assert_eq!(missed(&free, progress(10.0, 20.0, 0.0), 0.0), (0.5, 4.0));
        assert_eq!(missed(&free, CpuProgress::default(), 0.0), (1.0, 4.0));
    }

    #[test]
    fn bursts_below_the_quota_miss_what_throttling_does_not_explain() {
        let bursty = pod(r#"{"name": "vm", "threads": 2, "duty": 0.2, "container_cpus": 0.5}"#);
        // Alone: twice as long as the work, all of it throttled.
        assert_eq!(missed(&bursty, progress(2.0, 4.0, 0.0), 0.4), (0.0, 0.4));
        // Beside others half a second longer, which is what is left of the quota.
        let (share, demand) = missed(&bursty, progress(2.0, 4.5, 0.0), 0.4);
        assert!((share - 0.2).abs() < 1e-9 && (demand - 0.5).abs() < 1e-9);
        // One that never ran misses its whole demand.
        assert_eq!(missed(&bursty, CpuProgress::default(), 0.0), (1.0, 0.4));
    }

    #[test]
    fn a_cpu_on_which_a_pod_runs_is_not_throttled() {
        let rates = PodRates {
            some: 1.0,
            full: 1.0,
            usage: 1.0,
            throttled: 1.5,
            throttled_periods: 1.0,
            ran: 1.0,
            delayed: 1.0,
        };
        let limited = pod(r#"{"name": "vm", "threads": 2, "container_cpus": 1.0}"#);
        assert_eq!([2, 4].map(|cpus| throttled(&limited, &rates, cpus)), [1.0, 1.5]);
    }

    #[test]
    fn calm_phases_are_no_demand() {
        let phased = pod(r#"{"name": "vm", "threads": 1,
            "phases": {"busy_s": 5.0, "calm_s": 5.0, "calm_duty": 0.1}}"#);
        assert_eq!(missed(&phased, progress(0.5, 0.5, 0.0), 0.0), (0.0, 0.1));
        assert_eq!(missed(&phased, progress(2.5, 5.0, 0.0), 0.0), (0.5, 1.0));
    }

    #[test]
    fn a_late_timer_is_not_missed() {
        let light = pod(r#"{"name": "vm", "threads": 1, "duty": 0.1}"#);
        assert_eq!(missed(&light, progress(0.5, 1.0, 0.0), 0.0), (0.5, 0.2));
        assert_eq!(missed(&light, progress(0.5, 1.0, 0.5), 0.0), (0.0, 0.1));
    }
}
