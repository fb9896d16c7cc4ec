//! `psi-agent nodes`: lists the cluster's nodes by published score, with its age. On a narrow
//! terminal, the less important columns are omitted.

use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use crate::cluster::{ApiClient, NodeKeys};
use crate::contract::{Freshness, NodeDemand, NodePressure, Prefix};
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
        let demand = NodeDemand::from_annotations(prefix, &metadata.annotations);
        Row::of(&metadata.name, pressure, demand, now, stale_after)
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
const OPTIONAL: [usize; 6] = [8, 6, 4, 3, 2, 5];

const HEADER: [&str; 9] =
    ["NAME", "SCORE", "CPU", "MEMORY", "IO", "HEADROOM", "BASIS", "AGE", "CANDIDATE"];

struct Row {
    /// For sorting: a node without a value comes last.
    score: Option<u8>,
    cells: [String; 9],
    errors: Vec<String>,
}

impl Row {
    fn of<E: std::fmt::Display>(
        name: &str,
        pressure: Result<Option<NodePressure>, E>,
        demand: Result<Option<NodeDemand>, E>,
        now: Timestamp,
        stale_after: Duration,
    ) -> Self {
        let cell = |value: Option<u8>| value.map_or("-".into(), |value| value.to_string());
        let mut errors = Vec::new();
        let mut to_line = |error: E| errors.push(format!("{name}: {error}"));
        let (score, [cpu, memory, io], basis, age) = match pressure {
            Ok(Some(pressure)) => {
                let each = [pressure.cpu, pressure.memory, pressure.io].map(cell);
                let age = match pressure.freshness(now, stale_after) {
                    Freshness::Fresh { age } => short(age),
                    Freshness::Stale { age } => format!("{} (stale)", short(age)),
                    Freshness::Future => "in the future".into(),
                };
                (Some(pressure.score), each, pressure.basis.to_string(), age)
            }
            Ok(None) => (None, [None; 3].map(cell), "-".into(), "-".into()),
            Err(error) => {
                to_line(error);
                (None, [None; 3].map(cell), "-".into(), "unreadable".into())
            }
        };
        let demand = demand.map_err(to_line).ok().flatten().filter(|_| score.is_some());
        let headroom = demand.as_ref().map_or("-".into(), |demand| demand.headroom.to_string());
        let candidate = demand.as_ref().and_then(|demand| demand.candidates.first());
        let candidate = candidate.map_or("-".into(), |candidate| candidate.uid.clone());
        let name = name.to_owned();
        let cells = [name, cell(score), cpu, memory, io, headroom, basis, age, candidate];
        Self { score, cells, errors }
    }
}

/// Columns as wide as their longest cell, as kubectl prints them, with errors below.
fn table(rows: &[Row], width: Option<usize>) -> String {
    let header = HEADER.map(str::to_owned);
    let lines: Vec<&[String; 9]> =
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
    let errors: Vec<&str> = rows.iter().flat_map(|row| &row.errors).map(String::as_str).collect();
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
            ("psi-agent.io/headroom", "0"),
            ("psi-agent.io/demand", "vms=5.00,others=0.50"),
            ("psi-agent.io/waiting", "1.00"),
            ("psi-agent.io/candidates", "uid=3f0c,demand=1.00,relief=0.50"),
        ];
        let pressure = NodePressure::from_annotations(&Prefix::default(), annotations);
        let demand = NodeDemand::from_annotations(&Prefix::default(), annotations);
        let now = "2025-01-01T00:10:01Z".parse().unwrap();
        let rows = [
            Row::of("worker-1", pressure, demand, now, STALE_AFTER),
            Row::of("worker-2", Ok::<_, String>(None), Ok(None), now, STALE_AFTER),
            Row::of("worker-3", Err("not a date"), Err("not a number"), now, STALE_AFTER),
        ];
        table(&rows, width).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_narrow_terminal_goes_without_the_less_important_columns() {
        let whole = [
            "NAME       SCORE   CPU   MEMORY   IO   HEADROOM   BASIS   AGE           CANDIDATE",
            "worker-1   35      35    -        -    0          psi/1   10m (stale)   3f0c",
            "worker-2   -       -     -        -    -          -       -             -",
            "worker-3   -       -     -        -    -          -       unreadable    -",
            "",
            "worker-3: not a date",
            "worker-3: not a number",
        ];
        assert_eq!(lines(None), whole);
        assert_eq!(lines(Some(81)), whole);
        let narrow = lines(Some(80));
        assert_eq!(
            narrow[1],
            "worker-1   35      35    -        -    0          psi/1   10m (stale)"
        );
        assert_eq!(lines(Some(60))[1], "worker-1   35      35    -        0          10m (stale)");
        assert_eq!(lines(Some(41))[1], "worker-1   35      0          10m (stale)");
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
