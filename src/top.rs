//! `psi-agent top`: the node and its VMs by what they wait for, in a terminal; where stdout is
//! none, once.

mod client;
mod screen;
mod source;
mod table;
mod view;

use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cluster::block_on;
use crate::config::Config;
use crate::sampler::TICK_INTERVAL;
use screen::Screen;
use source::{ASK_INTERVAL, Source};
use table::{Shown, Size, lines};

/// Shows the node until somebody quits; on anything but a terminal, prints one table.
///
/// # Errors
/// What does not let it see anything, each a sentence for people; a failing terminal or stdout.
pub fn top(config: &Config) -> anyhow::Result<()> {
    if stdout().is_terminal() {
        block_on(live(config))
    } else {
        block_on(piped(config, ASK_INTERVAL))
    }
}

/// Two looks, since rates are between two, and the later of them on stdout. A reader that goes away
/// is no error.
async fn piped(config: &Config, apart: Duration) -> anyhow::Result<()> {
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

async fn live(config: &Config) -> anyhow::Result<()> {
    let mut source = Source::new(config, TICK_INTERVAL);
    // What does not work at all is said on the terminal as it was.
    let (newest, seen) = watch::channel(source.look().await?);
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let no_terminal = "cannot use the terminal: pipe the output to have one table";
    let mut screen = Screen::enter().context(no_terminal)?;
    tokio::select! {
        shown = screen.show(seen) => shown.context(no_terminal),
        () = follow(source, &newest) => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Looks for ever. When a look fails, the one before stays, with the reason beside it.
async fn follow(mut source: Source, newest: &watch::Sender<Shown>) {
    loop {
        source.pause().await;
        match source.look().await {
            Ok(shown) => {
                newest.send_replace(shown);
            }
            Err(error) => {
                newest.send_modify(|shown| shown.trouble = Some(format!("{error:#}")));
            }
        }
    }
}
