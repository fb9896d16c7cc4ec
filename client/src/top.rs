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

use crate::output::print;
use crate::snapshot::Snapshot;
use screen::Screen;
use table::{Choice, Frame, Size, lines};

/// Interval between two snapshots of an agent. Rates over a shorter window are noise.
pub const FETCH_INTERVAL: Duration = Duration::from_secs(2);

/// A source of snapshots.
pub trait Source {
    /// The next snapshot, and a short description of its origin.
    fn next(&mut self) -> impl Future<Output = anyhow::Result<(String, Snapshot)>>;

    /// Waits until the next snapshot can differ from the last one.
    fn pause(&self) -> impl Future<Output = ()>;
}

/// Shows the node until the user quits; prints one table if stdout is not a terminal.
pub async fn show(source: impl Source) -> anyhow::Result<()> {
    let frames = Frames { source, before: None };
    if stdout().is_terminal() { live(frames).await } else { piped(frames).await }
}

/// The lines that a terminal of this size shows for the later of two snapshots. Snapshots are not
/// trusted, since any server can send them.
pub fn lines_of(
    [before, latest]: [&[u8]; 2],
    columns: u16,
    rows: usize,
) -> Result<Vec<String>, serde_json::Error> {
    let before: Snapshot = serde_json::from_slice(before)?;
    let mut snapshot: Snapshot = serde_json::from_slice(latest)?;
    snapshot.compute_cpu_use(&before);
    let source = format!("agent {}", snapshot.version);
    let frame = Frame { source, snapshot, error: None };
    Ok(lines(&frame, Choice::default(), Size { columns: columns.into(), rows }))
}

/// The snapshots of a source, each with its rates since the one before.
struct Frames<S> {
    source: S,
    before: Option<Snapshot>,
}

impl<S: Source> Frames<S> {
    async fn next(&mut self) -> anyhow::Result<Frame> {
        let (source, mut snapshot) = self.source.next().await?;
        if let Some(before) = &self.before {
            snapshot.compute_cpu_use(before);
        }
        self.before = Some(snapshot.clone());
        Ok(Frame { source, snapshot, error: None })
    }
}

/// Prints the second of two frames, since rates need two.
async fn piped(mut frames: Frames<impl Source>) -> anyhow::Result<()> {
    frames.next().await?;
    frames.source.pause().await;
    let size = Size::of_pipe(std::env::var("COLUMNS").ok().as_deref());
    let mut text = lines(&frames.next().await?, Choice::default(), size).join("\n");
    text.push('\n');
    print(text, &mut stdout()).context("cannot write the table")
}

async fn live(mut frames: Frames<impl Source>) -> anyhow::Result<()> {
    // An error in the first frame is printed before the terminal is switched to raw mode.
    let (shown, latest) = watch::channel(frames.next().await?);
    let on = |kind| signal(kind).context("cannot listen for signals");
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let no_terminal = "cannot use the terminal: pipe the output to get one table";
    let mut screen = Screen::enter().context(no_terminal)?;
    tokio::select! {
        ended = screen.show(latest) => ended.context(no_terminal),
        () = follow(frames, &shown) => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Sends new frames forever. After an error, the last frame stays, with the error in it.
async fn follow(mut frames: Frames<impl Source>, shown: &watch::Sender<Frame>) {
    loop {
        frames.source.pause().await;
        match frames.next().await {
            Ok(frame) => {
                shown.send_replace(frame);
            }
            Err(error) => {
                shown.send_modify(|frame| frame.error = Some(format!("{error:#}")));
            }
        }
    }
}
