//! A look at the node, to lines of text that fit a terminal. Pure. Every line is printable ASCII,
//! whatever names it was given: nothing of a VM's can move the cursor.

use std::fmt::Write;

use jiff::Timestamp;

use super::view::{Agent, Cgroup, Node, View, Waiting};

/// The room that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Size {
    /// Not a terminal's: all rows, each as long as it is.
    pub(super) const UNBOUNDED: Self = Self { columns: usize::MAX, rows: usize::MAX };
}

/// What is to be seen.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    /// Who told it.
    pub(super) source: String,
    pub(super) view: View,
    /// Why there is nothing newer.
    pub(super) trouble: Option<String>,
}

/// The columns after the name, the most telling first: a narrow terminal goes without the last.
const COLUMNS: [&str; 7] = ["CONTENTION", "CPU", "LIMIT", "NODE", "CPUS", "MEMORY", "IO"];

/// The same of those that use the CPUs.
const USER_COLUMNS: [&str; 3] = ["OVER", "CPUS", "ASKED"];

/// What those are called, and how many are shown.
const USER: &str = "USES THE CPUS";
const MOST_USERS: usize = 5;

/// Who uses less does not take anything from anybody.
const USES: f64 = 0.01;

/// Smaller terminals have no room for them.
const ROWS_WITH_USERS: usize = 24;

/// Numbers need no more: `100%`, `99.99`.
const MIN_WIDTH: usize = 5;

/// Between two columns.
const GAP: usize = 2;

/// Rather than names that are shorter, columns are left out.
const MIN_NAME: usize = 20;

/// Smaller terminals have no room for the legend, and what is piped has readers that want none.
const ROWS_WITH_LEGEND: usize = 16;

const LEGEND: &str = "CONTENTION: share of what it wanted that it waited for, held back by the node. \
                      CPU: raw, share of time in which some task waited; LIMIT: of that, put down \
                      to its own limit; NODE: because of the node, for each CPU that it wanted. CPUS: \
                      used. MEMORY, IO: raw, some task waited. OVER: CPUs used beyond those that were ASKED for.";

/// The lines, no more and no longer than there is room for.
pub(super) fn lines(shown: &Shown, size: Size) -> Vec<String> {
    let view = &shown.view;
    let mut lines = wrap(head(shown, size), "  ", size.columns);
    lines.extend(wrap(node_fields(&view.node), "  ", size.columns));
    let (blamed, raw) = (view.node.contention, view.node.pressure);
    let blamed = each("held back by the node:", blamed.cpu, blamed.memory, blamed.io);
    let raw = each("raw pressure, some:", raw.cpu.some, raw.memory.some, raw.io.some);
    for fields in [blamed, raw] {
        lines.extend(wrap(fields, "  ", size.columns));
    }
    let troubles = view.agent.iter().flat_map(Agent::troubles).chain(shown.trouble.clone());
    for trouble in troubles {
        lines.extend(wrap(words(&trouble), " ", size.columns));
    }
    lines.push(String::new());
    let legend = if size != Size::UNBOUNDED && size.rows >= ROWS_WITH_LEGEND {
        wrap(words(LEGEND), " ", size.columns)
    } else {
        Vec::new()
    };
    let users = if size.rows >= ROWS_WITH_USERS { users(view, size.columns) } else { Vec::new() };
    // Below the head: the table's header, and, before what comes below it, an empty line each.
    let below = [&users, &legend].into_iter().filter(|part| !part.is_empty());
    let taken = lines.len() + 1 + below.clone().map(|part| part.len() + 1).sum::<usize>();
    lines.extend(table(view, size.columns, size.rows.saturating_sub(taken)));
    for part in below {
        lines.push(String::new());
        lines.extend_from_slice(part);
    }
    lines.truncate(size.rows);
    lines.into_iter().map(|line| line.chars().take(size.columns).collect()).collect()
}

fn head(shown: &Shown, size: Size) -> Vec<String> {
    let at = i64::try_from(shown.view.observed_at_ms).ok();
    let at = at.and_then(|at| Timestamp::from_millisecond(at).ok());
    let at = at.map_or("-".into(), |at| at.strftime("%H:%M:%S UTC").to_string());
    let mut head = vec![at, plain(&shown.source)];
    if size != Size::UNBOUNDED {
        head.push("q quits".into());
    }
    head
}

fn node_fields(node: &Node) -> Vec<String> {
    let points = node.score.map_or("-".into(), |score| format!("{:.0}", score * 100.0));
    vec![
        format!("node score {points}"),
        format!("VMs held back {}", node.held_back),
        format!("busy {}", percent(node.utilization)),
        format!("steal {}", percent(node.steal)),
    ]
}

/// What the node is to blame for, or what there is whoever is to blame: one above the other.
fn each(what: &str, cpu: Option<f64>, memory: Option<f64>, io: Option<f64>) -> Vec<String> {
    vec![
        format!("{what} CPU {}", percent(cpu)),
        format!("memory {}", percent(memory)),
        format!("I/O {}", percent(io)),
    ]
}

/// The header and at most so many rows, the last of which may say how many there are besides.
fn table(view: &View, columns: usize, most: usize) -> Vec<String> {
    let (kind, cgroups) = population(view);
    if cgroups.is_empty() {
        return vec!["No cgroups to show: see --scope.".into()];
    }
    let shown = if cgroups.len() <= most { most } else { most.saturating_sub(1) };
    let rows = cgroups.iter().take(shown).map(|cgroup| (plain(&cgroup.name()), cells(cgroup)));
    let mut lines = lay_out(kind, COLUMNS, &rows.collect::<Vec<_>>(), columns);
    if cgroups.len() > most {
        lines.push(format!("{} more", cgroups.len() - shown));
    }
    lines
}

/// Whose use of the CPUs may be what others wait for: those that use most beyond what they asked for.
fn users(view: &View, columns: usize) -> Vec<String> {
    let uses = |cgroup: &&Cgroup| cgroup.is_user && cgroup.usage() >= Some(USES);
    let mut users: Vec<&Cgroup> = view.cgroups.iter().filter(uses).collect();
    let use_of = |cgroup: &Cgroup| (cgroup.over().unwrap_or(0.0), cgroup.usage().unwrap_or(0.0));
    users.sort_by(|a, b| {
        let ((a_over, a_used), (b_over, b_used)) = (use_of(a), use_of(b));
        b_over
            .total_cmp(&a_over)
            .then_with(|| b_used.total_cmp(&a_used))
            .then_with(|| a.id.cmp(&b.id))
    });
    if users.is_empty() {
        return Vec::new();
    }
    let rows = users.into_iter().take(MOST_USERS).map(|user| {
        let cells = [user.over(), user.usage(), user.cpu_request].map(cpus);
        (plain(&user.name()), cells)
    });
    lay_out(USER, USER_COLUMNS, &rows.collect::<Vec<_>>(), columns)
}

/// The VMs; on a node without any the containers, or where there are none either all cgroups. Those
/// that wait most come first.
fn population(view: &View) -> (&'static str, Vec<&Cgroup>) {
    let all = &view.cgroups;
    let of = |which: fn(&&Cgroup) -> bool| all.iter().filter(which).collect::<Vec<_>>();
    let vms = of(|cgroup| cgroup.is_vm);
    let containers = of(|cgroup| cgroup.level == "container");
    let (kind, mut cgroups) = if !vms.is_empty() {
        ("VM", vms)
    } else if !containers.is_empty() {
        ("CONTAINER", containers)
    } else {
        ("CGROUP", of(|cgroup| cgroup.level != "root"))
    };
    let contention = |cgroup: &Cgroup| cgroup.contention().unwrap_or(-1.0);
    let waited = |cgroup: &Cgroup| {
        let pressure = cgroup.pressure;
        let all = [pressure.cpu.some, pressure.memory.some, pressure.io.some];
        all.into_iter().flatten().fold(-1.0, f64::max)
    };
    cgroups.sort_by(|a, b| {
        let by_contention = contention(b).total_cmp(&contention(a));
        by_contention.then_with(|| waited(b).total_cmp(&waited(a))).then_with(|| a.id.cmp(&b.id))
    });
    (kind, cgroups)
}

fn cells(cgroup: &Cgroup) -> [String; 7] {
    let pressure = cgroup.pressure;
    let waiting = cgroup.scored.map(|scored| scored.waiting).unwrap_or_default();
    let raw = |waiting: Option<Waiting>| waiting.map(|waiting| waiting.raw);
    [
        percent(cgroup.contention()),
        percent(raw(waiting.cpu).or(pressure.cpu.full)),
        percent(waiting.cpu.map(|cpu| cpu.own_limit)),
        percent(waiting.cpu.map(|cpu| cpu.left)),
        cpus(cgroup.usage()),
        percent(raw(waiting.memory).or(pressure.memory.some)),
        percent(raw(waiting.io).or(pressure.io.some)),
    ]
}

/// How wide the columns are, and how many there is room for.
struct Layout {
    name: usize,
    columns: Vec<usize>,
}

/// A header, and rows of a name and its cells below it.
fn lay_out<const N: usize>(
    kind: &str,
    headers: [&str; N],
    rows: &[(String, [String; N])],
    columns: usize,
) -> Vec<String> {
    let names = rows.iter().map(|(name, _)| name.as_str());
    let layout = Layout::of(names.chain([kind]), &headers, columns);
    let header = layout.line(kind, &headers.map(str::to_owned));
    let rows = rows.iter().map(|(name, cells)| layout.line(name, cells));
    [header].into_iter().chain(rows).collect()
}

impl Layout {
    fn of<'a>(names: impl Iterator<Item = &'a str>, headers: &[&str], columns: usize) -> Self {
        let wanted = names.map(str::len).max().unwrap_or_default();
        let mut left = columns;
        let mut widths = Vec::new();
        for header in headers {
            let width = header.len().max(MIN_WIDTH);
            match left.checked_sub(GAP + width) {
                Some(rest) if rest >= MIN_NAME.min(wanted) => {
                    left = rest;
                    widths.push(width);
                }
                _ => break,
            }
        }
        Self { name: wanted.min(left), columns: widths }
    }

    fn line(&self, name: &str, cells: &[String]) -> String {
        let mut line = format!("{:width$}", shorten(name, self.name), width = self.name);
        for (cell, &width) in cells.iter().zip(&self.columns) {
            let cell = if cell.len() <= width { cell } else { "?" };
            // Writing to a string never fails.
            let _ = write!(line, "{:GAP$}{cell:>width$}", "");
        }
        line
    }
}

/// The start and the end of a name: a namespace or a slice, and what tells it from its neighbours.
fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    let Some(kept) = width.checked_sub(2).filter(|_| length > width) else {
        return name.chars().take(width).collect();
    };
    let end = kept - kept / 2;
    let start = name.chars().take(kept / 2);
    start.chain("..".chars()).chain(name.chars().skip(length - end)).collect()
}

/// A number of CPUs; a dash is what is not known.
fn cpus(cpus: Option<f64>) -> String {
    cpus.map_or("-".into(), |cpus| format!("{cpus:.2}"))
}

/// A share of time; a dash is what is not known.
fn percent(share: Option<f64>) -> String {
    let Some(percent) = share.map(|share| share * 100.0) else { return "-".into() };
    if percent > 0.0 && percent < 9.95 {
        format!("{percent:.1}%")
    } else {
        format!("{percent:.0}%")
    }
}

/// Kubernetes and systemd name things in ASCII; whatever else a name holds is spelled out, since it
/// could tell the terminal what to do, or be wider or narrower than it counts.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            ' '..='~' => plain.push(letter),
            _ => plain.extend(letter.escape_unicode()),
        }
    }
    plain
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(plain).collect()
}

/// Lines of as many of the parts as fit.
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
