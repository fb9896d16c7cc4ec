//! The agent's headroom by run delay, beside the contention of the same scenario with so many busy VMs more. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judging::Verdict;
use crate::record::Record;
use crate::scenario::Scenario;
use crate::truth::{self, mean};

/// Contention and CPU ready from which the level is `medium`, if both hold.
const CONTENDED: f64 = 0.10;
const LEAST_READY: f64 = 0.05;
/// Bound of the mean error of the predicted contention.
const MEAN_ERROR: f64 = 0.05;

/// Whether a VM could arrive on the node of this record: it is steady, and not contended.
pub fn is_compared(record: &Record) -> bool {
    let scenario = &record.scenario;
    scenario.is_steady() && scenario.uses_all_cpus() && truth::by_run_delay(record) < CONTENDED
}

/// The scenario of a record with busy VMs added: as many as fit by its agent's headroom, and one more.
pub fn with_vms(record: &Record) -> Vec<Scenario> {
    let around = of_agent(record).map(whole_numbers_around).into_iter().flatten();
    around.filter(|vms| *vms > 0).map(|vms| record.scenario.with_busy_vms(vms)).collect()
}

/// A row of CSV for each scenario, and what they show together.
pub fn table(records: &[Record]) -> Verdict {
    let by_name: BTreeMap<&str, &Record> =
        records.iter().map(|record| (record.scenario.name.as_str(), record)).collect();
    let mut rows =
        "scenario,CPUs,headroom,contention with fewer,ready with fewer,contention with more,\
                    ready with more,error\n"
            .to_owned();
    let (mut errors, mut failures) = (Vec::new(), Vec::new());
    let (mut too_small, mut too_large) = (0, 0);
    // The others are runs with VMs added.
    for record in records.iter().filter(|record| record.scenario.is_long_enough_to_predict()) {
        let Scenario { name, vcpus, .. } = &record.scenario;
        match Arrival::of(record, &by_name) {
            Ok(arrival) => {
                let Arrival { headroom, fewer, more } = arrival;
                errors.push(arrival.above_medium().abs());
                too_large += u32::from(fewer.above_medium() >= 0.0);
                too_small += u32::from(more.above_medium() < 0.0);
                let _ = writeln!(
                    rows,
                    "{name},{vcpus},{headroom:.2},{:.3},{:.3},{:.3},{:.3},{:.3}",
                    fewer.contention,
                    fewer.ready,
                    more.contention,
                    more.ready,
                    arrival.above_medium(),
                );
            }
            Err(why) => failures.push(format!("{name}: {why}")),
        }
    }
    let error = mean(&errors).unwrap_or(1.0);
    let largest = errors.iter().copied().fold(0.0, f64::max);
    let kernel = records.first().map_or("", |record| &record.kernel);
    let summary = format!(
        "Contention with busy VMs added up to the headroom on Linux {kernel}, {} scenarios: mean error \
         {error:.3}, largest {largest:.3}. The level is medium with fewer VMs in {too_large}, and is not with \
         more in {too_small}.",
        errors.len(),
    );
    if error > MEAN_ERROR {
        failures.push(format!("mean error {error:.3}, more than {MEAN_ERROR}"));
    }
    Verdict { rows, summary, failures }
}

/// What decides about the level of a node.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    contention: f64,
    ready: f64,
}

impl Waiting {
    fn of(record: &Record) -> Self {
        Self { contention: truth::by_run_delay(record), ready: truth::ready_by_run_delay(record) }
    }

    /// How far it is above both thresholds, or below one of them, if negative.
    fn above_medium(self) -> f64 {
        (self.contention - CONTENDED).min(self.ready - LEAST_READY)
    }
}

/// A node to which VMs were added up to its headroom.
struct Arrival {
    headroom: f64,
    /// With the whole number of VMs below the headroom, and above.
    fewer: Waiting,
    more: Waiting,
}

impl Arrival {
    /// An error is why there is no comparison.
    fn of(record: &Record, by_name: &BTreeMap<&str, &Record>) -> Result<Self, String> {
        record.failure().map_or(Ok(()), Err)?;
        let headroom = of_agent(record).ok_or("the agent has no headroom")?;
        let with = |vms: u32| {
            if vms == 0 {
                return Ok(Waiting::of(record));
            }
            let name = record.scenario.name_with(vms);
            let other = by_name.get(name.as_str()).ok_or_else(|| format!("no record of {name}"))?;
            other.failure().map_or_else(|| Ok(Waiting::of(other)), Err)
        };
        let [fewer, more] = whole_numbers_around(headroom).map(with);
        Ok(Self { headroom, fewer: fewer?, more: more? })
    }

    /// With exactly the headroom added. The agent predicts 0.
    fn above_medium(&self) -> f64 {
        let part = self.headroom.fract();
        let between = |fewer: f64, more: f64| fewer + part * (more - fewer);
        let contention = between(self.fewer.contention, self.more.contention);
        Waiting { contention, ready: between(self.fewer.ready, self.more.ready) }.above_medium()
    }
}

/// The mean of the answers.
fn of_agent(record: &Record) -> Option<f64> {
    let snapshots = record.run_delay.iter().filter_map(|answer| answer.snapshot.as_ref().ok());
    let all = snapshots.filter_map(|snapshot| snapshot["node"]["headroom_cpus"].as_f64());
    mean(&all.collect::<Vec<_>>())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "CPUs of a node")]
fn whole_numbers_around(headroom: f64) -> [u32; 2] {
    let fewer = headroom.max(0.0) as u32;
    [fewer, fewer + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_thresholds_decide_between_the_two_whole_numbers() {
        let fewer = Waiting { contention: 0.05, ready: 0.05 };
        let more = Waiting { contention: 0.25, ready: 0.25 };
        let near = |headroom, expected: f64| {
            let above = Arrival { headroom, fewer, more }.above_medium();
            assert!((above - expected).abs() < 1e-9, "{headroom} {above}");
        };
        near(3.25, 0.0);
        near(3.0, -0.05);
        near(3.75, 0.10);
        // Where CPU ready is low, contention alone is not medium.
        let calm = Waiting { contention: 0.5, ready: 0.02 };
        assert!((calm.above_medium() + 0.03).abs() < 1e-9);
        assert_eq!([0.0, 0.9, 3.2].map(whole_numbers_around), [[0, 1], [0, 1], [3, 4]]);
    }
}
