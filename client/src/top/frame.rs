//! A frame as lines: the node, problems, the table of what is scored, and the largest CPU users. Pure.

use std::num::NonZeroU16;

use crossterm::style::Stylize;
use jiff::Timestamp;

use super::choice::Choice;
use super::table::{scored, users};
use super::text::{Line, Part, ascii, by_level, cpus, fit, or_dash, percent, words, wrap};
use crate::resource::PerResource;
use crate::snapshot::{Levels, Snapshot};

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

    pub(super) fn is_pipe(self) -> bool {
        self.rows == Self::PIPE.rows
    }
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

/// Rows of a terminal from which the table of CPU users is shown.
const ROWS_WITH_USERS: usize = 24;

/// Rows of a terminal from which the keys are shown.
const ROWS_WITH_KEYS: usize = 16;

const KEYS: &str = "? help  / filter  c u w n l e m i sort  r reverse  q quit";

const HELP: &str = "CONTENTION: share of its demand that the VM, container or unit waited for because of the \
    node. CPUS: CPUs used. CPU-WAIT, MEM-WAIT, IO-WAIT: share of time in which some task waited (pressure). \
    NODE: part of CPU-WAIT because of the node (CPU ready). LIMIT: part that own limits explain. RELIEF: CPUs' \
    worth of waiting that would end if the VM left. EXCESS: CPUs used above the REQUEST.";

const KEYS_HELP: &str = "Sort by: c CONTENTION, u CPUS, w CPU-WAIT, n NODE, l LIMIT, e RELIEF, m MEM-WAIT, \
    i IO-WAIT; r reverses. Scroll: arrows, j, k, PgUp, PgDn, Home, End. Filter by name: /, then Enter, or \
    Esc to clear. Quit: q, Esc or Ctrl-C.";

/// The lines of a frame, at most as many and as long as fit.
pub(super) fn lines(frame: &Frame, choice: &mut Choice, size: Size) -> Vec<Line> {
    let snapshot = &frame.snapshot;
    let pressure = snapshot.node.pressure.map(|one| one.some);
    let mut lines = Vec::new();
    for fields in [
        head(frame),
        node_fields(snapshot),
        each("contention:", snapshot.node.contention, snapshot.levels),
        each("pressure, some:", pressure, Levels::default()),
    ] {
        lines.extend(wrap(fields, "  ", size.columns));
    }
    for problem in snapshot.problems().chain(frame.error.clone()) {
        let parts = words(&problem, Stylize::dark_yellow);
        lines.extend(wrap(parts, " ", size.columns));
    }
    lines.push(Line::new());
    if choice.help {
        for text in [HELP, KEYS_HELP] {
            lines.extend(wrap(words(text, Stylize::stylize), " ", size.columns));
        }
        return fit(lines, size.columns, size.rows);
    }
    let mut below = Vec::new();
    if size.rows >= ROWS_WITH_USERS {
        below.push(users(snapshot, size.columns));
    }
    if !size.is_pipe() && size.rows >= ROWS_WITH_KEYS {
        below.push(vec![vec![KEYS.to_owned().dim()]]);
    }
    below.retain(|part| !part.is_empty());
    // The table's header, and an empty line before each part below the table.
    let taken = lines.len() + 1 + below.iter().map(|part| part.len() + 1).sum::<usize>();
    let most = (!size.is_pipe()).then(|| size.rows.saturating_sub(taken));
    lines.extend(scored(snapshot, choice, size.columns, most));
    for part in below {
        lines.push(Line::new());
        lines.extend(part);
    }
    fit(lines, size.columns, size.rows)
}

fn head(frame: &Frame) -> Vec<Part> {
    let at = i64::try_from(frame.snapshot.observed_at_ms).ok();
    let at = at.and_then(|at| Timestamp::from_millisecond(at).ok());
    let at = at.map_or("-".into(), |at| at.strftime("%H:%M:%S UTC").to_string());
    vec![at.stylize(), ascii(&frame.source).stylize()]
}

fn node_fields(snapshot: &Snapshot) -> Vec<Part> {
    let node = &snapshot.node;
    let name = snapshot.node_name.as_deref().unwrap_or("node");
    let score = ascii(format!("{name}: {}", snapshot.score()).trim_end());
    let population = node.population.as_deref().unwrap_or("workloads");
    let candidate = snapshot.agent.as_ref().and_then(|agent| agent.publish.candidate.as_ref());
    let candidate = candidate.map(|vm| ascii(&format!("move first {}/{}", vm.namespace, vm.name)));
    let is_known = node.score.is_some() || node.contended > 0;
    let contended = if is_known { node.contended.to_string() } else { "-".into() };
    let fields = [
        ascii(&format!("{population} contended {contended}")),
        format!("busy {}", or_dash(node.utilization, percent)),
        format!("steal {}", or_dash(node.steal, percent)),
        format!("headroom {} CPUs", or_dash(node.headroom_cpus, cpus)),
    ];
    let fields = fields.into_iter().chain(candidate).map(Stylize::stylize);
    std::iter::once(by_level(score, node.score, snapshot.levels)).chain(fields).collect()
}

/// A share for each resource, in the colour of its level.
fn each(what: &str, shares: PerResource<Option<f64>>, levels: Levels) -> Vec<Part> {
    let part =
        |name: &str, share| by_level(format!("{name} {}", or_dash(share, percent)), share, levels);
    let PerResource { cpu, memory, io } = shares;
    vec![part(&format!("{what} CPU"), cpu), part("memory", memory), part("I/O", io)]
}

#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod tests;
