//! `psi-agent top`: the node and its VMs by contention, live in a terminal, or as one table.

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
use source::{FETCH_INTERVAL, Source};
use table::{Choice, Frame, Size, lines};
use view::View;

/// Shows the node until the user quits; prints one table if stdout is not a terminal.
pub fn top(config: &Config) -> anyhow::Result<()> {
    if stdout().is_terminal() {
        block_on(live(config))
    } else {
        block_on(piped(config, FETCH_INTERVAL))
    }
}

/// The lines that a terminal of this size shows of the later of two snapshots, which any server can
/// have sent.
pub fn lines_of(
    [before, latest]: [&[u8]; 2],
    columns: usize,
    rows: usize,
) -> Result<Vec<String>, serde_json::Error> {
    let (before, mut view) = (View::parse(before)?, View::parse(latest)?);
    view.compute_cpu_use(&before);
    let source = format!("agent {}", view.version);
    let frame = Frame { source, view, error: None };
    Ok(lines(&frame, Choice::default(), Size { columns, rows }))
}

/// Prints the second of two frames, since rates need two. A closed pipe is no error.
async fn piped(config: &Config, apart: Duration) -> anyhow::Result<()> {
    let mut source = Source::new(config, apart);
    source.next().await?;
    source.pause().await;
    let size = Size::of_pipe(std::env::var("COLUMNS").ok().as_deref());
    let mut text = lines(&source.next().await?, Choice::default(), size).join("\n");
    text.push('\n');
    let mut out = stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the table"),
    }
}

async fn live(config: &Config) -> anyhow::Result<()> {
    let mut source = Source::new(config, TICK_INTERVAL);
    // An error of the first frame is printed before the terminal is taken over.
    let (frames, latest) = watch::channel(source.next().await?);
    let on = |kind| signal(kind).context("cannot listen for signals");
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let no_terminal = "cannot use the terminal: pipe the output to get one table";
    let mut screen = Screen::enter().context(no_terminal)?;
    tokio::select! {
        ended = screen.show(latest) => ended.context(no_terminal),
        () = follow(source, &frames) => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Sends new frames forever. After an error, the last frame stays, with the error in it.
async fn follow(mut source: Source, frames: &watch::Sender<Frame>) {
    loop {
        source.pause().await;
        match source.next().await {
            Ok(frame) => {
                frames.send_replace(frame);
            }
            Err(error) => {
                frames.send_modify(|frame| frame.error = Some(format!("{error:#}")));
            }
        }
    }
}
