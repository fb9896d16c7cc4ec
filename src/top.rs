//! `psi-agent top`: the node and its VMs by what they wait for, as a table.

mod client;
mod source;
mod table;
mod view;

use std::io::{ErrorKind, Write, stdout};
use std::time::Duration;

use anyhow::Context;

use crate::cluster::event_loop;
use crate::config::Config;
use source::{ASK_INTERVAL, Source};
use table::{Size, lines};

/// Prints one table.
///
/// # Errors
/// What does not let it see anything, each a sentence for people; a failing stdout.
pub fn top(config: &Config) -> anyhow::Result<()> {
    let runtime = event_loop()?;
    let ended = runtime.block_on(once(config, ASK_INTERVAL));
    // A kernel file that blocks holds nobody back who wants to leave.
    runtime.shutdown_background();
    ended
}

/// Two looks, since rates are between two, and the later of them on stdout. A reader that goes away
/// is no error.
async fn once(config: &Config, apart: Duration) -> anyhow::Result<()> {
    let mut source = Source::new(config, apart);
    source.look().await?;
    source.pause().await;
    let mut text = lines(&source.look().await?, Size::UNBOUNDED).join("\n");
    text.push('\n');
    let mut out = stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the table"),
    }
}
