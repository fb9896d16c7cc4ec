//! The table of reactions: how long after contention begins and ends the published score follows. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::judging::Verdict;
use crate::record::{PublishedScore, Record};
use crate::table::CONTENDED;
use crate::truth;

/// Contention that is shorter than this must reach no level.
const SHORT_SECONDS: f64 = 30.0;

/// The largest time until a change is published, where truth is at least `from`.
struct Promise {
    what: &'static str,
    from: f64,
    within: f64,
    /// Counted from the end of the contention, not from its start.
    after_the_end: bool,
    holds: fn(&PublishedScore) -> bool,
}

const PROMISES: [Promise; 5] = [
    Promise {
        what: "changed value",
        from: 0.3,
        within: 15.0,
        after_the_end: false,
        holds: |shown| shown.score > 0,
    },
    Promise {
        what: "medium",
        from: 0.3,
        within: 60.0,
        after_the_end: false,
        holds: |shown| shown.level != "low",
    },
    Promise {
        what: "high",
        from: 0.5,
        within: 60.0,
        after_the_end: false,
        holds: |shown| shown.level == "high",
    },
    Promise {
        what: "high left",
        from: 0.5,
        within: 90.0,
        after_the_end: true,
        holds: |shown| shown.level != "high",
    },
    Promise {
        what: "low again",
        from: 0.3,
        within: 150.0,
        after_the_end: true,
        holds: |shown| shown.level == "low",
    },
];

/// The names of the columns. Start and end of the contention, and what is promised, are in seconds.
pub fn header() -> String {
    let columns = ["scenario", "from", "until", "truth", "highest score"].into_iter();
    columns.chain(PROMISES.map(|promise| promise.what)).collect::<Vec<_>>().join(",")
}

pub fn table(records: &[&Record]) -> Verdict {
    let (mut rows, mut failures) = (header() + "\n", Vec::new());
    for record in records {
        if let Some(failure) = record.failure() {
            failures.push(format!("{}: {failure}", record.scenario.name));
            continue;
        }
        for (from, to) in crowds(record) {
            row(record, (from, to), &mut rows, &mut failures);
        }
    }
    Verdict { rows, summary: String::new(), failures }
}

/// Start and end of the VMs that don't run all the time, seconds.
fn crowds(record: &Record) -> Vec<(f64, f64)> {
    let scenario = &record.scenario;
    let mut all: Vec<(f64, f64)> = Vec::new();
    for pod in scenario.pods.iter().filter(|pod| pod.from > 0.0) {
        let crowd = (pod.from, pod.ends(scenario));
        if !all.contains(&crowd) {
            all.push(crowd);
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

fn row(record: &Record, (from, to): (f64, f64), text: &mut String, failures: &mut Vec<String>) {
    let name = &record.scenario.name;
    let _ = write!(text, "{name},{from},{to},");
    if to - from < SHORT_SECONDS {
        let levels: BTreeSet<&str> =
            record.published.iter().map(|shown| shown.level.as_str()).collect();
        if levels.iter().any(|level| *level != "low") {
            failures
                .push(format!("{name}: contention of {} s reached a level: {levels:?}", to - from));
        }
        let highest = record.published.iter().map(|shown| shown.score).max().unwrap_or(0);
        let _ = writeln!(text, ",{highest}{}", ",".repeat(PROMISES.len()));
        return;
    }
    let truth = truth::between(record, from, to).unwrap_or_default();
    let _ = write!(text, "{truth:.3},");
    if truth < CONTENDED {
        failures.push(format!("{name}: truth {truth:.3}, nothing to react to"));
    }
    for promise in &PROMISES {
        let since = if promise.after_the_end { to } else { from };
        let mut later = record.published.iter().filter(|shown| shown.at > since);
        let kept = later.find(|shown| (promise.holds)(shown));
        let took = kept.map_or(f64::INFINITY, |shown| shown.at - since);
        text.push(',');
        if truth >= promise.from {
            let _ = write!(text, "{took:.0}");
            if took > promise.within {
                failures.push(format!("{name}: {} after {took} s", promise.what));
            }
        }
    }
    text.push('\n');
}
