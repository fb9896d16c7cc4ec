//! Output of commands.

use std::io::{ErrorKind, Result, Write};

/// Writes all of a text. A pipe that the reader closes early is not an error.
pub fn print(text: impl AsRef<[u8]>, out: &mut impl Write) -> Result<()> {
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
