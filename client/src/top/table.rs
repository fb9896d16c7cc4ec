//! A frame as lines of text that fit a terminal. Pure. Every line is printable ASCII, so that no
//! name can move the cursor.

use std::fmt::Write;
use std::iter::once;
use std::num::NonZeroU16;

use jiff::Timestamp;

use crate::resource::PerResource;
use crate::snapshot::{Cgroup, Pressure, Snapshot, Waiting};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

impl Size {
    /// For output that is not a terminal: all rows, in lines that fit most windows and emails.
    pub(super) const PIPE: Self = Self { columns: 120, rows: usize::MAX };

    /// [`Size::PIPE`] with as many columns as the environment variable `COLUMNS` sets, if that is a
    /// number above 0. Formatting panics at a width above 65,535.
    pub(super) fn of_pipe(variable: Option<&str>) -> Self {
        let columns: Option<NonZeroU16> = variable.and_then(|columns| columns.parse().ok());
        let columns = columns.map(|columns| columns.get().into());
        Self { columns: columns.unwrap_or(Self::PIPE.columns), ..Self::PIPE }
    }
}

/// What the user of a terminal chose by keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) sort: Sort,
    /// Show the meaning of the columns in place of the table.
    pub(super) help: bool,
}

/// The column that rows are sorted by, the largest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Contention,
    Cpus,
    Memory,
}

/// What `top` shows at one moment.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) source: String,
    pub(super) snapshot: Snapshot,
    /// Why there is no newer snapshot.
    pub(super) error: Option<String>,
}

impl Frame {
    /// A snapshot with the CPU use since the one before.
    pub(super) fn since(before: &Snapshot, (source, mut snapshot): (String, Snapshot)) -> Self {
        snapshot.compute_cpu_use(before);
        Self { source, snapshot, error: None }
    }
}

/// A column: its header, and its cell in the row of a cgroup.
type Column = (&'static str, fn(&Cgroup) -> String);

/// The columns after the name. A narrow terminal shows only the first ones.
const COLUMNS: [Column; 8] = [
    ("CONTENTION", |cgroup| percent(cgroup.contention())),
    ("CPU", |cgroup| raw(cgroup.waiting().cpu, cgroup.pressure.cpu)),
    ("LIMIT", |cgroup| percent(cgroup.waiting().cpu.map(|cpu| cpu.own_limit))),
    ("NODE", |cgroup| percent(cgroup.waiting().cpu.and_then(|cpu| cpu.node))),
    ("CPUS", |cgroup| cpus(cgroup.usage())),
    ("RELIEF", |cgroup| cpus(cgroup.scored.and_then(|scored| Some(scored.relief?.cpus)))),
    ("MEMORY", |cgroup| raw(cgroup.waiting().memory, cgroup.pressure.memory)),
    ("IO", |cgroup| raw(cgroup.waiting().io, cgroup.pressure.io)),
];

/// The columns of the table of CPU users.
const USER_COLUMNS: [Column; 3] = [
    ("EXCESS", |user| cpus(user.excess())),
    ("CPUS", |user| cpus(user.usage())),
    ("REQUEST", |user| cpus(user.cpu_request)),
];

/// The heading of the table of CPU users, and its largest number of rows.
const USER: &str = "CPU USER";
const MOST_USERS: usize = 5;

/// CPUs that a cgroup must use to be in the table of CPU users.
const USES: f64 = 0.01;

/// Rows of a terminal from which the table of CPU users is shown.
const ROWS_WITH_USERS: usize = 24;

/// Width of the longest usual numbers: `100%`, `99.99`.
const MIN_WIDTH: usize = 5;

/// Spaces between two columns.
const GAP: usize = 2;

/// Columns are omitted rather than names cut below this width.
const MIN_NAME: usize = 20;

/// Rows of a terminal from which the keys are shown.
const ROWS_WITH_KEYS: usize = 16;

const KEYS: &str = "? help  c contention  u CPUs  m memory  q quit";

const HELP: &str = "CONTENTION: share of its demand that the VM, container or unit waited for because of \
                    the node. CPU, MEMORY, IO: share of time in which some task waited (pressure). \
                    LIMIT: part of CPU that own limits explain. NODE: CPU ready, because of the node. \
                    CPUS: CPUs used. RELIEF: CPUs' worth of waiting that would end if the VM left. EXCESS: CPUs used \
                    above the REQUEST. Sort by contention: c, by CPUs used: u, by memory pressure: m.";

/// The lines of a frame, at most as many and as long as fit.
pub(super) fn lines(frame: &Frame, choice: Choice, size: Size) -> Vec<String> {
    let snapshot = &frame.snapshot;
    let pressure = snapshot.node.pressure.map(|one| one.some);
    let mut lines = Vec::new();
    for fields in [
        head(frame),
        node_fields(snapshot),
        each("contention:", snapshot.node.contention),
        each("pressure, some:", pressure),
    ] {
        lines.extend(wrap(fields, "  ", size.columns));
    }
    for problem in snapshot.problems().chain(frame.error.clone()) {
        lines.extend(wrap(words(&problem), " ", size.columns));
    }
    lines.push(String::new());
    if choice.help {
        lines.extend(wrap(words(HELP), " ", size.columns));
        return fit(lines, size);
    }
    let mut below = Vec::new();
    if size.rows >= ROWS_WITH_USERS {
        below.push(users(snapshot, size.columns));
    }
    if size.rows != Size::PIPE.rows && size.rows >= ROWS_WITH_KEYS {
        below.push(vec![KEYS.into()]);
    }
    below.retain(|part| !part.is_empty());
    // The table's header, and an empty line before each part below the table.
    let taken = lines.len() + 1 + below.iter().map(|part| part.len() + 1).sum::<usize>();
    lines.extend(table(snapshot, choice.sort, size.columns, size.rows.saturating_sub(taken)));
    for part in below {
        lines.push(String::new());
        lines.extend(part);
    }
    fit(lines, size)
}

fn fit(mut lines: Vec<String>, size: Size) -> Vec<String> {
    lines.truncate(size.rows);
    lines.into_iter().map(|line| line.chars().take(size.columns).collect()).collect()
}

fn head(frame: &Frame) -> Vec<String> {
    let at = i64::try_from(frame.snapshot.observed_at_ms).ok();
    let at = at.and_then(|at| Timestamp::from_millisecond(at).ok());
    let at = at.map_or("-".into(), |at| at.strftime("%H:%M:%S UTC").to_string());
    vec![at, plain(&frame.source)]
}

fn node_fields(snapshot: &Snapshot) -> Vec<String> {
    let node = &snapshot.node;
    let name = snapshot.node_name.as_deref().unwrap_or("node");
    let candidate = snapshot.agent.as_ref().and_then(|agent| agent.publish.candidate.as_ref());
    let candidate = candidate.map(|vm| plain(&format!("move first {}/{}", vm.namespace, vm.name)));
    let fields = [
        plain(format!("{name}: {}", snapshot.score()).trim_end()),
        plain(&format!(
            "{} contended {}",
            node.population.as_deref().unwrap_or("workloads"),
            node.contended
        )),
        format!("busy {}", percent(node.utilization)),
        format!("steal {}", percent(node.steal)),
        format!("headroom {} CPUs", cpus(node.headroom_cpus)),
    ];
    fields.into_iter().chain(candidate).collect()
}

/// A share for each resource.
fn each(what: &str, shares: PerResource<Option<f64>>) -> Vec<String> {
    let PerResource { cpu, memory, io } = shares.map(percent);
    vec![format!("{what} CPU {cpu}"), format!("memory {memory}"), format!("I/O {io}")]
}

/// The header and at most `most` rows, the last of which may be the number of omitted rows.
fn table(snapshot: &Snapshot, sort: Sort, columns: usize, most: usize) -> Vec<String> {
    let Some((kind, cgroups)) = population(snapshot, sort) else {
        return vec!["No cgroups to show: see --scope.".into()];
    };
    let shown = if cgroups.len() <= most { most } else { most.saturating_sub(1) };
    let mut lines = lay_out(kind, &COLUMNS, cgroups.iter().take(shown), columns);
    if cgroups.len() > most {
        lines.push(format!("{} more", cgroups.len() - shown));
    }
    lines
}

/// The cgroups with the largest CPU use beyond their requests (noisy neighbours).
fn users(snapshot: &Snapshot, columns: usize) -> Vec<String> {
    let uses = |cgroup: &&Cgroup| cgroup.is_user && cgroup.usage() >= Some(USES);
    let mut users: Vec<&Cgroup> = snapshot.cgroups.iter().filter(uses).collect();
    sort_by_values(&mut users, |user| [user.excess(), user.usage(), None]);
    if users.is_empty() {
        return Vec::new();
    }
    lay_out(USER, &USER_COLUMNS, users.iter().take(MOST_USERS), columns)
}

/// Sorts by these values, the largest first; absent values come last.
fn sort_by_values(cgroups: &mut [&Cgroup], values: impl Fn(&Cgroup) -> [Option<f64>; 3]) {
    let key = |cgroup: &Cgroup| values(cgroup).map(|value| value.unwrap_or(-1.0));
    cgroups.sort_by(|a, b| {
        let mut orders = key(b).into_iter().zip(key(a)).map(|(b, a)| b.total_cmp(&a));
        orders.find(|order| order.is_ne()).unwrap_or_else(|| a.id.cmp(&b.id))
    });
}

/// The table's heading, and which cgroups are its members.
type Population = (&'static str, fn(&Cgroup) -> bool);

/// The first that has members is scored. Where nothing is, all cgroups are shown.
const POPULATIONS: [Population; 4] = [
    ("VM", |cgroup| cgroup.is_vm),
    ("CONTAINER", |cgroup| cgroup.level == "container"),
    ("UNIT", |cgroup| cgroup.scored.is_some()),
    ("CGROUP", |cgroup| cgroup.level != "root"),
];

/// The members of the scored population, sorted, with their heading.
fn population(snapshot: &Snapshot, sort: Sort) -> Option<(&'static str, Vec<&Cgroup>)> {
    let (kind, mut cgroups) = POPULATIONS
        .into_iter()
        .map(|(heading, is_member)| {
            let members = snapshot.cgroups.iter().filter(|cgroup| is_member(cgroup));
            (heading, members.collect::<Vec<_>>())
        })
        .find(|(_, members)| !members.is_empty())?;
    sort_by_values(&mut cgroups, |cgroup| {
        let PerResource { cpu, memory, io } = cgroup.pressure.map(|one| one.some);
        let most = [cpu, memory, io].into_iter().flatten().reduce(f64::max);
        let over_budget = cgroup.is_over_budget().then_some(1.0);
        match sort {
            Sort::Contention => [over_budget, cgroup.contention(), most],
            Sort::Cpus => [cgroup.usage(), cgroup.contention(), None],
            Sort::Memory => [cgroup.pressure.memory.some, cgroup.contention(), None],
        }
    });
    Some((kind, cgroups))
}

/// All waiting; without a score, the pressure.
fn raw(waiting: Option<Waiting>, pressure: Pressure) -> String {
    percent(waiting.map(|waiting| waiting.raw).or(pressure.some))
}

/// A header, and below it the rows of cgroups, with as many columns as fit.
fn lay_out<'a>(
    kind: &str,
    columns: &[Column],
    cgroups: impl Iterator<Item = &'a &'a Cgroup> + Clone,
    mut left: usize,
) -> Vec<String> {
    let names = cgroups.clone().map(|cgroup| plain(&cgroup.name()));
    let names: Vec<String> = once(kind.to_owned()).chain(names).collect();
    let longest = names.iter().map(String::len).max().unwrap_or_default();
    let mut cells = vec![String::new(); names.len()];
    for (header, cell) in columns {
        let width = header.len().max(MIN_WIDTH);
        match left.checked_sub(GAP + width) {
            Some(rest) if rest >= MIN_NAME.min(longest) => left = rest,
            _ => break,
        }
        let column = once((*header).to_owned()).chain(cgroups.clone().map(|cgroup| cell(cgroup)));
        for (line, cell) in cells.iter_mut().zip(column) {
            let cell = if cell.len() <= width { &cell } else { "?" };
            // Writing to a String cannot fail.
            let _ = write!(line, "{:GAP$}{cell:>width$}", "");
        }
    }
    let width = longest.min(left);
    let lines = names.iter().zip(cells);
    lines.map(|(name, cells)| format!("{:width$}{cells}", shorten(name, width))).collect()
}

/// The start and the end of a name, since similar names differ at the end.
fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    let Some(kept) = width.checked_sub(2).filter(|_| length > width) else {
        return name.chars().take(width).collect();
    };
    let end = kept - kept / 2;
    let start = name.chars().take(kept / 2);
    start.chain("..".chars()).chain(name.chars().skip(length - end)).collect()
}

/// A number of CPUs, or a dash.
fn cpus(cpus: Option<f64>) -> String {
    cpus.map_or("-".into(), |cpus| format!("{cpus:.2}"))
}

/// A share as a percentage, or a dash.
fn percent(share: Option<f64>) -> String {
    let Some(percent) = share.map(|share| share * 100.0) else { return "-".into() };
    if percent > 0.0 && percent < 9.95 {
        format!("{percent:.1}%")
    } else {
        format!("{percent:.0}%")
    }
}

/// A name with all but printable ASCII escaped: control characters could control the terminal, and
/// other characters have an unknown width.
fn plain(text: &str) -> String {
    let escaped = |letter: char| match letter {
        ' '..='~' => letter.to_string(),
        _ => letter.escape_unicode().to_string(),
    };
    text.chars().map(escaped).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(plain).collect()
}

/// Lines of as many parts as fit.
fn wrap(parts: Vec<String>, gap: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.len() + gap.len() + part.len() <= columns => {
                line.push_str(gap);
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

#[cfg(test)]
mod tests;
