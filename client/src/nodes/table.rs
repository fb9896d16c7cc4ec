//! The rows of `nodes`, and the table that shows them.

use std::iter;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use strum::VariantArray as _;

use crate::cluster::NodeMetadata;
use crate::contract::{
    ContractError, Freshness, Level, NodeDemand, NodePressure, Prefix, Thresholds,
};
use crate::flags::NodesColumn;
use crate::output::aligned;

/// Number of columns without `-o wide`.
const NARROW: usize = 6;

const NO_SCORES: &str = "No node has a score. An agent publishes one within a minute: list the agents with \
    `kubectl get pods -A -o wide -l app.kubernetes.io/name=psi-agent`.";

/// What a Node publishes.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(serialize_with = "word")]
    level: Option<Level>,
    score: Option<u8>,
    headroom: Option<u32>,
    candidates: Vec<String>,
    observed_at: Option<String>,
    is_fresh: bool,
    cpu: Option<u8>,
    memory: Option<u8>,
    io: Option<u8>,
    demand: Option<f64>,
    waiting: Option<f64>,
    basis: Option<String>,
    errors: Vec<String>,
    #[serde(skip)]
    age: Option<Duration>,
    /// Whether there is a score that can't be read.
    #[serde(skip)]
    is_unreadable: bool,
}

fn word<S: Serializer>(level: &Option<Level>, serializer: S) -> Result<S::Ok, S::Error> {
    level.map(Level::word).serialize(serializer)
}

impl Row {
    /// The row of a Node at a time.
    pub(super) fn new(
        prefix: &Prefix,
        NodeMetadata { name, annotations, labels, .. }: &NodeMetadata,
        now: Timestamp,
        stale_after: Duration,
    ) -> Self {
        let mut row = Self { name: name.clone(), ..Self::default() };
        let mut to_line = |error: ContractError| row.errors.push(format!("{name}: {error}"));
        let pressure = NodePressure::from_annotations(prefix, annotations);
        row.is_unreadable = pressure.is_err();
        let pressure = pressure.map_err(&mut to_line).ok().flatten();
        let demand = NodeDemand::from_annotations(prefix, annotations);
        let demand = demand.map_err(to_line).ok().flatten();
        let Some(pressure) = pressure else { return row };
        (row.is_fresh, row.age) = match pressure.freshness(now, stale_after) {
            Freshness::Fresh { age } => (true, Some(age)),
            Freshness::Stale { age } => (false, Some(age)),
            Freshness::Future => (false, None),
        };
        let level = Level::from_labels(prefix, labels);
        row.level = level.or_else(|| Some(level_of(pressure.score)));
        row.score = Some(pressure.score);
        (row.cpu, row.memory, row.io) = (pressure.cpu, pressure.memory, pressure.io);
        row.observed_at = Some(pressure.observed_at.to_string());
        row.basis = Some(pressure.basis.to_string());
        if let Some(demand) = demand {
            row.headroom = Some(demand.headroom);
            row.demand = Some(demand.vms + demand.others);
            row.waiting = Some(demand.waiting);
            row.candidates = demand.candidates.into_iter().map(|one| one.uid).collect();
        }
        row
    }

    pub(super) fn line_of_name(&self) -> String {
        format!("node/{}\n", self.name)
    }

    /// A column's value for sorting, `None` for texts, and its text; both are `None` if it is unknown.
    fn value(&self, column: NodesColumn) -> (Option<f64>, Option<String>) {
        let whole = |number: Option<f64>| (number, number.map(|number| number.to_string()));
        let cpus = |number: Option<f64>| (number, number.map(|cpus| format!("{cpus:.2}")));
        match column {
            NodesColumn::Name => (None, Some(self.name.clone())),
            NodesColumn::Level => (
                self.level.map(|level| f64::from(level as u8)),
                self.level.map(|level| level.word().to_owned()),
            ),
            NodesColumn::Score => whole(self.score.map(f64::from)),
            NodesColumn::Headroom => whole(self.headroom.map(f64::from)),
            NodesColumn::Candidate => (None, self.candidates.first().cloned()),
            NodesColumn::Age => {
                let text = match self.age.map(short) {
                    Some(age) if self.is_fresh => Some(age),
                    Some(age) => Some(format!("{age} (stale)")),
                    None if self.score.is_some() => Some("in the future".into()),
                    None => self.is_unreadable.then(|| "unreadable".into()),
                };
                (self.age.map(|age| age.as_secs_f64()), text)
            }
            NodesColumn::Cpu => whole(self.cpu.map(f64::from)),
            NodesColumn::Memory => whole(self.memory.map(f64::from)),
            NodesColumn::Io => whole(self.io.map(f64::from)),
            NodesColumn::Demand => cpus(self.demand),
            NodesColumn::Waiting => cpus(self.waiting),
            NodesColumn::Basis => (None, self.basis.clone()),
        }
    }
}

/// The level of a score by the agents' default thresholds, for Nodes without the label.
fn level_of(score: u8) -> Level {
    let thresholds = Thresholds::default();
    match score {
        score if score >= thresholds.high() => Level::High,
        score if score >= thresholds.medium() => Level::Medium,
        _ => Level::Low,
    }
}

/// By a column: numbers from the largest, then texts, then names.
pub(super) fn sort(rows: &mut [Row], column: NodesColumn) {
    rows.sort_by(|a, b| {
        let ((a_number, a_text), (b_number, b_text)) = (a.value(column), b.value(column));
        let number = |number: Option<f64>| number.unwrap_or(f64::NEG_INFINITY);
        let by_text = || (a_text.is_none(), &a_text).cmp(&(b_text.is_none(), &b_text));
        let by_number = number(b_number).total_cmp(&number(a_number));
        by_number.then_with(by_text).then_with(|| a.name.cmp(&b.name))
    });
}

/// Replaces the row of a node, or adds it at the end. Returns its index if more than its age changed.
pub(super) fn update(rows: &mut Vec<Row>, new: Row) -> Option<usize> {
    let Some(at) = rows.iter().position(|row| row.name == new.name) else {
        rows.push(new);
        return Some(rows.len() - 1);
    };
    let old = rows.get_mut(at)?;
    let aged = Row { age: new.age, is_fresh: new.is_fresh, ..old.clone() };
    let changed = aged != new;
    *old = new;
    changed.then_some(at)
}

/// The columns of the table.
pub(super) fn columns(is_wide: bool) -> &'static [NodesColumn] {
    let all = NodesColumn::VARIANTS;
    if is_wide { all } else { all.get(..NARROW).unwrap_or(all) }
}

/// The header and a line for each row. A terminal without space for the candidate, which is a UID, omits
/// it.
pub(super) fn lines(rows: &[Row], columns: &[NodesColumn], width: Option<usize>) -> String {
    let cells = |row: &Row| {
        let cells = columns.iter().map(|column| row.value(*column).1.unwrap_or("-".into()));
        cells.collect::<Vec<String>>()
    };
    let header = columns.iter().map(|&column| <&str>::from(column).to_owned()).collect();
    let table: Vec<_> = iter::once(header).chain(rows.iter().map(cells)).collect();
    let text = aligned(&table);
    let fits = |width| text.lines().all(|line| line.chars().count() <= width);
    if width.is_none_or(fits) || !columns.contains(&NodesColumn::Candidate) {
        return text;
    }
    let others = columns.iter().filter(|column| **column != NodesColumn::Candidate);
    lines(rows, &others.copied().collect::<Vec<_>>(), None)
}

/// The lines, with errors below.
pub(super) fn table(rows: &[Row], columns: &[NodesColumn], width: Option<usize>) -> String {
    let mut text = lines(rows, columns, width);
    let mut below: Vec<&str> =
        rows.iter().flat_map(|row| &row.errors).map(String::as_str).collect();
    if rows.is_empty() {
        below.push("No Node matches: see --selector.");
    } else if below.is_empty() && rows.iter().all(|row| row.score.is_none()) {
        below.push(NO_SCORES);
    }
    if !below.is_empty() {
        text.push_str(&format!("\n{}\n", below.join("\n")));
    }
    text
}

/// Fails unless at least one node has a score, and each score is fresh.
pub(super) fn require_fresh(rows: &[Row]) -> anyhow::Result<()> {
    let with_values = rows.iter().filter(|row| row.score.is_some() || row.is_unreadable);
    let (fresh, others): (Vec<&Row>, Vec<&Row>) = with_values.partition(|row| row.is_fresh);
    let others: Vec<&str> = others.into_iter().map(|row| &*row.name).collect();
    anyhow::ensure!(others.is_empty(), "no fresh score on {}", others.join(", "));
    anyhow::ensure!(!fresh.is_empty(), "no node has a score; the agents write it within a minute");
    Ok(())
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
    use clap::ValueEnum as _;
    use serde_json::json;

    use super::*;
    use crate::contract::STALE_AFTER;

    const SCORED: [(&str, &str); 4] = [
        ("score", "35"),
        ("cpu", "35"),
        ("observed-at", "2025-01-01T00:00:00Z"),
        ("basis", "psi/1"),
    ];
    const DEMAND: [(&str, &str); 4] = [
        ("headroom", "0"),
        ("demand", "vms=5.00,others=0.50"),
        ("waiting", "1.00"),
        ("candidates", "uid=3f0c,demand=1.00,relief=0.50"),
    ];
    const MALFORMED: [&str; 2] = [
        "worker-3: annotation psi-agent.io/score is \"x\", expected an integer from 0 to 100",
        "worker-3: annotation psi-agent.io/demand is missing, but others are present",
    ];

    /// The row of a Node with these annotations and this label.
    fn row(name: &str, annotations: &[(&str, &str)], level: Option<&str>) -> Row {
        let own = |(name, value): (&str, &str)| (format!("psi-agent.io/{name}"), value.to_owned());
        let annotations = annotations.iter().copied().map(own).collect();
        let labels = level.map(|level| own(("pressure", level))).into_iter().collect();
        let name = name.to_owned();
        let node = NodeMetadata { name, annotations, labels, resource_version: None };
        let now = "2025-01-01T00:10:01Z".parse().unwrap();
        Row::new(&Prefix::default(), &node, now, STALE_AFTER)
    }

    fn rows() -> Vec<Row> {
        vec![
            row("worker-3", &[("score", "x"), ("headroom", "0")], None),
            row("worker-2", &[], None),
            row("worker-4", &[&SCORED[..], &[("score", "5")]].concat(), Some("medium")),
            row("worker-1", &[SCORED, DEMAND].concat(), None),
        ]
    }

    fn shown(is_wide: bool, width: Option<usize>) -> Vec<String> {
        let mut rows = rows();
        sort(&mut rows, NodesColumn::Score);
        table(&rows, columns(is_wide), width).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_narrow_terminal_goes_without_the_candidate() {
        let whole = [
            "NAME       LEVEL    SCORE   HEADROOM   CANDIDATE   AGE",
            "worker-1   high     35      0          3f0c        10m (stale)",
            "worker-4   medium   5       -          -           10m (stale)",
            "worker-2   -        -       -          -           -",
            "worker-3   -        -       -          -           unreadable",
            "",
            MALFORMED[0],
            MALFORMED[1],
        ];
        assert_eq!(shown(false, None), whole);
        assert_eq!(shown(false, Some(62)), whole);
        let narrow = "worker-1   high     35      0          10m (stale)";
        assert_eq!(shown(false, Some(61))[1], narrow);
        assert_eq!(shown(false, Some(1))[1], narrow);
        let wide = "worker-1   high     35      0          3f0c        10m (stale)   35    -        -    5.50     \
                    1.00      psi/1";
        assert_eq!(shown(true, None)[1], wide);
    }

    #[test]
    fn rows_are_sorted_by_any_column() {
        for (column, expected) in [
            (NodesColumn::Name, [1, 2, 3, 4]),
            (NodesColumn::Level, [1, 4, 2, 3]),
            (NodesColumn::Candidate, [1, 2, 3, 4]),
            (NodesColumn::Age, [1, 4, 3, 2]),
            (NodesColumn::Basis, [1, 4, 2, 3]),
        ] {
            let mut rows = rows();
            sort(&mut rows, column);
            let names: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
            assert_eq!(names, expected.map(|number| format!("worker-{number}")), "{column:?}");
        }
    }

    #[test]
    fn the_columns_that_sort_are_those_of_the_header() {
        let names = NodesColumn::value_variants()
            .iter()
            .map(|one| one.to_possible_value().unwrap().get_name().to_uppercase());
        let header = shown(true, None).remove(0);
        assert_eq!(names.collect::<Vec<_>>(), header.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn json_has_the_same_values() {
        let json = json!(rows()[3]);
        assert_eq!(json["name"], "worker-1");
        assert_eq!(json["level"], "high");
        assert_eq!(json["score"], 35);
        assert_eq!(json["memory"], json!(null));
        assert_eq!(json["candidates"], json!(["3f0c"]));
        assert_eq!(json["observedAt"], "2025-01-01T00:00:00Z");
        assert_eq!(json["isFresh"], false);
        assert_eq!(json!(rows()[0])["errors"], json!(MALFORMED));
    }

    #[test]
    fn a_list_without_scores_has_the_next_step_below() {
        assert!(
            table(&rows()[1..2], columns(false), None).ends_with(&format!("\n\n{NO_SCORES}\n"))
        );
        assert!(
            table(&[], columns(false), None).ends_with("\n\nNo Node matches: see --selector.\n")
        );
    }

    #[test]
    fn each_score_must_be_fresh_and_there_must_be_one() {
        let fresh = |name| {
            let observed_at = ("observed-at", "2025-01-01T00:10:00Z");
            row(name, &[&SCORED[..], &[observed_at]].concat(), None)
        };
        let outcome = |rows: &[Row]| require_fresh(rows).map_err(|error| error.to_string());
        assert_eq!(outcome(&[fresh("a"), row("b", &[], None)]), Ok(()));
        let left_over = row("b", &[("headroom", "0")], None);
        assert_eq!((left_over.errors.len(), outcome(&[fresh("a"), left_over])), (1, Ok(())));
        let none = "no node has a score; the agents write it within a minute";
        assert_eq!(outcome(&[row("b", &[], None)]), Err(none.into()));
        let all = [&rows()[..], &[fresh("a")]].concat();
        let names = "no fresh score on worker-3, worker-4, worker-1";
        assert_eq!(outcome(&all), Err(names.into()));
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
