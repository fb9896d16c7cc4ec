//! Coloured lines that fit a terminal. Pure. Every line is printable ASCII, so that no name can move the
//! cursor.

use crossterm::style::{StyledContent, Stylize};

use crate::snapshot::Levels;

/// A part of a line, in one colour.
pub(super) type Part = StyledContent<String>;

/// Its parts, one after another.
pub(super) type Line = Vec<Part>;

/// In the colour of a share's level, if both are known.
pub(super) fn by_level(text: String, share: Option<f64>, levels: Levels) -> Part {
    match share.filter(|_| levels.high > 0.0) {
        None => text.stylize(),
        Some(share) if share >= levels.high => text.dark_red(),
        Some(share) if share >= levels.medium => text.dark_yellow(),
        Some(_) => text.dark_green(),
    }
}

/// A line as text, with escape sequences if it is to be coloured.
pub(super) fn render(line: &[Part], is_coloured: bool) -> String {
    let text = |part: &Part| if is_coloured { part.to_string() } else { part.content().clone() };
    line.iter().map(text).collect()
}

pub(super) fn length(line: &[Part]) -> usize {
    line.iter().map(|part| part.content().len()).sum()
}

/// The first lines, and of each what fits.
pub(super) fn fit(lines: Vec<Line>, columns: usize, rows: usize) -> Vec<Line> {
    let cut = |line: Line| {
        let mut left = columns;
        let parts = line.into_iter().map(|part| {
            let kept: String = part.content().chars().take(left).collect();
            left -= kept.len();
            Part::new(*part.style(), kept)
        });
        parts.collect()
    };
    lines.into_iter().take(rows).map(cut).collect()
}

/// Lines of as many parts as fit.
pub(super) fn wrap(parts: Vec<Part>, gap: &str, columns: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if length(line) + gap.len() + part.content().len() <= columns => {
                line.extend([gap.to_owned().stylize(), part]);
            }
            _ => lines.push(vec![part]),
        }
    }
    lines
}

/// The words of a sentence, in one style.
pub(super) fn words(text: &str, style: impl Fn(String) -> Part) -> Vec<Part> {
    text.split_whitespace().map(|word| style(ascii(word))).collect()
}

/// A name with all but printable ASCII escaped: control characters could control the terminal, and
/// other characters have an unknown width.
pub(super) fn ascii(text: &str) -> String {
    let escaped = |letter: char| match letter {
        ' '..='~' => letter.to_string(),
        _ => letter.escape_unicode().to_string(),
    };
    text.chars().map(escaped).collect()
}

/// The start and the end of a name, since similar names differ at the end.
pub(super) fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    let Some(kept) = width.checked_sub(2).filter(|_| length > width) else {
        return name.chars().take(width).collect();
    };
    let end = kept - kept / 2;
    let start = name.chars().take(kept / 2);
    start.chain("..".chars()).chain(name.chars().skip(length - end)).collect()
}

/// A number of CPUs.
pub(super) fn cpus(cpus: f64) -> String {
    format!("{cpus:.2}")
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// A value, or a dash.
pub(super) fn or_dash(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or("-".into(), show)
}
