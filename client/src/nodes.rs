//! `psi-agent nodes`: lists the cluster's nodes by published score, with its age. On a narrow
//! terminal, the less important columns are omitted.

use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use crate::cluster::{ApiClient, NodeKeys};
use crate::contract::{Freshness, NodePressure, Prefix};
use crate::output::print;

/// Lists the nodes on `out`, the highest score first, in lines of `width` columns if possible.
/// Malformed annotations are listed below the table.
pub async fn nodes(
    api: &ApiClient,
    prefix: &Prefix,
    now: Timestamp,
    stale_after: Duration,
    width: Option<usize>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let nodes = api.list_nodes(prefix).await.context("cannot list the nodes")?;
    let row = |node: &NodeKeys| {
        let metadata = &node.metadata;
        let pressure = NodePressure::from_annotations(prefix, &metadata.annotations);
        Row::of(&metadata.name, pressure, now, stale_after)
    };
    let mut rows: Vec<Row> = nodes.iter().map(row).collect();
    rows.sort_by(|a, b| b.score.cmp(&a.score).then_with(|| a.cells[0].cmp(&b.cells[0])));
    print(table(&rows, width), out).context("cannot write the nodes")
}

/// Fails unless at least one node has a score, and each score is fresh.
pub async fn require_fresh(
    api: &ApiClient,
    prefix: &Prefix,
    now: Timestamp,
    stale_after: Duration,
) -> anyhow::Result<()> {
    let (mut fresh, mut others) = (0, Vec::new());
    for node in api.list_nodes(prefix).await.context("cannot list the nodes")? {
        match NodePressure::from_annotations(prefix, &node.metadata.annotations) {
            Ok(None) => {}
            Ok(Some(pressure))
                if matches!(pressure.freshness(now, stale_after), Freshness::Fresh { .. }) =>
            {
                fresh += 1;
            }
            Ok(Some(_)) | Err(_) => others.push(node.metadata.name),
        }
    }
    anyhow::ensure!(others.is_empty(), "no fresh score on {}", others.join(", "));
    anyhow::ensure!(fresh > 0, "no node has a score; the agents write it within a minute");
    Ok(())
}

/// Columns of the terminal on stdout; `None` if stdout is not a terminal.
pub fn terminal_width() -> Option<usize> {
    let size = stdout().is_terminal().then(crossterm::terminal::size)?.ok();
    // A terminal of unknown size reports 0.
    size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}

const GAP: usize = 3;

/// Columns that are omitted on a narrow terminal, the least important first; indices of [`HEADER`].
const OPTIONAL: [usize; 4] = [5, 4, 3, 2];

const HEADER: [&str; 7] = ["NAME", "SCORE", "CPU", "MEMORY", "IO", "BASIS", "AGE"];

struct Row {
    /// For sorting: a node without a value comes last.
    score: Option<u8>,
    cells: [String; 7],
    error: Option<String>,
}

impl Row {
    fn of<E: std::fmt::Display>(
        name: &str,
        pressure: Result<Option<NodePressure>, E>,
        now: Timestamp,
        stale_after: Duration,
    ) -> Self {
        let cell = |value: Option<u8>| value.map_or("-".into(), |value| value.to_string());
        let (score, [cpu, memory, io], basis, age, error) = match pressure {
            Ok(Some(pressure)) => {
                let each = [pressure.cpu, pressure.memory, pressure.io].map(cell);
                let age = match pressure.freshness(now, stale_after) {
                    Freshness::Fresh { age } => short(age),
                    Freshness::Stale { age } => format!("{} (stale)", short(age)),
                    Freshness::Future => "in the future".into(),
                };
                (Some(pressure.score), each, pressure.basis.to_string(), age, None)
            }
            Ok(None) => (None, [None; 3].map(cell), "-".into(), "-".into(), None),
            Err(error) => {
                let error = Some(format!("{name}: {error}"));
                (None, [None; 3].map(cell), "-".into(), "unreadable".into(), error)
            }
        };
        Self { score, cells: [name.to_owned(), cell(score), cpu, memory, io, basis, age], error }
    }
}

/// Columns as wide as their longest cell, as kubectl prints them, with errors below.
fn table(rows: &[Row], width: Option<usize>) -> String {
    let header = HEADER.map(str::to_owned);
    let lines: Vec<&[String; 7]> =
        std::iter::once(&header).chain(rows.iter().map(|row| &row.cells)).collect();
    let longest = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let mut columns: Vec<(usize, usize)> =
        (0..HEADER.len()).map(|column| (column, longest(column))).collect();
    let whole = |columns: &[(usize, usize)]| {
        columns.iter().map(|(_, longest)| longest + GAP).sum::<usize>().saturating_sub(GAP)
    };
    for column in OPTIONAL {
        if width.is_some_and(|width| whole(&columns) > width) {
            columns.retain(|(kept, _)| *kept != column);
        }
    }
    let gap = " ".repeat(GAP);
    let mut text = String::new();
    for line in &lines {
        let cells = columns
            .iter()
            .filter_map(|&(column, width)| line.get(column).map(|cell| format!("{cell:width$}")));
        text.push_str(cells.collect::<Vec<_>>().join(&gap).trim_end());
        text.push('\n');
    }
    let errors: Vec<&str> = rows.iter().filter_map(|row| row.error.as_deref()).collect();
    if !errors.is_empty() {
        text.push_str(&format!("\n{}\n", errors.join("\n")));
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
    use crate::contract::STALE_AFTER;

    fn lines(width: Option<usize>) -> Vec<String> {
        let annotations = [
            ("psi-agent.io/score", "35"),
            ("psi-agent.io/cpu", "35"),
            ("psi-agent.io/observed-at", "2025-01-01T00:00:00Z"),
            ("psi-agent.io/basis", "psi/1"),
        ];
        let pressure = NodePressure::from_annotations(&Prefix::default(), annotations);
        let now = "2025-01-01T00:10:01Z".parse().unwrap();
        let rows = [
            Row::of("worker-1", pressure, now, STALE_AFTER),
            Row::of("worker-2", Ok::<_, String>(None), now, STALE_AFTER),
            Row::of("worker-3", Err("not a date"), now, STALE_AFTER),
        ];
        table(&rows, width).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_narrow_terminal_goes_without_the_less_important_columns() {
        let whole = [
            "NAME       SCORE   CPU   MEMORY   IO   BASIS   AGE",
            "worker-1   35      35    -        -    psi/1   10m (stale)",
            "worker-2   -       -     -        -    -       -",
            "worker-3   -       -     -        -    -       unreadable",
            "",
            "worker-3: not a date",
        ];
        assert_eq!(lines(None), whole);
        assert_eq!(lines(Some(58)), whole);
        let narrow = lines(Some(57));
        assert_eq!(narrow[1], "worker-1   35      35    -        -    10m (stale)");
        assert_eq!(lines(Some(40))[1], "worker-1   35      35    10m (stale)");
        // Names, scores and ages are never omitted.
        assert_eq!(lines(Some(1))[1], "worker-1   35      10m (stale)");
    }

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (172_800, "2d")]
        {
            assert_eq!(short(Duration::from_secs(seconds)), expected);
        }
    }
}
