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
        "scenario,vm,CPUs,demand before,waiting before,demand of the VM,waited after its arrival\n"
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
            let [demand, waiting] =
                [demand, waiting].map(|of: fn(&Value) -> _| mean_of(&before.run_delay, of));
            match demand.zip(waiting).zip(of_vm).zip(waited(after)) {
                Some((((demand, waiting), of_vm), waited)) => {
                    compared += 1;
                    let _ = writeln!(
                        rows,
                        "{name},{},{vcpus},{demand:.3},{waiting:.3},{of_vm:.3},{waited:.3}",
                        pod.name
                    );
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

fn mean_of(answers: &[Answer], of: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let snapshots = answers.iter().filter_map(|answer| answer.snapshot.as_ref().ok());
    mean(&snapshots.filter_map(of).collect::<Vec<_>>())
}

/// CPUs that a node's VMs used and waited for, and that all else used: what an agent publishes of its node.
fn demand(snapshot: &Value) -> Option<f64> {
    let node = &snapshot["node"];
    let used = node["cpus"].as_f64()? * node["utilization"].as_f64()?;
    Some(used + waiting(snapshot)?)
}

/// CPUs that a node's VMs waited for.
fn waiting(snapshot: &Value) -> Option<f64> {
    let scored = snapshot["cgroups"].as_array()?.iter().map(|cgroup| &cgroup["scored"]);
    let waited = |scored: &Value| {
        Some(scored["waiting"]["cpu"]["demand"].as_f64()? - scored["usage"].as_f64()?)
    };
    scored.filter(|scored| !scored.is_null()).map(waited).sum()
}

/// The mean of VMs with these names.
fn demand_of(snapshot: &Value, names: &[String]) -> Option<f64> {
    let cgroups = snapshot["cgroups"].as_array()?.iter();
    let of_vm =
        cgroups.filter(|cgroup| names.iter().any(|name| cgroup["vm"].as_str() == Some(name)));
    let demands = of_vm.filter_map(|vm| vm["scored"]["waiting"]["cpu"]["demand"].as_f64());
    mean(&demands.collect::<Vec<_>>())
}
