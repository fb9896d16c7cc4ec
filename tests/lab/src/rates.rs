//! Rates of pods and of the node between two points of a record. Pure.

use std::collections::BTreeMap;

use crate::counters::{Node, PodCounters, Point, Pressures};
use crate::record::Record;
use crate::scenario::{JUDGED_FROM, Pod};

/// A pod between two points; times are shares of it, or CPUs where they add up over CPUs.
#[derive(Debug, Clone, Copy)]
pub struct PodRates {
    /// `some` and `full` of the container's CPU pressure.
    pub some: f64,
    pub full: f64,
    /// CPUs that the container used.
    pub usage: f64,
    /// CPUs taken by a quota: the largest of the counters of container and pod.
    pub throttled: f64,
    /// Share of its quota's periods in which the pod was throttled.
    pub throttled_periods: f64,
    /// Run time and run delay of its threads, in CPUs. The emulator's threads are left out.
    pub ran: f64,
    pub delayed: f64,
}

/// The node between two points.
#[derive(Debug, Clone, Copy)]
pub struct NodeRates {
    pub some: f64,
    pub utilization: f64,
}

/// A judged part of a record: the node, and by name the pods that run all the time.
#[derive(Debug)]
pub struct Window<'a> {
    /// When it ends, seconds since the start.
    pub until: f64,
    pub node: NodeRates,
    pub pods: BTreeMap<&'a str, PodRates>,
}

/// The judged windows of a record.
pub fn windows(record: &Record) -> Vec<Window<'_>> {
    let pairs = record.points.iter().zip(record.points.iter().skip(1));
    let judged = pairs.filter(|(before, _)| before.at > JUDGED_FROM - 0.5);
    judged.map(|(before, after)| window(before, after)).collect()
}

/// The pods of a record by the names of their copies.
pub fn pods(record: &Record) -> BTreeMap<String, &Pod> {
    let all = record.scenario.pods.iter();
    all.flat_map(|pod| pod.names().into_iter().map(move |name| (name, pod))).collect()
}

/// The scored pods: the VMs without those that await their handover; without VMs, all pods.
pub fn scored(record: &Record) -> BTreeMap<String, &Pod> {
    let mut here = pods(record);
    here.retain(|_, pod| !pod.arriving);
    if here.values().any(|pod| pod.vm) {
        here.retain(|_, pod| pod.vm);
    }
    here
}

fn window<'a>(before: &'a Point, after: &'a Point) -> Window<'a> {
    let seconds = after.at - before.at;
    let pods = after.pods.iter().filter_map(|(name, now)| {
        let then = before.pods.get(name)?;
        Some((name.as_str(), pod_rates(then, now, seconds)))
    });
    let until = after.at;
    Window { until, node: node_rates(&before.node, &after.node, seconds), pods: pods.collect() }
}

fn node_rates(before: &Node, after: &Node, seconds: f64) -> NodeRates {
    NodeRates {
        some: cpu(&before.pressure, &after.pressure, seconds).0,
        utilization: more(before.busy, after.busy) / more(before.total, after.total).max(1.0),
    }
}

fn pod_rates(before: &PodCounters, after: &PodCounters, seconds: f64) -> PodRates {
    let per_second = |before, after| more(before, after) / 1e6 / seconds;
    let (container, pod) = ((&before.container, &after.container), (&before.pod, &after.pod));
    let (some, full) = cpu(&container.0.pressure, &container.1.pressure, seconds);
    let here_or_above = container.0.throttled_here_or_above_us;
    let here_or_above = here_or_above.zip(container.1.throttled_here_or_above_us);
    let throttled = [
        (container.0.throttled_us, container.1.throttled_us),
        (pod.0.throttled_us, pod.1.throttled_us),
        here_or_above.unwrap_or_default(),
    ]
    .map(|(before, after)| per_second(before, after));
    let periods = [container, pod].map(|(before, after)| {
        let periods = more(before.nr_periods, after.nr_periods);
        more(before.nr_throttled, after.nr_throttled) / periods.max(1.0)
    });
    let (mut ran, mut delayed) = (0.0, 0.0);
    for (thread, now) in &after.threads {
        let then = before.threads.get(thread).copied().unwrap_or_default();
        let share = |then, now| more(then, now) / 1e9 / seconds;
        let own = share(then.0, now.0);
        ran += own;
        // No thread waits for longer than the window: Linux 6.12 sometimes counts a sleep as delay.
        delayed += share(then.1, now.1).min((1.0 - own).max(0.0));
    }
    PodRates {
        some,
        full,
        usage: per_second(container.0.usage_us, container.1.usage_us),
        throttled: throttled.into_iter().fold(0.0, f64::max),
        throttled_periods: periods.into_iter().fold(0.0, f64::max),
        ran,
        delayed,
    }
}

fn cpu(before: &Pressures, after: &Pressures, seconds: f64) -> (f64, f64) {
    let share = |before, after| more(before, after) / 1e6 / seconds;
    (share(before.cpu.0, after.cpu.0), share(before.cpu.1, after.cpu.1))
}

#[allow(clippy::cast_precision_loss, reason = "what is counted in seconds is far below 2^52")]
fn more(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64
}
