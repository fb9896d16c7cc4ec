//! Output of commands.

use std::io::{ErrorKind, Result, Write};

/// Columns as wide as their longest cell, as kubectl prints them. The first row is the header.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]], shown: &[usize]) -> String {
    let width = |column: &usize| {
        let cells = rows.iter().filter_map(|row| row.get(*column));
        (*column, cells.map(|cell| cell.chars().count()).max().unwrap_or_default())
    };
    let widths: Vec<(usize, usize)> = shown.iter().map(width).collect();
    let line = |row: &[String; N]| {
        let cell = |&(column, width)| row.get(column).map(|cell| format!("{cell:width$}"));
        let cells: Vec<String> = widths.iter().filter_map(cell).collect();
        format!("{}\n", cells.join("   ").trim_end())
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
