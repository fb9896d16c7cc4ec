//! `top`: a node and what is scored on it by contention, live in a terminal, or as one table.

pub mod connection;
mod screen;
mod table;
mod view;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::output::print;
use crate::snapshot::Snapshot;
use screen::Screen;
pub use table::Size;
use table::{Choice, Frame, lines};

/// Interval between two snapshots of an agent. Rates over a shorter window are noise.
pub const FETCH_INTERVAL: Duration = Duration::from_secs(2);

/// A snapshot, and a short description of its origin.
pub type Described = (String, Snapshot);

/// Shows the node until the user quits; prints one table if stdout is not a terminal. `next` waits for
/// the next snapshot.
pub async fn show(next: impl AsyncFnMut() -> anyhow::Result<Described>) -> anyhow::Result<()> {
    if stdout().is_terminal() { live(next).await } else { piped(next).await }
}

/// The lines that a terminal of this size shows for the later of two snapshots. Snapshots are not
/// trusted, since any server can send them.
pub fn lines_of(before: &Snapshot, latest: Described, size: Size) -> Vec<String> {
    lines(&Frame::since(before, latest), Choice::default(), size)
}

/// Prints the second of two frames, since rates need two.
async fn piped(mut next: impl AsyncFnMut() -> anyhow::Result<Described>) -> anyhow::Result<()> {
    let (_, before) = next().await?;
    sleep(FETCH_INTERVAL).await;
    let size = Size::of_pipe(std::env::var("COLUMNS").ok().as_deref());
    let mut text = lines_of(&before, next().await?, size).join("\n");
    text.push('\n');
    print(text, &mut stdout()).context("cannot write the table")
}

async fn live(mut next: impl AsyncFnMut() -> anyhow::Result<Described>) -> anyhow::Result<()> {
    // An error in the first frame is printed before the terminal is switched to raw mode.
    let (source, snapshot) = next().await?;
    let (shown, latest) = watch::channel(Frame { source, snapshot, error: None });
    let on = |kind| signal(kind).context("cannot listen for signals");
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let no_terminal = "cannot use the terminal: pipe the output to get one table";
    let mut screen = Screen::enter().context(no_terminal)?;
    tokio::select! {
        ended = screen.show(latest) => ended.context(no_terminal),
        () = follow(next, &shown) => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Sends new frames forever. After an error, the last frame stays, with the error in it.
async fn follow(
    mut next: impl AsyncFnMut() -> anyhow::Result<Described>,
    shown: &watch::Sender<Frame>,
) {
    loop {
        sleep(FETCH_INTERVAL).await;
        let latest = next().await;
        shown.send_modify(|frame| match latest {
            Ok(latest) => *frame = Frame::since(&frame.snapshot, latest),
            Err(error) => frame.error = Some(format!("{error:#}")),
        });
    }
}
