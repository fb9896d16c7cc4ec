//! The table of memory and I/O: truth, the agent's score and other rules. Pure.

use std::fmt::Write;

use crate::judging::{TOLERANCE_IN_REAL_TIME, Verdict, marks, wrong_sides};
use crate::record::Record;
use crate::scenario::Resource;
use crate::table::{notes, score_in};
use crate::taskstats::Delays;
use crate::truth::mean;
use crate::waits;
use crate::waits_rules::{by_disks, node_some};

/// The largest score without contention, and the largest truth there.
const NO_CONTENTION: f64 = 0.05;
const NO_CONTENTION_TRUTH: f64 = 0.10;
/// The largest mean error, over the scenarios in which truth, score or node pressure is at least
/// `ANYTHING`: scenarios that don't use a resource would flatter any score.
const MEAN_ERROR: f64 = 0.05;
const ANYTHING: f64 = 0.01;

/// The ways in which a thread waits for memory. Pressure counts the first two: reading a page from swap is
/// a stall only if the page was in use when it was reclaimed, which is thrashing.
const KINDS: [fn(Delays) -> u64; 3] =
    [Delays::reclaiming, |delays| delays.thrashing, |delays| delays.swapin];

/// One resource in one scenario.
struct Cell {
    truth: f64,
    score: Option<f64>,
    node: f64,
}

/// The names of the columns.
pub const HEADER: &str = "scenario,work lost,\
    memory exempted,memory truth,memory score,memory error,memory node some,\
    reclaiming,thrashing,swapping in,\
    I/O exempted,I/O truth,I/O score,I/O error,I/O node some,by disks";

pub fn table(records: &[&Record]) -> Verdict {
    let (mut rows, mut summary) = (format!("{HEADER}\n"), String::new());
    let (mut failures, mut memory, mut io) = (Vec::new(), Vec::new(), Vec::new());
    for record in records {
        let name = &record.scenario.name;
        if let Some(failure) = record.failure() {
            failures.push(format!("{name}: {failure}"));
            continue;
        }
        let _ = write!(rows, "{name},{:.3}", waits::by_loads(record));
        for (pod, _) in record.alone.iter().filter(|(_, alone)| alone.work <= 0.0) {
            if !record.scenario.no_contention {
                failures
                    .push(format!("{name}: {pod} did nothing alone, so that there is no truth"));
            }
        }
        for (resource, cells) in [(Resource::Memory, &mut memory), (Resource::Io, &mut io)] {
            let cell = Cell::of(record, resource);
            cell.judge(record, resource, &mut failures);
            let exempt = u8::from(record.exemption(resource).is_some());
            let _ = write!(rows, ",{exempt},{},{:.2}", cell.shown(), cell.node);
            cells.push(cell);
            if resource == Resource::Memory {
                for kind in KINDS {
                    let _ = write!(rows, ",{:.2}", waits::of_kind(record, kind));
                }
            }
        }
        let _ = writeln!(rows, ",{:.2}", by_disks(record));
    }
    notes(records, &mut summary);
    summary.push('\n');
    for (resource, cells) in [(Resource::Memory, &memory), (Resource::Io, &io)] {
        errors(resource, cells, &mut summary, &mut failures);
    }
    Verdict { rows, summary, failures }
}

impl Cell {
    fn of(record: &Record, resource: Resource) -> Self {
        Self {
            truth: waits::by_delays(record, resource),
            score: score_in(&record.psi, key(resource)),
            node: node_some(record, resource),
        }
    }

    /// Whether the scenario uses the resource at all.
    fn counts(&self) -> bool {
        self.truth.max(self.node).max(self.score.unwrap_or(0.0)) >= ANYTHING
    }

    fn error(&self) -> Option<f64> {
        Some(self.score? - self.truth)
    }

    fn shown(&self) -> String {
        match (self.score, self.error()) {
            (Some(score), Some(error)) => format!("{:.3},{score:.3},{error:.3}", self.truth),
            _ => format!("{:.3},,", self.truth),
        }
    }

    fn judge(&self, record: &Record, resource: Resource, failures: &mut Vec<String>) {
        let exemption = record.exemption(resource);
        let Self { truth, score, .. } = *self;
        let what = format!("{}, {}: truth {truth:.3}", record.scenario.name, key(resource));
        let no_contention = record.scenario.no_contention;
        if no_contention && exemption.is_none() && truth >= NO_CONTENTION_TRUTH {
            failures.push(format!("{what} without contention: was this machine too busy?"));
        }
        let Some(score) = score else {
            // Without a score there must be nothing to report, as of VMs with a limit of their own.
            if truth >= NO_CONTENTION_TRUTH {
                failures.push(format!("{what}, the agent has no score"));
            }
            return;
        };
        let what = format!("{what}, score {score:.3}");
        if no_contention && score > NO_CONTENTION {
            failures.push(format!("{what} without contention"));
        }
        let wrong = marks(wrong_sides(truth, score, TOLERANCE_IN_REAL_TIME));
        if !wrong.is_empty() {
            failures.push(format!("{what}: wrong side{wrong}"));
        }
        let largest = exemption.map(|exemption| exemption.error);
        if largest.is_some_and(|largest| (score - truth).abs() > largest) {
            failures.push(what);
        }
    }
}

fn errors(resource: Resource, cells: &[Cell], text: &mut String, failures: &mut Vec<String>) {
    let key = key(resource);
    let absolute = |of: &dyn Fn(&Cell) -> Option<f64>| {
        let counted = cells.iter().filter(|cell| cell.counts());
        let all: Vec<f64> = counted.filter_map(|cell| Some(of(cell)?.abs())).collect();
        (mean(&all).unwrap_or(0.0), all.into_iter().fold(0.0, f64::max))
    };
    let (mean_error, largest) = absolute(&Cell::error);
    let (node, _) = absolute(&|cell| Some(cell.node - cell.truth));
    let _ = writeln!(
        text,
        "- {key}: mean error {mean_error:.3} over {} scenarios, largest {largest:.3}; node some {node:.3}",
        cells.iter().filter(|cell| cell.counts()).count()
    );
    if mean_error > MEAN_ERROR {
        failures.push(format!("{key}: mean error {mean_error:.3}, more than {MEAN_ERROR}"));
    }
}

fn key(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "memory",
        Resource::Io => "io",
    }
}
