//! `psi-agent nodes`: the cluster's nodes by what their annotations say, with its age.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use crate::cluster::{Connection, list_nodes};
use crate::contract::{Freshness, NodePressure, Prefix};

/// Agents renew a value every five minutes: one this old has missed two times.
const STALE_AFTER: Duration = Duration::from_secs(600);

/// Lists the nodes on `out`, the most held back first.
///
/// # Errors
/// Where the API server does not answer, or `out` cannot be written.
pub fn nodes(
    connection: &Connection,
    prefix: &Prefix,
    now: Timestamp,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut rows: Vec<Row> = list_nodes(connection)?
        .iter()
        .map(|node| {
            Row::of(&node.name, NodePressure::from_annotations(prefix, &node.annotations), now)
        })
        .collect();
    rows.sort_by(|a, b| b.score.cmp(&a.score).then_with(|| a.cells[0].cmp(&b.cells[0])));
    match out.write_all(table(&rows).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the nodes"),
    }
}

const HEADER: [&str; 7] = ["NAME", "SCORE", "CPU", "MEMORY", "IO", "BASIS", "AGE"];

struct Row {
    /// For sorting: a node without a value comes last.
    score: Option<u8>,
    cells: [String; 7],
}

impl Row {
    fn of<E: std::fmt::Display>(
        name: &str,
        pressure: Result<Option<NodePressure>, E>,
        now: Timestamp,
    ) -> Self {
        let told = |value: Option<u8>| value.map_or("-".into(), |value| value.to_string());
        let (score, [cpu, memory, io], basis, age) = match pressure {
            Ok(Some(pressure)) => {
                let each = [pressure.cpu, pressure.memory, pressure.io].map(told);
                let age = match pressure.freshness(now, STALE_AFTER) {
                    Freshness::Fresh { age } => short(age),
                    Freshness::Stale { age } => format!("{} (stale)", short(age)),
                    Freshness::Future => "in the future".into(),
                };
                (Some(pressure.score), each, pressure.basis.to_string(), age)
            }
            Ok(None) => (None, [None; 3].map(told), "-".into(), "-".into()),
            Err(error) => (None, [None; 3].map(told), "-".into(), error.to_string()),
        };
        Self { score, cells: [name.to_owned(), told(score), cpu, memory, io, basis, age] }
    }
}

/// Columns as wide as they have to be, as kubectl sets them.
fn table(rows: &[Row]) -> String {
    let header = HEADER.map(str::to_owned);
    let lines: Vec<&[String; 7]> =
        std::iter::once(&header).chain(rows.iter().map(|row| &row.cells)).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().enumerate().map(|(column, cell)| {
            let widths = lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.len());
            format!("{cell:width$}", width = widths.max().unwrap_or_default())
        });
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// `45s`, `12m`, `3h`, `2d`.
fn short(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (172_800, "2d")]
        {
            assert_eq!(short(Duration::from_secs(seconds)), expected);
        }
    }
}
