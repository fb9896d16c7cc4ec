//! The table of scenarios with KVM guests: truth beside the scores of both agents. Pure.

use std::fmt::Write;

use crate::judging::{TOLERANCE_IN_REAL_TIME, Verdict, marks, wrong_sides};
use crate::kvm_truth::{Needs, lost_work, needs, of_record, slowest, spread};
use crate::record::Record;
use crate::scenario::Scenario;
use crate::table::{notes, score_in};
use crate::truth::{by_run_delay, mean};

/// The names of the columns. *Spread* is how far the work alone before and after is apart, and *slowest CPUs* for
/// which share of a window the emulated CPUs of the node really ran.
pub const HEADER: &str = "scenario,load,spread,slowest CPUs,work lost,truth,\
    CPU by run delay,CPU by psi,memory,I/O,error,kernel's run delay";

/// Bounds of the mean error, as recorded and some more: the emulator's CPU time for faults and interrupts counts as
/// used, so memory and I/O are too low.
const MEAN_ERRORS: [(Needs, f64); 3] =
    [(Needs::Cpu, 0.05), (Needs::Memory, 0.15), (Needs::Io, 0.12)];
/// A few scenarios say nothing of a mean.
const ENOUGH: usize = 5;

/// The largest score of what a load does not need, and of what it needs without contention.
const NO_CONTENTION: f64 = 0.05;

/// The agents' scores in one scenario.
struct Scores {
    cpu_by_run_delay: Option<f64>,
    cpu_by_psi: Option<f64>,
    memory: Option<f64>,
    io: Option<f64>,
}

pub fn table(records: &[&Record]) -> Verdict {
    let (mut rows, mut summary) = (format!("{HEADER}\n"), String::new());
    let (mut failures, mut errors) = (Vec::new(), Vec::new());
    for record in records {
        let name = &record.scenario.name;
        if let Some(failure) = record.failure() {
            failures.push(format!("{name}: {failure}"));
            continue;
        }
        let (needs, truth, scores) =
            (waited_for(&record.scenario), of_record(record), Scores::of(record));
        let score = scores.of_load(needs);
        let _ = write!(
            rows,
            "{name},{},{:.2},{:.2},{:.3},{truth:.3}",
            title(needs),
            spread(record),
            slowest(record),
            lost_work(record),
        );
        let error = score.map(|score| score - truth);
        let all = [scores.cpu_by_run_delay, scores.cpu_by_psi, scores.memory, scores.io, error];
        for value in all {
            rows.push(',');
            if let Some(value) = value {
                let _ = write!(rows, "{value:.3}");
            }
        }
        let _ = writeln!(rows, ",{:.3}", by_run_delay(record));
        errors.extend(error.map(|error| (needs, error)));
        judge(record, needs, truth, score, &mut failures);
    }
    notes(records, &mut summary);
    summary.push('\n');
    for (needs, bound) in MEAN_ERRORS {
        let of = errors.iter().filter(|(other, _)| *other == needs);
        let of: Vec<f64> = of.map(|(_, error)| error.abs()).collect();
        if let Some(mean) = mean(&of) {
            let largest = of.iter().copied().fold(0.0, f64::max);
            let (title, count) = (title(needs), of.len());
            let _ = writeln!(
                summary,
                "- {title}: mean error {mean:.3} over {count} scenarios, largest {largest:.3}"
            );
            if mean > bound && count >= ENOUGH {
                failures.push(format!("{title}: mean error {mean:.3}, more than {bound}"));
            }
        }
    }
    Verdict { rows, summary, failures }
}

impl Scores {
    fn of(record: &Record) -> Self {
        Self {
            cpu_by_run_delay: score_in(&record.run_delay, "cpu"),
            cpu_by_psi: score_in(&record.psi, "cpu"),
            memory: score_in(&record.run_delay, "memory"),
            io: score_in(&record.run_delay, "io"),
        }
    }

    fn of_load(&self, needs: Needs) -> Option<f64> {
        match needs {
            Needs::Cpu => self.cpu_by_run_delay,
            Needs::Memory => self.memory,
            Needs::Io => self.io,
        }
    }
}

/// What the guests wait for: beside pods that use no disk, the I/O thread of a VM waits for a CPU.
fn waited_for(scenario: &Scenario) -> Needs {
    let mut others = scenario.pods.iter().filter(|pod| pod.guest.is_none()).peekable();
    match needs(scenario) {
        Needs::Io if others.peek().is_some() && others.all(|pod| pod.load.io.is_none()) => {
            Needs::Cpu
        }
        needs => needs,
    }
}

/// Lost work decides on which side of a threshold memory contention is: its truth is a share of time, in which
/// other threads of the guest may run.
fn judge(
    record: &Record,
    needs: Needs,
    truth: f64,
    score: Option<f64>,
    failures: &mut Vec<String>,
) {
    let what = format!("{}, {}: truth {truth:.3}", record.scenario.name, title(needs));
    let Some(score) = score else {
        if truth >= NO_CONTENTION {
            failures.push(format!("{what}, the agent has no score"));
        }
        return;
    };
    let what = format!("{what}, score {score:.3}");
    if record.scenario.no_contention && score > NO_CONTENTION {
        failures.push(format!("{what} without contention"));
    }
    let decisive = if needs == Needs::Memory { lost_work(record) } else { truth };
    let wrong = marks(wrong_sides(decisive, score, TOLERANCE_IN_REAL_TIME));
    if !wrong.is_empty() {
        failures.push(format!("{what}: wrong side{wrong} of {decisive:.3}"));
    }
}

fn title(needs: Needs) -> &'static str {
    match needs {
        Needs::Cpu => "CPU",
        Needs::Memory => "memory",
        Needs::Io => "I/O",
    }
}
