//! The table of memory and I/O: truth, the agent's score, and what others would say. Pure.

use std::fmt::Write;

use crate::record::Record;
use crate::scenario::{Beyond, Column, Instead};
use crate::table::{BETWEEN, CALM, LARGEST_ERROR, SHORT, notes};
use crate::taskstats::Delays;
use crate::truth::mean;
use crate::waits::{self, Resource};
use crate::waits_rules::{by_disks, node_some};

/// What the score may be where only own limits and idle disks are at work.
const NOBODY_SHORT: f64 = 0.05;
/// Mean error that it may have, over all scenarios in which there is anything to tell: many that have
/// nothing to do with a resource would make any score good.
const MEAN_ERROR: f64 = 0.10;
const ANYTHING: f64 = 0.01;

/// In which ways a thread waits for memory. Of these pressure counts the first two: asking for a page in
/// swap is a stall to it only if that page was in use when it was taken, which is what thrashing is.
const KINDS: [fn(Delays) -> u64; 3] =
    [Delays::reclaiming, |delays| delays.thrashing, |delays| delays.swapin];

/// One resource in one scenario.
struct Cell {
    truth: f64,
    score: Option<f64>,
    node: f64,
    /// By what it is judged: truth, or where that is out of reach, how long VMs slept. None where neither
    /// is to be had.
    judged: Option<f64>,
}

/// The table as Markdown, and what is wrong in it.
pub fn table(records: &[&Record]) -> (String, Vec<String>) {
    let mut text = String::from(
        "| scenario | work lost | memory: truth | score | error | node some | reclaiming | thrashing | \
         swapping in | I/O: truth | score | error | node some | by disks |\n|---|",
    );
    text.push_str(&"---:|".repeat(13));
    text.push('\n');
    let (mut wrong, mut memory, mut io) = (Vec::new(), Vec::new(), Vec::new());
    for record in records {
        let name = &record.scenario.name;
        let _ = write!(text, "| {name} | {:.3} |", waits::by_loads(record));
        // Truth would be that it waits for itself.
        for (pod, _) in record.alone.iter().filter(|(_, alone)| alone.work <= 0.0) {
            if !record.scenario.nobody_short {
                wrong.push(format!("{name}: {pod} did nothing alone, so that there is no truth"));
            }
        }
        for (resource, cells) in [(Resource::Memory, &mut memory), (Resource::Io, &mut io)] {
            let cell = Cell::of(record, resource);
            let before = wrong.len();
            cell.judge(record, resource, &mut wrong);
            let mark = match record.beyond(column(resource)) {
                _ if wrong.len() > before => " ✗",
                Some(_) => " †",
                None => "",
            };
            let _ = write!(text, " {}{mark} | {:.2} |", cell.shown(), cell.node);
            cells.push(cell);
            if resource == Resource::Memory {
                for kind in KINDS {
                    let _ = write!(text, " {:.2} |", waits::of_kind(record, kind));
                }
            }
        }
        let _ = writeln!(text, " {:.2} |", by_disks(record));
    }
    notes(records, &[Column::Memory, Column::Io], &mut text);
    text.push('\n');
    for (resource, cells) in [(Resource::Memory, &memory), (Resource::Io, &io)] {
        summary(resource, cells, &mut text, &mut wrong);
    }
    (text, wrong)
}

impl Cell {
    fn of(record: &Record, resource: Resource) -> Self {
        // The first snapshots are from before the judged time.
        let scores = record.snapshots.iter().skip(2);
        let key = key(resource);
        let told: Vec<f64> =
            scores.filter_map(|snapshot| snapshot["node"]["latest"][key].as_f64()).collect();
        let truth = waits::by_delays(record, resource);
        let judged = match record.beyond(column(resource)) {
            Some(Beyond { instead: Some(_), .. }) => Some(waits::by_sleep(record, resource)),
            Some(Beyond { instead: None, .. }) => None,
            None => Some(truth),
        };
        Self { truth, score: mean(&told), node: node_some(record, resource), judged }
    }

    /// Whether truth or anybody else says something.
    fn tells(&self) -> bool {
        self.truth.max(self.node).max(self.score.unwrap_or(0.0)) >= ANYTHING
    }

    fn error(&self) -> Option<f64> {
        Some(self.score? - self.truth)
    }

    fn shown(&self) -> String {
        match (self.score, self.error()) {
            (Some(score), Some(error)) => format!("{:.3} | {score:.3} | {error:+.3}", self.truth),
            _ => format!("{:.3} | – | –", self.truth),
        }
    }

    fn judge(&self, record: &Record, resource: Resource, wrong: &mut Vec<String>) {
        let beyond = record.beyond(column(resource));
        let asleep = beyond.is_some_and(|beyond| beyond.instead == Some(Instead::Sleep));
        let truth = self.judged.unwrap_or(self.truth);
        let what = format!("{}, {}", record.scenario.name, key(resource));
        let what = format!("{what}: truth {truth:.3}{}", if asleep { " asleep" } else { "" });
        if record.scenario.nobody_short && self.judged.is_some_and(|truth| truth >= CALM) {
            wrong.push(format!("{what} where nobody is short: was this machine too busy to tell?"));
        }
        let Some(score) = self.score else {
            // Of those that have a limit nothing is said: fair where nobody is held back.
            if truth >= CALM {
                wrong.push(format!("{what}, the agent has no score"));
            }
            return;
        };
        let what = format!("{what}, score {score:.3}");
        let error = beyond.map(|beyond| beyond.error.unwrap_or(LARGEST_ERROR));
        if record.scenario.nobody_short && score > NOBODY_SHORT {
            wrong.push(format!("{what} where nobody is short"));
        } else if let Some(error) = error {
            if (score - truth).abs() > error {
                wrong.push(what);
            }
        } else if truth > SHORT && score < BETWEEN || truth < CALM && score >= BETWEEN {
            wrong.push(format!("{what}: wrong side"));
        }
    }
}

fn summary(resource: Resource, cells: &[Cell], text: &mut String, wrong: &mut Vec<String>) {
    let key = key(resource);
    let absolute = |of: &dyn Fn(&Cell) -> Option<f64>| {
        let telling = cells.iter().filter(|cell| cell.tells());
        let all: Vec<f64> = telling.filter_map(|cell| Some(of(cell)?.abs())).collect();
        (mean(&all).unwrap_or(0.0), all.into_iter().fold(0.0, f64::max))
    };
    let (mean_error, largest) = absolute(&Cell::error);
    let (node, _) = absolute(&|cell| Some(cell.node - cell.truth));
    let (judged, _) = absolute(&|cell| Some(cell.score? - cell.judged?));
    let _ = writeln!(
        text,
        "- {key}: mean error {mean_error:.3} over {} scenarios, {judged:.3} with what VMs slept where truth \
         is out of reach, largest {largest:.3}; node some {node:.3}",
        cells.iter().filter(|cell| cell.tells()).count()
    );
    if judged > MEAN_ERROR {
        wrong.push(format!("{key}: mean error {judged:.3}, more than {MEAN_ERROR}"));
    }
}

fn column(resource: Resource) -> Column {
    match resource {
        Resource::Memory => Column::Memory,
        Resource::Io => Column::Io,
    }
}

fn key(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "memory",
        Resource::Io => "io",
    }
}
