//! Other estimators of CPU contention, and rules that are in use, computed from the same records. Pure.

use crate::rates::{PodRates, Window, scored};
use crate::record::Record;
use crate::scenario::Pod;
use crate::truth::{average, of_node};

/// A rule: its value for a record, 0 to 1.
pub struct Rule {
    pub name: &'static str,
    pub value: fn(&Record) -> f64,
    /// The threshold at which its users act.
    pub acts_from: f64,
}

/// In the order of the table's columns.
pub const RULES: [Rule; 6] = [
    Rule { name: "least", value: least, acts_from: 0.2 },
    Rule { name: "E3", value: e3, acts_from: 0.2 },
    Rule { name: "node some", value: node_some, acts_from: 0.3 },
    Rule { name: "only if 70 % busy", value: only_if_busy, acts_from: 0.3 },
    Rule { name: "K1-p75", value: k1_p75, acts_from: 0.15 },
    Rule { name: "vcpu delay p75", value: vcpu_delay_p75, acts_from: 0.1 },
];

/// The wait of each container if it waits on as few CPUs as possible: `some` less throttled time, times
/// the CPUs that its usage needs, and no more than is left of its quota.
fn least(record: &Record) -> f64 {
    average(record, |window| {
        let waits = vms(record, window).into_iter().map(|(rates, pod)| {
            let cpus = f64::from(pod.allowed_cpus(record.scenario.vcpus));
            let own = rates.throttled / (rates.usage + rates.throttled).max(1.0);
            let (some, full) = ((rates.some - own).max(0.0), (rates.full - own).max(0.0));
            let fewest =
                if rates.usage < 1.0 - full { 1.0 } else { rates.usage / (1.0 - full).max(1e-9) };
            let left = pod.cpu_limit().map_or(f64::INFINITY, |limit| limit - rates.usage);
            let waited = (some * fewest.clamp(1.0, cpus)).min(left.max(0.0));
            let wanted = waited + rates.usage;
            (if wanted > 0.0 { waited / wanted } else { 0.0 }, wanted)
        });
        of_node(waits.collect())
    })
}

/// The node's own pressure.
fn node_some(record: &Record) -> f64 {
    average(record, |window| window.node.some)
}

/// The same, only of a busy node, as OpenShift's descheduler uses it.
fn only_if_busy(record: &Record) -> f64 {
    average(record, |window| if window.node.utilization > 0.7 { window.node.some } else { 0.0 })
}

/// The upper quartile of `full` less throttled time, over that and usage, without pods that were
/// throttled in half of their periods.
fn k1_p75(record: &Record) -> f64 {
    let vcpus = f64::from(record.scenario.vcpus);
    average(record, |window| {
        let shares = with_threads(record, window).into_iter().filter_map(|(rates, threads)| {
            let waited = (rates.full - rates.throttled / vcpus.min(threads.max(1.0))).max(0.0);
            let share = if waited > 0.0 { waited / (waited + rates.usage) } else { 0.0 };
            (rates.throttled_periods < 0.5).then_some(share)
        });
        quartile(shares.collect())
    })
}

/// `full` less throttled time, over that and usage of at most the rest of a CPU; weighted by demand.
fn e3(record: &Record) -> f64 {
    average(record, |window| {
        let shares = with_threads(record, window).into_iter().map(|(rates, _)| {
            let own = rates.throttled / (rates.usage + rates.throttled).max(1.0);
            let waited = (rates.full - own).clamp(0.0, 1.0);
            let ran = rates.usage.min(1.0 - waited);
            let share = if waited > 0.0 { waited / (waited + ran) } else { 0.0 };
            let wanted = if ran > 0.0 { rates.usage * (waited + ran) / ran } else { waited };
            (share, wanted)
        });
        of_node(shares.collect())
    })
}

/// As a query over `kubevirt_vmi_vcpu_delay_seconds_total` would compute it: the upper quartile of the
/// VMs' delay as a share of their vCPUs' time, own limits included.
fn vcpu_delay_p75(record: &Record) -> f64 {
    average(record, |window| {
        let delays = with_threads(record, window)
            .into_iter()
            .filter(|(_, threads)| *threads > 0.0)
            .map(|(rates, threads)| (rates.delayed / threads).min(1.0));
        quartile(delays.collect())
    })
}

/// The smallest value that three quarters of all do not exceed.
fn quartile(mut shares: Vec<f64>) -> f64 {
    shares.sort_by(|a, b| b.total_cmp(a));
    shares.get(shares.len() / 4).copied().unwrap_or_default()
}

/// The scored pods of a window.
fn vms<'a>(record: &'a Record, window: &Window<'_>) -> Vec<(PodRates, &'a Pod)> {
    let all = scored(record).into_iter();
    all.filter_map(|(name, pod)| Some((*window.pods.get(name.as_str())?, pod))).collect()
}

/// The same with the number of their threads.
fn with_threads(record: &Record, window: &Window<'_>) -> Vec<(PodRates, f64)> {
    let all = vms(record, window).into_iter();
    all.map(|(rates, pod)| (rates, f64::from(pod.load.threads))).collect()
}
