//! The table of a matrix of scenarios: truth, the agent's score, what others would say, and how far
//! apart they are. Pure.

use std::fmt::Write;

use crate::record::Record;
use crate::rules::RULES;
use crate::scenario::{Beyond, Column, Instead, Scenario};
use crate::truth::{self, mean};

/// Below this share nobody is held back by the node...
pub const CALM: f64 = 0.10;
/// ...and above this one everybody would say so.
pub const SHORT: f64 = 0.30;
/// A score says "short" from here on: in the middle of the two.
pub const BETWEEN: f64 = 0.20;

/// Mean error and largest error that the score may have.
pub const MEAN_ERROR: f64 = 0.05;
pub const LARGEST_ERROR: f64 = 0.15;
/// The same of the score by run delay, against what the loads missed: the agent's counter is the one
/// that truth is made of.
const MEAN_ERROR_BY_RUN_DELAY: f64 = 0.03;
const LARGEST_ERROR_BY_RUN_DELAY: f64 = 0.08;

/// One scenario's line.
struct Line<'a> {
    record: &'a Record,
    /// By run delay.
    truth: f64,
    by_pressure: Told,
    by_run_delay: Told,
    /// What the loads missed, late timers included.
    with_timers: f64,
}

/// One source's score, and what it should be.
struct Told {
    column: Column,
    truth: f64,
    score: Option<f64>,
    /// The same of all VMs together.
    together: (f64, Option<f64>),
}

/// The table as Markdown, and what is wrong in it.
pub fn table(records: &[&Record]) -> (String, Vec<String>) {
    let lines: Vec<Line<'_>> = records.iter().copied().map(Line::of).collect();
    let mut text = String::from(
        "| scenario | vCPUs | truth | loads missed | and late timers | score | error \
         | score with run delay | its error to loads | all VMs: truth | all VMs: score |",
    );
    for rule in &RULES {
        let _ = write!(text, " {} |", rule.name);
    }
    let _ = write!(text, "\n|---|{}\n", "---:|".repeat(10 + RULES.len()));
    let mut wrong = Vec::new();
    for line in &lines {
        let _ = writeln!(text, "{}", line.row(&mut wrong));
    }
    notes(records, &[Column::Psi, Column::RunDelay], &mut text);
    summary(&lines, &mut text, &mut wrong);
    (text, wrong)
}

impl<'a> Line<'a> {
    fn of(record: &'a Record) -> Self {
        Self {
            record,
            truth: truth::by_run_delay(record),
            by_pressure: Told {
                column: Column::Psi,
                truth: truth::by_run_delay(record),
                score: score_in(&record.snapshots),
                together: (truth::together_by_run_delay(record), together_in(&record.snapshots)),
            },
            by_run_delay: Told {
                column: Column::RunDelay,
                truth: truth::by_loads(record),
                score: score_in(&record.by_run_delay),
                together: (truth::together_by_loads(record), together_in(&record.by_run_delay)),
            },
            with_timers: truth::by_loads_and_timers(record),
        }
    }

    fn row(&self, wrong: &mut Vec<String>) -> String {
        let Self { truth, by_pressure, by_run_delay, with_timers, .. } = self;
        let Scenario { name, vcpus, .. } = &self.record.scenario;
        let loads = by_run_delay.truth;
        let mut row = format!("| {name} | {vcpus} | {truth:.3} | {loads:.3} | {with_timers:.3} |");
        for (told, largest) in
            [(by_pressure, LARGEST_ERROR), (by_run_delay, LARGEST_ERROR_BY_RUN_DELAY)]
        {
            row += &told.cells(self.record, largest, wrong);
        }
        let (truth, score) = by_pressure.together;
        let _ = write!(row, " {truth:.3} | {:.3} |", score.unwrap_or(f64::NAN));
        for rule in &RULES {
            let value = (rule.value)(self.record);
            let mark = if is_wrong(self.truth, value, rule.short_from) { " ✗" } else { "" };
            let _ = write!(row, " {value:.2}{mark} |");
        }
        row
    }
}

impl Told {
    /// The score and its error; what is wrong with it goes to `wrong`.
    fn cells(&self, record: &Record, largest: f64, wrong: &mut Vec<String>) -> String {
        let name = &record.scenario.name;
        let source = if self.column == Column::RunDelay { " with run delay" } else { "" };
        let (Some(score), (truth_of_all, Some(of_all))) = (self.score, self.together) else {
            wrong.push(format!("{name}: the agent has no score{source}"));
            return " – | – |".to_owned();
        };
        let error = score - self.truth;
        let what = format!("{name}: truth {:.3}, score{source} {score:.3}", self.truth);
        let beyond = record.beyond(self.column);
        // However far off it may be: what is held instead is of something else.
        let instead = beyond.and_then(|beyond| beyond.instead);
        if instead.is_none() && is_wrong(self.truth, score, BETWEEN) {
            wrong.push(format!("{what}: wrong side"));
        }
        let largest = beyond.and_then(|beyond| beyond.error).unwrap_or(largest);
        if beyond.is_some_and(|beyond| beyond.instead == Some(Instead::AllTogether)) {
            if (of_all - truth_of_all).abs() > largest {
                let of_all = format!("all together {truth_of_all:.3} and {of_all:.3}");
                wrong.push(format!("{what}; {of_all}"));
            }
        } else if error.abs() > largest {
            wrong.push(what);
        }
        let mark = if beyond.is_some() { " †" } else { "" };
        format!(" {score:.3} | {error:+.3}{mark} |")
    }
}

/// What is said of scores that are known to be off.
pub fn notes(records: &[&Record], columns: &[Column], text: &mut String) {
    for record in records {
        for Beyond { error, instead, why, .. } in
            columns.iter().filter_map(|column| record.beyond(*column))
        {
            let name = &record.scenario.name;
            let bound = error.map_or_else(
                || "within the bounds".to_owned(),
                |error| format!("up to {error} off"),
            );
            let of = match instead {
                Some(Instead::AllTogether) => ", all VMs together",
                Some(Instead::Sleep) => ", of what they slept",
                None => "",
            };
            let _ = writeln!(text, "\n† {name} ({bound}{of}): {why}");
        }
    }
}

/// The mean of what an agent told of the judged windows.
pub fn score_in(snapshots: &[serde_json::Value]) -> Option<f64> {
    // The first are from before the judged time.
    let scores = snapshots.iter().skip(2);
    let told: Vec<f64> =
        scores.filter_map(|snapshot| snapshot["node"]["latest"]["cpu"].as_f64()).collect();
    mean(&told)
}

/// The same of all its VMs together, by what they want.
fn together_in(snapshots: &[serde_json::Value]) -> Option<f64> {
    let told = snapshots.iter().skip(2).map(|snapshot| {
        let cgroups = snapshot["cgroups"].as_array().into_iter().flatten();
        let waits = cgroups.filter_map(|cgroup| {
            let waiting = &cgroup["scored"]["waiting"]["cpu"];
            waiting["contention"].as_f64().zip(waiting["demand"].as_f64())
        });
        truth::of_all(&waits.collect::<Vec<_>>())
    });
    mean(&told.collect::<Vec<_>>())
}

/// On the wrong side of a threshold, where truth leaves no doubt.
fn is_wrong(truth: f64, value: f64, short_from: f64) -> bool {
    (truth < CALM && value >= short_from) || (truth > SHORT && value < short_from)
}

fn summary(lines: &[Line<'_>], text: &mut String, wrong: &mut Vec<String>) {
    let scored: Vec<(f64, f64)> =
        lines.iter().filter_map(|line| Some((line.truth, line.by_pressure.score?))).collect();
    let errors: Vec<f64> = scored.iter().map(|(truth, score)| (truth - score).abs()).collect();
    let mean_error = mean(&errors).unwrap_or(0.0);
    if mean_error > MEAN_ERROR {
        wrong.push(format!("mean error {mean_error:.3}, more than {MEAN_ERROR}"));
    }
    let far = |of: &dyn Fn(&Line<'_>) -> Option<f64>| {
        let errors: Vec<f64> = lines.iter().filter_map(of).map(f64::abs).collect();
        (mean(&errors).unwrap_or(0.0), errors.into_iter().fold(0.0_f64, f64::max))
    };
    let (mean_by_run_delay, largest_by_run_delay) =
        far(&|line| Some(line.by_run_delay.score? - line.by_run_delay.truth));
    let (with_timers, _) = far(&|line| Some(line.by_run_delay.score? - line.with_timers));
    let (together, largest_together) = far(&|line| {
        let (truth, score) = line.by_pressure.together;
        Some(score? - truth)
    });
    if mean_by_run_delay > MEAN_ERROR_BY_RUN_DELAY {
        wrong.push(format!(
            "mean error with run delay {mean_by_run_delay:.3}, more than {MEAN_ERROR_BY_RUN_DELAY}"
        ));
    }
    let largest = |of: &dyn Fn(&(f64, f64)) -> Option<f64>| {
        scored.iter().filter_map(of).fold(0.0_f64, f64::max)
    };
    let calm = largest(&|(truth, score)| (*truth < CALM).then_some(*score));
    let short = 1.0 - largest(&|(truth, score)| (*truth > SHORT).then_some(1.0 - score));
    let largest_error = largest(&|(truth, score)| Some((truth - score).abs()));
    let _ = writeln!(
        text,
        "\n{} scenarios. Mean error {mean_error:.3}, largest {largest_error:.3}. Where truth is \
         below {CALM}, the score is at most {calm:.3}; where it is above {SHORT}, at least \
         {short:.3}. With run delay, against what the loads missed: mean error \
         {mean_by_run_delay:.3}, largest {largest_by_run_delay:.3}; with late timers {with_timers:.3}. Of \
         all VMs together: mean error {together:.3}, largest {largest_together:.3}. Wrong side of their \
         thresholds:",
        lines.len()
    );
    for rule in &RULES {
        let count = lines
            .iter()
            .filter(|line| is_wrong(line.truth, (rule.value)(line.record), rule.short_from))
            .count();
        let _ = writeln!(text, "- {} (from {}): {count}", rule.name, rule.short_from);
    }
}
