//! Several runs of the same CPU scenarios side by side: how far truth and score move from run to run.
//! Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judging::{THRESHOLDS, TOLERANCE};
use crate::record::Record;
use crate::table::score_in;
use crate::truth;

/// The values of one scenario in all runs.
#[derive(Default)]
struct Row {
    truth: Vec<f64>,
    run_delay: Vec<f64>,
    psi: Vec<f64>,
}

/// The table as Markdown, and what fails.
pub fn table(runs: &[Vec<Record>]) -> (String, Vec<String>) {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let all = runs.iter().flatten();
    for record in all.filter(|record| !record.scenario.real_time && !record.scenario.is_long()) {
        let row = rows.entry(&record.scenario.name).or_default();
        row.truth.push(truth::by_loads(record));
        row.run_delay.extend(score_in(&record.run_delay, "cpu"));
        row.psi.extend(score_in(&record.psi, "cpu"));
    }
    let mut text = String::from("| scenario | loads | run delay | psi |\n|---|---:|---:|---:|\n");
    let mut failures = Vec::new();
    for (name, row) in &rows {
        let [truth, run_delay, psi] =
            [&row.truth, &row.run_delay, &row.psi].map(|values| shown(values));
        let _ = writeln!(text, "| {name} | {truth} | {run_delay} | {psi} |");
        if row.psi.len() != runs.len() || row.run_delay.len() != runs.len() {
            failures.push(format!("{name}: not in all runs"));
        }
        for threshold in changed_sides(row) {
            failures
                .push(format!("{name}: the score by run delay is on both sides of {threshold}"));
        }
    }
    farthest("run delay", &rows, |row| &row.run_delay, &mut text);
    farthest("psi", &rows, |row| &row.psi, &mut text);
    (text, failures)
}

/// The scenario whose values are farthest apart.
fn farthest(
    name: &str,
    rows: &BTreeMap<&str, Row>,
    values: fn(&Row) -> &Vec<f64>,
    text: &mut String,
) {
    let spread = |row: &Row| {
        let (least, most) = ends(values(row));
        most - least
    };
    if let Some((scenario, row)) = rows.iter().max_by(|a, b| spread(a.1).total_cmp(&spread(b.1))) {
        let _ = writeln!(text, "\nFarthest apart by {name}: {:.3} ({scenario}).", spread(row));
    }
}

/// Thresholds of which the score by run delay is on different sides, while truth is on one side in all
/// runs, farther from it than the tolerance.
fn changed_sides(row: &Row) -> Vec<f64> {
    let (least_truth, most_truth) = ends(&row.truth);
    let (least, most) = ends(&row.run_delay);
    let changed = THRESHOLDS.into_iter().filter(|threshold| {
        let clear = least_truth >= threshold + TOLERANCE || most_truth < threshold - TOLERANCE;
        clear && least < *threshold && most >= *threshold
    });
    changed.collect()
}

fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

fn shown(values: &[f64]) -> String {
    let (least, most) = ends(values);
    if values.is_empty() { "–".to_owned() } else { format!("{least:.3} to {most:.3}") }
}
