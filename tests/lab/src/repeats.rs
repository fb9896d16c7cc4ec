//! Several runs of the same scenarios side by side: how far a score moves from run to run, and how
//! much room it leaves to the threshold. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::record::Record;
use crate::scenario::Column;
use crate::table::{BETWEEN, CALM, SHORT, score_in};
use crate::truth;

/// What all runs say of one scenario.
#[derive(Default)]
struct Row {
    truth: Vec<f64>,
    score: Vec<f64>,
    by_run_delay: Vec<f64>,
    /// Those whose scores are known to be off.
    beyond: Vec<Column>,
}

/// The table as Markdown, and what is wrong in it.
pub fn table(runs: &[Vec<Record>]) -> (String, Vec<String>) {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let all = runs.iter().flatten();
    for record in all.filter(|record| !record.scenario.real_time && !record.scenario.is_long()) {
        let row = rows.entry(&record.scenario.name).or_default();
        row.truth.push(truth::by_run_delay(record));
        row.score.extend(score_in(&record.snapshots));
        row.by_run_delay.extend(score_in(&record.by_run_delay));
        row.beyond = record.scenario.beyond.iter().map(|beyond| beyond.column).collect();
    }
    let mut text = String::from("| scenario | truth | score | score with run delay |\n|---|");
    text.push_str(&"---:|".repeat(3));
    text.push('\n');
    let mut wrong = Vec::new();
    for (name, row) in &rows {
        let mark = |column| if row.beyond.contains(&column) { " †" } else { "" };
        let [truth, score, by_run_delay] =
            [&row.truth, &row.score, &row.by_run_delay].map(|values| shown(values));
        let (psi, run_delay) = (mark(Column::Psi), mark(Column::RunDelay));
        let _ = writeln!(text, "| {name} | {truth} | {score}{psi} | {by_run_delay}{run_delay} |");
        if row.score.len() != runs.len() || row.by_run_delay.len() != runs.len() {
            wrong.push(format!("{name}: not in all runs"));
        }
    }
    margins(Column::Psi, &rows, |row| &row.score, &mut text, &mut wrong);
    margins(Column::RunDelay, &rows, |row| &row.by_run_delay, &mut text, &mut wrong);
    (text, wrong)
}

fn margins(
    column: Column,
    rows: &BTreeMap<&str, Row>,
    scores: fn(&Row) -> &Vec<f64>,
    text: &mut String,
    wrong: &mut Vec<String>,
) {
    let (mut calm, mut short, mut spread) = (("", 0.0_f64), ("", 1.0_f64), ("", 0.0_f64));
    let source = if column == Column::Psi { "by pressure" } else { "by run delay" };
    for (name, row) in rows.iter().filter(|(_, row)| !row.beyond.contains(&column)) {
        let (least_true, most_true) = ends(&row.truth);
        let (low, high) = ends(scores(row));
        if most_true < CALM && high >= calm.1 {
            calm = (name, high);
        }
        if least_true > SHORT && low <= short.1 {
            short = (name, low);
        }
        if high - low >= spread.1 {
            spread = (name, high - low);
        }
        // Where truth leaves a doubt there is no verdict.
        let doubtful = most_true >= CALM && least_true <= SHORT;
        if !doubtful && (low < BETWEEN) != (high < BETWEEN) {
            wrong.push(format!("{name}, {source}: another verdict, {low:.3} and {high:.3}"));
        }
    }
    let _ = writeln!(
        text,
        "\nScore {source}, but for those that are known to be off (†): where truth is below {CALM} in all runs, at most {:.3} ({}), {:+.3} from the \
         threshold {BETWEEN}; where it is above {SHORT}, at least {:.3} ({}), {:+.3} from it. Farthest \
         from run to run: {:.3} ({}).",
        calm.1,
        calm.0,
        BETWEEN - calm.1,
        short.1,
        short.0,
        short.1 - BETWEEN,
        spread.1,
        spread.0,
    );
}

fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

fn shown(values: &[f64]) -> String {
    let (least, most) = ends(values);
    if values.is_empty() { "–".to_owned() } else { format!("{least:.3} to {most:.3}") }
}
