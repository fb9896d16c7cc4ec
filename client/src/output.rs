//! Output of commands.

use std::io::{ErrorKind, Result, Write};

/// The exit code of an invalid command line: EX_USAGE of sysexits.h.
pub const WRONG_USAGE: u8 = 64;

/// Columns as wide as their longest cell, as kubectl prints them. The first row is the header.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Writes all of a text. A pipe that the reader closes early is not an error.
pub fn print(text: impl AsRef<[u8]>, out: &mut impl Write) -> Result<()> {
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
