//! The table of a matrix of scenarios: truth, the agent's score, what others would say, and how far
//! apart they are. Pure.

use std::fmt::Write;

use crate::record::Record;
use crate::rules::RULES;
use crate::scenario::{Beyond, Column};
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
    delay: f64,
    loads: f64,
    score: Option<f64>,
    by_run_delay: Option<f64>,
}

/// The table as Markdown, and what is wrong in it.
pub fn table(records: &[&Record]) -> (String, Vec<String>) {
    let lines: Vec<Line<'_>> = records.iter().copied().map(Line::of).collect();
    let mut text = String::from(
        "| scenario | vCPUs | truth | loads | score | error | score with run delay | its error to loads |",
    );
    for rule in &RULES {
        let _ = write!(text, " {} |", rule.name);
    }
    let _ = write!(text, "\n|---|{}\n", "---:|".repeat(7 + RULES.len()));
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
            delay: truth::by_run_delay(record),
            loads: truth::by_loads(record),
            score: score_in(&record.snapshots),
            by_run_delay: score_in(&record.by_run_delay),
        }
    }

    fn row(&self, wrong: &mut Vec<String>) -> String {
        let scenario = &self.record.scenario;
        let (name, vcpus, delay, loads) = (&scenario.name, scenario.vcpus, self.delay, self.loads);
        let mut row = format!("| {name} | {vcpus} | {delay:.3} | {loads:.3} |");
        for (score, truth, column, largest) in [
            (self.score, delay, Column::Psi, LARGEST_ERROR),
            (self.by_run_delay, loads, Column::RunDelay, LARGEST_ERROR_BY_RUN_DELAY),
        ] {
            let source = if column == Column::RunDelay { " with run delay" } else { "" };
            let Some(score) = score else {
                wrong.push(format!("{name}: the agent has no score{source}"));
                row.push_str(" – | – |");
                continue;
            };
            let error = score - truth;
            let what = format!("{name}: truth {truth:.3}, score{source} {score:.3}");
            let beyond = self.record.beyond(column);
            if beyond.is_none() && is_wrong(truth, score, BETWEEN) {
                wrong.push(format!("{what}: wrong side"));
            }
            if error.abs() > beyond.map_or(largest, |beyond| beyond.error) {
                wrong.push(what);
            }
            let mark = if beyond.is_some() { " †" } else { "" };
            let _ = write!(row, " {score:.3} | {error:+.3}{mark} |");
        }
        for rule in &RULES {
            let value = (rule.value)(self.record);
            let mark = if is_wrong(delay, value, rule.short_from) { " ✗" } else { "" };
            let _ = write!(row, " {value:.2}{mark} |");
        }
        row
    }
}

/// What is said of scores that are known to be off.
pub fn notes(records: &[&Record], columns: &[Column], text: &mut String) {
    for record in records {
        for Beyond { error, why, .. } in columns.iter().filter_map(|column| record.beyond(*column))
        {
            let name = &record.scenario.name;
            let _ = writeln!(text, "\n† {name} (up to {error} off): {why}");
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

/// On the wrong side of a threshold, where truth leaves no doubt.
fn is_wrong(truth: f64, value: f64, short_from: f64) -> bool {
    (truth < CALM && value >= short_from) || (truth > SHORT && value < short_from)
}

fn summary(lines: &[Line<'_>], text: &mut String, wrong: &mut Vec<String>) {
    let scored: Vec<(f64, f64)> =
        lines.iter().filter_map(|line| Some((line.delay, line.score?))).collect();
    let errors: Vec<f64> = scored.iter().map(|(truth, score)| (truth - score).abs()).collect();
    let mean_error = mean(&errors).unwrap_or(0.0);
    if mean_error > MEAN_ERROR {
        wrong.push(format!("mean error {mean_error:.3}, more than {MEAN_ERROR}"));
    }
    let by_run_delay: Vec<f64> =
        lines.iter().filter_map(|line| Some((line.by_run_delay? - line.loads).abs())).collect();
    let mean_by_run_delay = mean(&by_run_delay).unwrap_or(0.0);
    if mean_by_run_delay > MEAN_ERROR_BY_RUN_DELAY {
        wrong.push(format!(
            "mean error with run delay {mean_by_run_delay:.3}, more than {MEAN_ERROR_BY_RUN_DELAY}"
        ));
    }
    let largest_by_run_delay = by_run_delay.into_iter().fold(0.0_f64, f64::max);
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
         {mean_by_run_delay:.3}, largest {largest_by_run_delay:.3}. Wrong side of their thresholds:",
        lines.len()
    );
    for rule in &RULES {
        let count = lines
            .iter()
            .filter(|line| is_wrong(line.delay, (rule.value)(line.record), rule.short_from))
            .count();
        let _ = writeln!(text, "- {} (from {}): {count}", rule.name, rule.short_from);
    }
}
