//! Scenarios boot by boot, as many at once as the machine has CPUs, and their records.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::thread::{self, available_parallelism};

use anyhow::{Context, anyhow};

use crate::awake;
use crate::machine::Machine;
use crate::record::Record;
use crate::scenario::Scenario;

/// Runs the scenarios and keeps their records. Returns them, and which boots failed.
pub fn run_matrix(
    machine: &Machine,
    scenarios: Vec<Scenario>,
    file: Option<&Path>,
) -> anyhow::Result<(Vec<Record>, Vec<String>)> {
    let (mut all, mut failures) = run_once(machine, scenarios.clone())?;
    keep(&all, file)?;
    // Now and then the emulator stands still for seconds, or a guest does not boot: what that spoiled is run
    // once more.
    all.retain(|record| record.failure().is_none());
    let missing = |all: &[Record]| -> Vec<Scenario> {
        let is_there =
            |scenario: &Scenario| all.iter().any(|one| one.scenario.name == scenario.name);
        scenarios.iter().filter(|scenario| !is_there(scenario)).cloned().collect()
    };
    let spoiled = missing(&all);
    if !spoiled.is_empty() {
        let names: Vec<&str> = spoiled.iter().map(|scenario| scenario.name.as_str()).collect();
        eprintln!("run once more, since a window was late or is missing: {}", names.join(", "));
        let (again, more) = run_once(machine, spoiled)?;
        all.extend(again);
        failures.extend(more);
        all.sort_by(|a, b| a.scenario.name.cmp(&b.scenario.name));
    }
    keep(&all, file)?;
    failures.extend(missing(&all).iter().map(|scenario| format!("{}: no record", scenario.name)));
    Ok((all, failures))
}

pub fn keep(records: &[Record], file: Option<&Path>) -> anyhow::Result<()> {
    if let Some(file) = file {
        let lines: Result<Vec<String>, _> = records.iter().map(serde_json::to_string).collect();
        fs::write(file, lines?.join("\n")).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Runs the scenarios boot by boot. Returns their records, and the failures of boots that have all of them.
fn run_once(
    machine: &Machine,
    scenarios: Vec<Scenario>,
) -> anyhow::Result<(Vec<Record>, Vec<String>)> {
    let at_once = available_parallelism().map_or(1, NonZero::get);
    let (in_virtual_time, in_real_time) = boots(scenarios, at_once);
    let next = Mutex::new(in_virtual_time.into_iter());
    let run_boot = |scenarios: &[Scenario]| {
        let (done, failure) = machine.run(scenarios)?;
        let is_whole = done.len() == scenarios.len();
        failure.iter().filter(|_| !is_whole).for_each(|failure| eprintln!("{failure}"));
        anyhow::Ok((done, failure.filter(|_| is_whole)))
    };
    let run_next = || {
        let boot = next.lock().ok()?.next();
        boot.map(|scenarios| run_boot(&scenarios))
    };
    let mut outcomes = thread::scope(|scope| {
        let some = || std::iter::from_fn(run_next).collect::<Vec<_>>();
        let runs: Vec<_> = (0..at_once).map(|_| scope.spawn(some)).collect();
        let mut outcomes = Vec::new();
        for run in runs {
            outcomes.extend(run.join().map_err(|_| anyhow!("a boot's thread panicked"))?);
        }
        anyhow::Ok(outcomes)
    })?;
    outcomes.extend(awake::while_it_runs(at_once, || {
        in_real_time.iter().map(|scenarios| run_boot(scenarios)).collect::<Vec<_>>()
    })?);
    let (mut records, mut failures) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        let (done, failure) = outcome?;
        records.extend(done);
        failures.extend(failure);
    }
    records.sort_by(|a, b| a.scenario.name.cmp(&b.scenario.name));
    Ok((records, failures))
}

/// The boots in virtual time, and those in real time: one for each number of CPUs, and for each scenario with
/// KVM guests. A boot in virtual time uses one of this machine's CPUs, so that one with more than a CPU's
/// share of the scenarios is split. The longest start first.
fn boots(scenarios: Vec<Scenario>, at_once: usize) -> (Vec<Vec<Scenario>>, Vec<Vec<Scenario>>) {
    let mut alike: BTreeMap<(bool, bool, u32), Vec<Scenario>> = BTreeMap::new();
    for scenario in scenarios {
        let kind = (scenario.real_time, scenario.has_guests(), scenario.vcpus);
        alike.entry(kind).or_default().push(scenario);
    }
    let (in_real_time, in_virtual_time): (Vec<_>, Vec<_>) =
        alike.into_iter().partition(|((real_time, ..), _)| *real_time);
    let count: usize = in_virtual_time.iter().map(|(_, scenarios)| scenarios.len()).sum();
    let share = count.div_ceil(at_once).max(1);
    let parts = in_virtual_time.iter().flat_map(|(_, scenarios)| scenarios.chunks(share));
    let mut in_virtual_time: Vec<_> = parts.map(<[Scenario]>::to_vec).collect();
    in_virtual_time.sort_by_key(|scenarios| std::cmp::Reverse(scenarios.len()));
    // Emulated nodes crash by KVM guests now and then, and have no records of what would have come.
    let in_real_time = in_real_time.into_iter().flat_map(|((_, guests, _), scenarios)| {
        let at_once = if guests { 1 } else { scenarios.len() };
        scenarios.chunks(at_once).map(<[Scenario]>::to_vec).collect::<Vec<_>>()
    });
    (in_virtual_time, in_real_time.collect())
}
