//! What others take for a node that is short of CPU, worked out from the same records. Pure.

use crate::rates::{PodRates, Window, population};
use crate::record::Record;
use crate::truth::{average, of_node};

/// A rule by its name: its value for a record, 0 to 1, and from where on it says "short".
pub struct Rule {
    pub name: &'static str,
    pub value: fn(&Record) -> f64,
    pub short_from: f64,
}

/// In the order of the table's columns.
pub const RULES: [Rule; 5] = [
    Rule { name: "node some", value: node_some, short_from: 0.3 },
    Rule { name: "only if 70 % busy", value: only_if_busy, short_from: 0.3 },
    Rule { name: "K1-p75", value: k1_p75, short_from: 0.15 },
    Rule { name: "E3", value: e3, short_from: 0.2 },
    Rule { name: "vcpu delay p75", value: vcpu_delay_p75, short_from: 0.1 },
];

/// The node's own pressure.
fn node_some(record: &Record) -> f64 {
    average(record, |window| window.node.some)
}

/// The same, as OpenShift's descheduler takes it: where the node is busy.
fn only_if_busy(record: &Record) -> f64 {
    average(record, |window| if window.node.utilization > 0.7 { window.node.some } else { 0.0 })
}

/// The upper quartile of `full` less what was throttled, over that and usage; of pods that were
/// throttled in half of their periods nothing.
fn k1_p75(record: &Record) -> f64 {
    let vcpus = f64::from(record.scenario.vcpus);
    average(record, |window| {
        let shares = members(record, window).into_iter().filter_map(|(rates, threads)| {
            let waited = (rates.full - rates.throttled / vcpus.min(threads.max(1.0))).max(0.0);
            let share = if waited > 0.0 { waited / (waited + rates.usage) } else { 0.0 };
            (rates.throttled_periods < 0.5).then_some((share, 1.0))
        });
        quartile(shares.collect())
    })
}

/// `full` less what was throttled, over that and usage, at most what is left of a CPU; weighted by
/// what was wanted.
fn e3(record: &Record) -> f64 {
    average(record, |window| {
        let shares = members(record, window).into_iter().map(|(rates, _)| {
            let own = rates.throttled / (rates.usage + rates.throttled).max(1.0);
            let waited = (rates.full - own).clamp(0.0, 1.0);
            let ran = rates.usage.min(1.0 - waited);
            let share = if waited > 0.0 { waited / (waited + ran) } else { 0.0 };
            let wanted = if ran > 0.0 { rates.usage * (waited + ran) / ran } else { waited };
            (share, wanted)
        });
        of_node(shares.collect(), record.scenario.vcpus)
    })
}

/// What a query over `kubevirt_vmi_vcpu_delay_seconds_total` could take: the upper quartile of each
/// VM's delay, as a share of its vCPUs' time. Its own limit is in it.
fn vcpu_delay_p75(record: &Record) -> f64 {
    average(record, |window| {
        let delays = members(record, window)
            .into_iter()
            .filter(|(_, threads)| *threads > 0.0)
            .map(|(rates, threads)| ((rates.delayed / threads).min(1.0), 1.0));
        quartile(delays.collect())
    })
}

fn quartile(shares: Vec<(f64, f64)>) -> f64 {
    if shares.is_empty() { 0.0 } else { of_node(shares, 1) }
}

/// Those that the score is about, with their threads.
fn members(record: &Record, window: &Window<'_>) -> Vec<(PodRates, f64)> {
    let all = population(record).into_iter();
    let there = all.filter_map(|(name, pod)| {
        window.pods.get(name.as_str()).map(|rates| (*rates, f64::from(pod.load.threads)))
    });
    there.collect()
}
