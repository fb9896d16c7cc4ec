//! The table of the CPU scenarios: truth beside the agent's scores and other rules, and how far each of
//! them is from truth. Pure.

use std::fmt::Write;

use crate::judging::{THRESHOLDS, TOLERANCE, Verdict, marks, wrong_sides};
use crate::record::{Answer, Record};
use crate::rules::RULES;
use crate::scenario::{Exemption, Scenario};
use crate::truth::{self, mean};

/// Bounds of the score by run delay against what the loads measured.
const MEAN_ERROR: f64 = 0.008;
const LARGEST_ERROR: f64 = 0.08;

/// Bounds of the score by PSI, which is an estimate: its mean error, and the share of scenarios in which
/// it may be on the wrong side of a threshold.
const MEAN_ERROR_BY_PSI: f64 = 0.08;
const WRONG_SIDES_BY_PSI: f64 = 0.10;

/// Below this truth nearly every estimator is right.
const NEAR_ZERO: f64 = 0.02;

/// A rule that acts at a threshold of its own is wrong where it acts below this truth, or does not above
/// the other.
const CALM: f64 = 0.10;
pub const CONTENDED: f64 = 0.30;

/// One scenario's row.
struct Row<'a> {
    record: &'a Record,
    truth: f64,
    loads: f64,
    with_timers: f64,
    /// In the order of [`estimators`].
    estimates: Vec<Estimate>,
}

/// One estimator's value, and the truth that it is compared with.
#[derive(Clone, Copy)]
struct Estimate {
    truth: f64,
    value: f64,
    /// Where the rule acts, if it is one that is in use.
    acts_from: Option<f64>,
}

/// The names of the columns.
pub fn header() -> String {
    let columns = ["scenario", "CPUs", "truth", "loads"].into_iter();
    columns.chain(estimators()).collect::<Vec<_>>().join(",")
}

pub fn table(records: &[&Record]) -> Verdict {
    let mut failures = Vec::new();
    let mut rows = Vec::new();
    for record in records {
        match Row::of(record) {
            Ok(row) => rows.push(row),
            Err(why) => failures.push(format!("{}: {why}", record.scenario.name)),
        }
    }
    let (mut shown, mut summary) = (header() + "\n", String::new());
    for row in &rows {
        let _ = writeln!(shown, "{}", row.shown());
        row.judge(&mut failures);
    }
    headlines(&rows, &mut summary, &mut failures);
    Verdict { rows: shown, summary, failures }
}

/// The names of all estimators: the agent's two, and the rules.
fn estimators() -> impl Iterator<Item = &'static str> {
    ["run delay", "psi"].into_iter().chain(RULES.iter().map(|rule| rule.name))
}

impl<'a> Row<'a> {
    /// An error is why the record can't be judged.
    fn of(record: &'a Record) -> Result<Self, String> {
        if let Some(failure) = record.failure() {
            return Err(failure);
        }
        let (truth, loads) = (truth::by_run_delay(record), truth::by_loads(record));
        let score = |answers| score_in(answers, "cpu").ok_or("the agent has no score");
        let own = |truth, value| Estimate { truth, value, acts_from: None };
        let mut estimates =
            vec![own(loads, score(&record.run_delay)?), own(truth, score(&record.psi)?)];
        estimates.extend(RULES.iter().map(|rule| Estimate {
            truth,
            value: (rule.value)(record),
            acts_from: Some(rule.acts_from),
        }));
        Ok(Self {
            record,
            truth,
            loads,
            with_timers: truth::by_loads_and_timers(record),
            estimates,
        })
    }

    fn shown(&self) -> String {
        let Scenario { name, vcpus, .. } = &self.record.scenario;
        let mut row = format!("{name},{vcpus},{:.3},{:.3}", self.truth, self.loads);
        for estimate in &self.estimates {
            let _ = write!(row, ",{:.3}", estimate.value);
        }
        row
    }

    /// What fails of the score by run delay: its side of a threshold, and its error.
    fn judge(&self, failures: &mut Vec<String>) {
        let Some(estimate) = self.estimates.first() else { return };
        let Estimate { truth, value, .. } = *estimate;
        let what = format!(
            "{}: loads measured {truth:.3}, score by run delay {value:.3}",
            self.record.scenario.name
        );
        let wrong = marks(estimate.wrong_sides());
        if !wrong.is_empty() {
            failures.push(format!("{what}: wrong side{wrong}"));
        }
        if estimate.error() > LARGEST_ERROR {
            failures.push(what);
        }
    }
}

impl Estimate {
    fn error(&self) -> f64 {
        (self.value - self.truth).abs()
    }

    fn wrong_sides(&self) -> [bool; 3] {
        wrong_sides(self.truth, self.value, TOLERANCE)
    }

    /// Whether a rule that acts from a threshold of its own acts wrongly.
    fn acts_wrongly(&self) -> bool {
        self.acts_from.is_some_and(|from| {
            (self.truth < CALM && self.value >= from)
                || (self.truth > CONTENDED && self.value < from)
        })
    }
}

/// The reasons of exemptions.
pub fn notes(records: &[&Record], text: &mut String) {
    for record in records {
        for Exemption { error, why, .. } in record.exemptions() {
            let name = &record.scenario.name;
            let _ = writeln!(text, "\n† {name}, error of at most {error}: {why}");
        }
    }
}

/// The mean contention for a resource in the judged windows by an agent's answers; `None` unless most of them have
/// it.
pub fn score_in(answers: &[Answer], resource: &str) -> Option<f64> {
    let snapshots = answers.iter().filter_map(|answer| answer.snapshot.as_ref().ok());
    let scores: Vec<f64> =
        snapshots.filter_map(|snapshot| snapshot["node"]["latest"][resource].as_f64()).collect();
    mean(&scores).filter(|_| 2 * scores.len() > answers.len())
}

/// The comparison of all estimators over several sets of scenarios, and the bounds of all scenarios.
fn headlines(rows: &[Row<'_>], text: &mut String, failures: &mut Vec<String>) {
    let not_zero = |row: &&Row<'_>| row.truth >= NEAR_ZERO;
    let all = || rows.iter();
    comparison("All scenarios", &all().collect::<Vec<_>>(), text);
    let without_zero = format!("Without scenarios of truth below {NEAR_ZERO}");
    comparison(&without_zero, &all().filter(not_zero).collect::<Vec<_>>(), text);
    details(rows, text);
    by_psi(rows, text);
    let of = |estimator| rows.iter().filter_map(move |row| row.estimates.get(estimator));
    // A few scenarios of many say nothing of an estimate's bounds.
    let all_ran = rows.len() >= 50;
    for (estimator, name, bound) in [(0, "run delay", MEAN_ERROR), (1, "psi", MEAN_ERROR_BY_PSI)] {
        let error = mean(&of(estimator).map(Estimate::error).collect::<Vec<_>>()).unwrap_or(0.0);
        if error > bound && (all_ran || estimator == 0) {
            failures.push(format!("mean error by {name} {error:.3}, more than {bound}"));
        }
    }
    let wrong: Vec<f64> =
        of(1).map(|psi| if psi.wrong_sides().contains(&true) { 1.0 } else { 0.0 }).collect();
    let share = mean(&wrong).unwrap_or(0.0);
    if all_ran && share > WRONG_SIDES_BY_PSI {
        failures.push(format!(
            "by psi {share:.3} of the scenarios are on a wrong side, more than {WRONG_SIDES_BY_PSI}"
        ));
    }
}

fn comparison(title: &str, rows: &[&Row<'_>], text: &mut String) {
    let _ = writeln!(text, "\n{title} ({}):\n", rows.len());
    text.push_str("| estimator | mean error | largest error |");
    for threshold in THRESHOLDS {
        let _ = write!(text, " wrong side of {threshold:.2} |");
    }
    text.push_str(" acts wrongly, from |\n|---|---:|---:|---:|---:|---:|---:|\n");
    for (number, name) in estimators().enumerate() {
        let all: Vec<Estimate> =
            rows.iter().filter_map(|row| row.estimates.get(number)).copied().collect();
        let errors: Vec<f64> = all.iter().map(Estimate::error).collect();
        let largest = errors.iter().copied().fold(0.0, f64::max);
        let _ = write!(text, "| {name} | {:.3} | {largest:.3} |", mean(&errors).unwrap_or(0.0));
        let sides: Vec<[bool; 3]> = all.iter().map(Estimate::wrong_sides).collect();
        for side in 0..THRESHOLDS.len() {
            let wrong = sides.iter().filter(|sides| sides.get(side) == Some(&true)).count();
            let _ = write!(text, " {wrong} |");
        }
        let acts_from = all.first().and_then(|estimate| estimate.acts_from);
        let acts = acts_from.map_or_else(
            || "–".to_owned(),
            |from| {
                let wrongly = all.iter().filter(|estimate| estimate.acts_wrongly()).count();
                format!("{wrongly}, {from}")
            },
        );
        let _ = writeln!(text, " {acts} |");
    }
}

/// The scenarios in which the score by PSI is on a wrong side.
fn by_psi(rows: &[Row<'_>], text: &mut String) {
    for row in rows {
        let Some(estimate) = row.estimates.get(1) else { continue };
        let wrong = marks(estimate.wrong_sides());
        if !wrong.is_empty() {
            let (name, Estimate { truth, value, .. }) = (&row.record.scenario.name, estimate);
            let _ = writeln!(text, "By psi: {name}, {value:.3} for {truth:.3}{wrong}");
        }
    }
}

/// Figures beside the comparison.
fn details(rows: &[Row<'_>], text: &mut String) {
    let far = |of: &dyn Fn(&Row<'_>) -> Option<f64>| {
        let errors: Vec<f64> = rows.iter().filter_map(of).map(f64::abs).collect();
        (mean(&errors).unwrap_or(0.0), errors.into_iter().fold(0.0_f64, f64::max))
    };
    let score = |row: &Row<'_>| row.estimates.first().map(|estimate| estimate.value);
    let (by_delay, largest_by_delay) = far(&|row| Some(score(row)? - row.truth));
    let (with_timers, _) = far(&|row| Some(score(row)? - row.with_timers));
    let _ = writeln!(
        text,
        "\nBy run delay: against truth by run delay, mean error {by_delay:.3}, largest {largest_by_delay:.3}. With late timers \
         counted as missed work: mean error {with_timers:.3}."
    );
    let answers = rows.iter().flat_map(|row| {
        let all = row.record.psi.iter().chain(&row.record.run_delay);
        all.map(move |answer| (answer, row.record))
    });
    if let Some((answer, record)) = answers.max_by(|a, b| a.0.elapsed.total_cmp(&b.0.elapsed)) {
        let _ = writeln!(
            text,
            "\nThe slowest snapshot of an agent took {:.2} s, of which {:.2} s of CPU time, in {} with {} \
             CPUs.",
            answer.elapsed, answer.cpu_time, record.scenario.name, record.scenario.vcpus
        );
    }
}
