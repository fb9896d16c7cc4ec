//! The agent's headroom by run delay, beside the contention of the same scenario with so many busy VMs more. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judging::Verdict;
use crate::record::Record;
use crate::scenario::Scenario;
use crate::truth::{by_run_delay, counted_for_medium, mean};

/// Contention from which the level is `medium`.
const MEDIUM: f64 = 0.10;
/// Of how many scenarios one may be wrong: the level is medium with as many busy VMs as the whole number that
/// agents publish, or is not with one more.
const ONE_WRONG_IN: usize = 4;

/// Whether a VM could arrive on the node of this record: it is steady, and not contended.
pub fn is_compared(record: &Record) -> bool {
    let scenario = &record.scenario;
    scenario.is_steady() && scenario.uses_all_cpus() && by_run_delay(record) < MEDIUM
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
        "scenario,CPUs,headroom,contention with fewer,contention with more,error\n".to_owned();
    let (mut errors, mut failures) = (Vec::new(), Vec::new());
    let (mut too_small, mut too_large) = (0_usize, 0_usize);
    // The others are runs with VMs added.
    for record in records.iter().filter(|record| record.scenario.is_long_enough_to_predict()) {
        let Scenario { name, vcpus, .. } = &record.scenario;
        match Arrival::of(record, &by_name) {
            Ok(arrival) => {
                let Arrival { headroom, fewer, more } = arrival;
                let error = arrival.contention() - MEDIUM;
                errors.push(error.abs());
                too_large += usize::from(fewer >= MEDIUM);
                too_small += usize::from(more < MEDIUM);
                let _ =
                    writeln!(rows, "{name},{vcpus},{headroom:.2},{fewer:.3},{more:.3},{error:.3}");
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
    let wrong = too_large + too_small;
    if wrong * ONE_WRONG_IN > errors.len() {
        failures.push(format!("the headroom is wrong in {wrong} of {} scenarios", errors.len()));
    }
    Verdict { rows, summary, failures }
}

/// A node to which VMs were added up to its headroom.
struct Arrival {
    headroom: f64,
    /// Contention, as far as it counts for `medium`, with the whole number of VMs below the headroom, and above.
    fewer: f64,
    more: f64,
}

impl Arrival {
    /// An error is why there is no comparison.
    fn of(record: &Record, by_name: &BTreeMap<&str, &Record>) -> Result<Self, String> {
        record.failure().map_or(Ok(()), Err)?;
        let headroom = of_agent(record).ok_or("the agent has no headroom")?;
        let with = |vms: u32| {
            if vms == 0 {
                return Ok(counted_for_medium(record));
            }
            let name = record.scenario.name_with(vms);
            let other = by_name.get(name.as_str()).ok_or_else(|| format!("no record of {name}"))?;
            other.failure().map_or_else(|| Ok(counted_for_medium(other)), Err)
        };
        let [fewer, more] = whole_numbers_around(headroom).map(with);
        Ok(Self { headroom, fewer: fewer?, more: more? })
    }

    /// With exactly the headroom added. The agent predicts `MEDIUM`.
    fn contention(&self) -> f64 {
        self.fewer + self.headroom.fract() * (self.more - self.fewer)
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
    fn contention_at_the_headroom_is_between_that_of_both_whole_numbers() {
        let at = |headroom| Arrival { headroom, fewer: 0.05, more: 0.25 }.contention();
        let near = |headroom, expected: f64| (at(headroom) - expected).abs() < 1e-9;
        assert!(near(3.25, 0.10) && near(3.0, 0.05) && near(3.75, 0.20));
        assert_eq!([0.0, 0.9, 3.2].map(whole_numbers_around), [[0, 1], [0, 1], [3, 4]]);
    }
}
