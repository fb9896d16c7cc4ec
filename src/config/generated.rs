//! Shell completions and manual pages, generated from the command line's definition.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use clap::Command;
use clap_complete::{Generator, Shell};
use clap_mangen::Man;

pub fn write_completions(program: Command, shell: Shell, out: &mut impl Write) -> io::Result<()> {
    let mut program = program.bin_name("psi-agent");
    program.build();
    unless_closed(shell.try_generate(&program, out))
}

/// Writes the pages of all commands to the directory, or the program's own page on `out`.
pub fn write_manual(
    program: Command,
    directory: Option<&Path>,
    out: &mut impl Write,
) -> io::Result<()> {
    match directory {
        Some(directory) => clap_mangen::generate_to(program, directory),
        None => unless_closed(Man::new(program).render(out)),
    }
}

/// A pipe that the reader closes early is not an error.
fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
