//! What the VMs of a node waited for after one more had arrived, beside the demand that agents by run delay saw: on the
//! node before, and of the VM. The planner predicts the first from the others. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::judging::Verdict;
use crate::record::{Answer, Record};
use crate::scenario::Scenario;
use crate::truth::{mean, used_and_waited};

/// A row of CSV for each pair of records of a scenario, without a VM and with it. All must run on all CPUs, since
/// a plan does not know cpusets.
pub fn table(records: &[Record]) -> Verdict {
    let by_name: BTreeMap<&str, &Record> =
        records.iter().map(|record| (record.scenario.name.as_str(), record)).collect();
    let mut rows =
        "scenario,vm,CPUs,demand of VMs,of all else,waiting,demand of the VM,waited after its arrival\n"
            .to_owned();
    let (mut failures, mut compared) = (Vec::new(), 0);
    for after in records.iter().filter(|record| record.scenario.is_long_enough_to_predict()) {
        let Scenario { name, vcpus, pods, .. } = &after.scenario;
        let has_cpusets = pods.iter().any(|pod| pod.cpus.is_some());
        for pod in pods.iter().filter(|pod| pod.vm && !has_cpusets) {
            let Some(before) = by_name.get(after.scenario.name_without(pod).as_str()) else {
                continue;
            };
            let of_vm = mean_of(&after.run_delay, |snapshot| demand_of(snapshot, &pod.names()));
            let [of_vms, of_others, waiting] = [demand_of_vms, used_by_others, waiting]
                .map(|of: fn(&Value) -> _| mean_of(&before.run_delay, of));
            let values = [of_vms, of_others, waiting, of_vm, waited(after)];
            let values = values.into_iter().map(|value| Some(format!(",{:.3}", value?)));
            match values.collect::<Option<String>>() {
                Some(values) => {
                    compared += 1;
                    let _ = writeln!(rows, "{name},{},{vcpus}{values}", pod.name);
                }
                None => failures.push(format!("{name} without {}: a value is missing", pod.name)),
            }
        }
    }
    let kernel = records.first().map_or("", |record| &record.kernel);
    let summary = format!("{compared} VMs that arrived, on Linux {kernel}.");
    Verdict { rows, summary, failures }
}

/// Share of the demand of all VMs that waited because of the node.
fn waited(record: &Record) -> Option<f64> {
    record.failure().map_or(Some(()), |_| None)?;
    let all = used_and_waited(record);
    let waited: f64 = all.values().map(|(_, waited)| waited).sum();
    let used: f64 = all.values().map(|(used, _)| used).sum();
    (used > 0.0).then_some(waited / (used + waited))
}

/// The mean over the snapshots that have the utilization of the node, as not all do soon after the start.
fn mean_of(answers: &[Answer], of: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let snapshots = answers.iter().filter_map(|answer| answer.snapshot.as_ref().ok());
    let complete = snapshots.filter(|snapshot| !snapshot["node"]["utilization"].is_null());
    mean(&complete.filter_map(of).collect::<Vec<_>>())
}

/// CPUs that a node's VMs used and waited for.
fn demand_of_vms(snapshot: &Value) -> Option<f64> {
    sum_of(snapshot, demand)
}

/// CPUs that all else on a node used.
fn used_by_others(snapshot: &Value) -> Option<f64> {
    let node = &snapshot["node"];
    let used = node["cpus"].as_f64()? * node["utilization"].as_f64()?;
    Some(used - sum_of(snapshot, |scored| scored["usage"].as_f64())?)
}

/// CPUs that a node's VMs waited for.
fn waiting(snapshot: &Value) -> Option<f64> {
    sum_of(snapshot, waited_cpus)
}

/// The sum over a node's VMs.
fn sum_of(snapshot: &Value, of: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let scored = snapshot["cgroups"].as_array()?.iter().map(|cgroup| &cgroup["scored"]);
    scored.filter(|scored| !scored.is_null()).map(of).sum()
}

/// CPUs that a VM used, its emulator's among them, and waited for because of the node.
fn demand(scored: &Value) -> Option<f64> {
    Some(scored["usage"].as_f64()? + waited_cpus(scored)?)
}

/// CPUs that a VM waited for because of the node.
fn waited_cpus(scored: &Value) -> Option<f64> {
    let waiting = &scored["waiting"]["cpu"];
    Some(waiting["contention"].as_f64()? * waiting["demand"].as_f64()?)
}

/// The mean demand of VMs with these names.
fn demand_of(snapshot: &Value, names: &[String]) -> Option<f64> {
    let cgroups = snapshot["cgroups"].as_array()?.iter();
    let of_vm =
        cgroups.filter(|cgroup| names.iter().any(|name| cgroup["vm"].as_str() == Some(name)));
    mean(&of_vm.filter_map(|vm| demand(&vm["scored"])).collect::<Vec<_>>())
}
