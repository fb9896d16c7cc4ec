//! The tables of what is scored and of CPU users, in as many columns as fit. Pure.

use crossterm::style::Stylize;

use super::choice::Choice;
use super::columns::{COLUMNS, CONTENTION, Column, USER_COLUMNS};
use super::text::{Line, Part, ascii, by_level, shorten, words, wrap};
use crate::resource::PerResource;
use crate::snapshot::{Cgroup, Levels, Snapshot};

/// The heading of the table of CPU users, and its largest number of rows.
const USER: &str = "CPU USER";
const MOST_USERS: usize = 5;

/// CPUs that a cgroup must use to be in the table of CPU users.
const USES: f64 = 0.01;

/// Width of the longest usual numbers: `100%`, `99.99`.
const MIN_WIDTH: usize = 5;

/// Spaces between two columns. The last one has the mark of the column that rows are sorted by.
const GAP: usize = 2;

/// Columns are omitted rather than names cut below this width.
const MIN_NAME: usize = 20;

/// The table's heading, and which cgroups are its members.
type Population = (&'static str, fn(&Cgroup) -> bool);

/// The scored population comes first, where it is known and has members. Where nothing is scored, all cgroups are
/// shown.
const POPULATIONS: [Population; 4] = [
    ("VM", |cgroup| cgroup.is_vm),
    ("CONTAINER", |cgroup| cgroup.level == "container"),
    ("UNIT", |cgroup| cgroup.scored.is_some()),
    ("CGROUP", |cgroup| cgroup.level != "root"),
];

/// The header and at most `most` rows of the scored population, or of those that the filter selects. The last
/// row may be the number of those that are not shown. A terminal has no columns of dashes.
pub(super) fn scored(
    snapshot: &Snapshot,
    choice: &mut Choice,
    columns: usize,
    most: Option<usize>,
) -> Vec<Line> {
    let population = snapshot.node.population.as_deref().unwrap_or_default();
    let is_scored = |heading: &str| format!("{heading}s").eq_ignore_ascii_case(population);
    let mut populations = POPULATIONS;
    populations.sort_by_key(|(heading, _)| !is_scored(heading));
    let mut members = populations.into_iter().map(|(heading, is_member)| {
        (heading, snapshot.cgroups.iter().filter(|cgroup| is_member(cgroup)).collect::<Vec<_>>())
    });
    let Some((kind, mut rows)) = members.find(|(_, rows)| !rows.is_empty()) else {
        return wrap(words(&snapshot.nothing_to_show(), Stylize::stylize), " ", columns);
    };
    let (total, filter) = (rows.len(), choice.filter.to_lowercase());
    rows.retain(|cgroup| cgroup.name().to_lowercase().contains(&filter));
    sort(&mut rows, choice);
    let cursor = if choice.is_typing { "_" } else { "" };
    let filter =
        if choice.is_filtered() { format!(" /{}{cursor}", choice.filter) } else { String::new() };
    let is_known = |column: &&Column| {
        most.is_none() || rows.iter().any(|cgroup| (column.value)(cgroup).is_some())
    };
    let table = Table {
        heading: format!("{kind}{filter}"),
        columns: COLUMNS.iter().filter(is_known).collect(),
        sorted: most
            .and(COLUMNS.get(choice.sort))
            .map(|column| (column.header, if choice.is_reversed { '<' } else { '>' })),
        levels: snapshot.levels,
    };
    let most = most.unwrap_or(usize::MAX);
    choice.page = if rows.len() <= most { most } else { most.saturating_sub(1) };
    choice.above = choice.above.min(rows.len().saturating_sub(choice.page));
    let end = rows.len().min(choice.above.saturating_add(choice.page));
    let mut lines = table.lines(&rows, choice.above..end, columns);
    let hidden = [(choice.above, "above"), (rows.len() - end, "more")];
    let hidden = hidden.iter().filter(|(count, _)| *count > 0);
    let hidden: Vec<String> = hidden.map(|(count, what)| format!("{count} {what}")).collect();
    if !hidden.is_empty() {
        lines.push(vec![hidden.join(", ").dim()]);
    } else if rows.is_empty() {
        let nothing = format!("No name of {total} contains this text: Esc shows all.");
        lines.push(vec![nothing.stylize()]);
    }
    lines
}

/// The largest first, or the smallest. Absent values come last.
fn sort(cgroups: &mut [&Cgroup], choice: &Choice) {
    let by = COLUMNS.get(choice.sort);
    let sign = if choice.is_reversed { -1.0 } else { 1.0 };
    sort_by_values(cgroups, |cgroup| {
        let PerResource { cpu, memory, io } = cgroup.pressure.map(|one| one.some);
        let most = [cpu, memory, io].into_iter().flatten().reduce(f64::max);
        let over_budget = (choice.sort == 0).then_some(f64::from(cgroup.is_over_budget()));
        let value = by.and_then(|column| (column.value)(cgroup));
        [over_budget, value, cgroup.contention(), most].map(|it| it.map(|it| it * sign))
    });
}

/// The cgroups with the largest CPU use beyond their requests (noisy neighbours).
pub(super) fn users(snapshot: &Snapshot, columns: usize) -> Vec<Line> {
    let uses = |cgroup: &&Cgroup| cgroup.is_user && cgroup.usage() >= Some(USES);
    let mut users: Vec<&Cgroup> = snapshot.cgroups.iter().filter(uses).collect();
    sort_by_values(&mut users, |user| [user.excess(), user.usage()]);
    users.truncate(MOST_USERS);
    if users.is_empty() {
        return Vec::new();
    }
    let all = USER_COLUMNS.iter().collect();
    let table = Table { heading: USER.into(), columns: all, sorted: None, levels: snapshot.levels };
    table.lines(&users, 0..users.len(), columns)
}

/// Sorts by these values, the largest first; absent values come last.
fn sort_by_values<const N: usize>(
    cgroups: &mut [&Cgroup],
    values: impl Fn(&Cgroup) -> [Option<f64>; N],
) {
    let key = |cgroup: &Cgroup| values(cgroup).map(|value| value.unwrap_or(f64::NEG_INFINITY));
    cgroups.sort_by(|a, b| {
        let mut orders = key(b).into_iter().zip(key(a)).map(|(b, a)| b.total_cmp(&a));
        orders.find(|order| order.is_ne()).unwrap_or_else(|| a.id.cmp(&b.id))
    });
}

struct Table<'a> {
    heading: String,
    columns: Vec<&'a Column>,
    /// The header of the column that rows are sorted by, and its mark.
    sorted: Option<(&'static str, char)>,
    levels: Levels,
}

impl Table<'_> {
    /// A header, and below it these of the rows. The width of the names is that of all rows.
    fn lines(&self, rows: &[&Cgroup], shown: std::ops::Range<usize>, mut left: usize) -> Vec<Line> {
        let heading = ascii(&self.heading);
        let names: Vec<String> = rows.iter().map(|cgroup| ascii(&cgroup.name())).collect();
        let longest = names.iter().chain([&heading]).map(String::len).max().unwrap_or_default();
        let mut fitting = Vec::new();
        for column in &self.columns {
            let width = column.header.len().max(MIN_WIDTH);
            match left.checked_sub(GAP + width) {
                Some(rest) if rest >= MIN_NAME.min(longest) => left = rest,
                _ => break,
            }
            fitting.push((column, width));
        }
        let name = |name: &str| {
            let width = longest.min(left);
            format!("{:width$}", shorten(name, width))
        };
        let headers = fitting.iter().map(|(column, width)| {
            let sorted = self.sorted.filter(|(header, _)| *header == column.header);
            let text = format!("{}{}", sorted.map_or(' ', |(_, mark)| mark), column.header);
            format!("{:1$}{text:>2$}", "", GAP - 1, width + 1)
        });
        let header: String = std::iter::once(name(&heading)).chain(headers).collect();
        let mut lines = vec![vec![header.bold()]];
        for (cgroup, row) in rows.iter().zip(&names).skip(shown.start).take(shown.len()) {
            let cells = fitting.iter().map(|(column, width)| self.cell(column, cgroup, *width));
            lines.push(std::iter::once(name(row).stylize()).chain(cells).collect());
        }
        lines
    }

    fn cell(&self, column: &Column, cgroup: &Cgroup, width: usize) -> Part {
        let value = (column.value)(cgroup);
        let text = value.map_or("-".into(), column.show);
        let text = if text.len() <= width { &text } else { "?" };
        let level = value.filter(|_| column.header == CONTENTION);
        by_level(format!("{:GAP$}{text:>width$}", ""), level, self.levels)
    }
}
