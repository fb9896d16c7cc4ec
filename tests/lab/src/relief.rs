//! The relief that the agent by run delay predicts, beside what leaving a VM out changed: the same scenario is run
//! once with all VMs, and once without one VM of each kind. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judging::Verdict;
use crate::record::{Answer, Record};
use crate::scenario::Pod;
use crate::truth::{self, mean};

/// From this truth on, the level of `medium`, an agent names a VM.
const CONTENDED: f64 = 0.10;
/// Bound of the mean error of the predicted contention.
const MEAN_ERROR: f64 = 0.05;
/// The VM with the most predicted relief gives at least this part of the largest one that was measured, in this
/// part of the scenarios.
const NEARLY_BEST: f64 = 0.9;
const SCENARIOS: f64 = 0.9;

/// Ways to choose the VM that leaves.
const RULES: [&str; 4] = ["most predicted relief", "waits most", "uses most", "chance"];

/// One kind of VM in one scenario.
struct Kind<'a> {
    pod: &'a Pod,
    predicted: Prediction,
    /// Contention of the node without it, and CPUs of waiting that ended.
    without: f64,
    ended: f64,
    /// CPUs that one VM used, and its share of demand that it waited for.
    used: f64,
    share: f64,
}

#[derive(Clone, Copy)]
struct Prediction {
    without: f64,
    cpus: f64,
}

/// Whether VMs of this record are left out in turn: contended, in virtual time, and more than one VM all
/// of which run all the time.
pub fn is_compared(record: &Record) -> bool {
    let vms = record.scenario.pods.iter().filter(|pod| pod.vm);
    record.scenario.is_steady()
        && vms.map(|pod| pod.copies).sum::<u32>() > 1
        && truth::by_run_delay(record) >= CONTENDED
}

/// A row of CSV for each VM that was left out, and what they show together.
pub fn table(records: &[Record]) -> Verdict {
    let by_name: BTreeMap<&str, &Record> =
        records.iter().map(|record| (record.scenario.name.as_str(), record)).collect();
    let mut failures = Vec::new();
    let mut rows =
        "scenario,vm,truth,without,predicted,ended_cpus,predicted_cpus,most_predicted\n".to_owned();
    let (mut errors, mut parts) = (Vec::new(), Vec::new());
    // The others are runs without a VM.
    let whole = records.iter().filter(|record| record.scenario.is_long_enough_to_predict());
    for record in whole {
        let name = &record.scenario.name;
        match kinds(record, &by_name) {
            Ok(kinds) => {
                let most_predicted = best(&kinds, |kind| kind.predicted.cpus);
                for (at, kind) in kinds.iter().enumerate() {
                    let Kind { pod, predicted, without, ended, .. } = kind;
                    errors.push((predicted.without - without).abs());
                    let _ = writeln!(
                        rows,
                        "{name},{},{:.3},{without:.3},{:.3},{ended:.2},{:.2},{}",
                        pod.name,
                        truth::by_run_delay(record),
                        predicted.without,
                        predicted.cpus,
                        u8::from(most_predicted == Some(at)),
                    );
                }
                parts.push(parts_of_best(&kinds));
            }
            Err(why) => failures.push(format!("{name}: {why}")),
        }
    }
    let error = mean(&errors).unwrap_or(1.0);
    let largest = errors.iter().copied().fold(0.0, f64::max);
    let kernel = records.first().map_or("", |record| &record.kernel);
    let mut summary = format!(
        "Contention without a VM on Linux {kernel}, {} VMs of {} scenarios: mean error {error:.3}, \
         largest {largest:.3}.\n\n",
        errors.len(),
        parts.len()
    );
    summary.push_str("| the VM that leaves | mean part of the largest relief | at least .9 of it |\n|---|---:|---:|\n");
    for (at, rule) in RULES.iter().enumerate() {
        let of_rule: Vec<f64> = parts.iter().map(|parts| parts[at]).collect();
        let nearly: Vec<f64> =
            of_rule.iter().map(|part| if *part >= NEARLY_BEST { 1.0 } else { 0.0 }).collect();
        let (part, nearly) = (mean(&of_rule).unwrap_or(0.0), mean(&nearly).unwrap_or(0.0));
        let _ = writeln!(summary, "| {rule} | {part:.3} | {:.0} % |", nearly * 100.0);
        if at == 0 && nearly < SCENARIOS {
            failures.push(format!(
                "the VM with the most predicted relief is nearly the best in {nearly:.3} of the scenarios"
            ));
        }
    }
    if error > MEAN_ERROR {
        failures.push(format!("mean error {error:.3}, more than {MEAN_ERROR}"));
    }
    Verdict { rows, summary, failures }
}

/// The kinds of VMs of a scenario; an error is why they can't be compared.
fn kinds<'a>(
    record: &'a Record,
    by_name: &BTreeMap<&str, &Record>,
) -> Result<Vec<Kind<'a>>, String> {
    let waiting = truth::used_and_waited(record);
    let all: f64 = waiting.values().map(|(_, waited)| waited).sum();
    let vms = record.scenario.pods.iter().filter(|pod| pod.vm);
    let kind = |pod: &'a Pod| {
        let name = record.scenario.name_without(pod);
        let other = by_name.get(name.as_str()).ok_or_else(|| format!("no record of {name}"))?;
        other.failure().map_or(Ok(()), Err)?;
        let names = pod.names();
        let of_copies = |of: fn(&(f64, f64)) -> f64| {
            let values = names.iter().filter_map(|name| waiting.get(name)).map(of);
            mean(&values.collect::<Vec<_>>()).ok_or("a VM did not run")
        };
        let (used, waited) = (of_copies(|both| both.0)?, of_copies(|both| both.1)?);
        let left: f64 = truth::used_and_waited(other).values().map(|(_, waited)| waited).sum();
        let predicted =
            predicted(&record.run_delay, &names).ok_or("the agent predicted nothing")?;
        let share = if used + waited > 0.0 { waited / (used + waited) } else { 0.0 };
        let without = truth::by_run_delay(other);
        Ok(Kind { pod, predicted, without, ended: all - left, used, share })
    };
    vms.map(kind).collect()
}

/// The mean of the answers, and of the copies.
fn predicted(answers: &[Answer], names: &[String]) -> Option<Prediction> {
    let snapshots = answers.iter().filter_map(|answer| answer.snapshot.as_ref().ok());
    let mut all = Vec::new();
    for snapshot in snapshots {
        for cgroup in snapshot["cgroups"].as_array().into_iter().flatten() {
            let is_one = names.iter().any(|name| cgroup["vm"].as_str() == Some(name));
            let relief = &cgroup["scored"]["relief"];
            let both = relief["score_without"].as_f64().zip(relief["cpus"].as_f64());
            all.extend(both.filter(|_| is_one));
        }
    }
    let (without, cpus): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
    Some(Prediction { without: mean(&without)?, cpus: mean(&cpus)? })
}

/// Of the largest relief that was measured, the part that each rule's VM gives.
fn parts_of_best(kinds: &[Kind<'_>]) -> [f64; 4] {
    let largest = kinds.iter().map(|kind| kind.ended).fold(f64::MIN, f64::max);
    let part = |kind: &Kind<'_>| (kind.ended / largest).clamp(0.0, 1.0);
    let of = |at: Option<usize>| at.and_then(|at| kinds.get(at)).map_or(0.0, part);
    let copies: f64 = kinds.iter().map(|kind| f64::from(kind.pod.copies)).sum();
    let by_chance = kinds.iter().map(|kind| part(kind) * f64::from(kind.pod.copies)).sum::<f64>();
    [
        of(best(kinds, |kind| kind.predicted.cpus)),
        of(best(kinds, |kind| kind.share)),
        of(best(kinds, |kind| kind.used)),
        by_chance / copies,
    ]
}

fn best(kinds: &[Kind<'_>], of: impl Fn(&Kind<'_>) -> f64) -> Option<usize> {
    let values = kinds.iter().map(of).enumerate();
    values.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}
