//! `top`: a node and what is scored on it by contention, live in a terminal, or as one table.

mod choice;
mod columns;
pub mod connection;
mod frame;
mod screen;
mod table;
mod text;
mod view;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use anyhow::Context;
use clap::ColorChoice;
use crossterm::style::force_color_output;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::output::print;
use crate::snapshot::Snapshot;
use choice::Choice;
pub use frame::Size;
use frame::{Frame, lines};
use screen::Screen;
use text::render;

/// Interval between two snapshots of an agent. Rates over a shorter window are noise.
pub const FETCH_INTERVAL: Duration = Duration::from_secs(2);

/// So many of them, of a node that is recorded, span more than a tick.
const MOST_FETCHES: u32 = 3;

/// A snapshot, and a short description of its origin.
pub type Described = (String, Snapshot);

/// Shows the node until the user quits; prints one table if stdout is not a terminal. `next` waits for
/// the next snapshot.
pub async fn show(
    color: ColorChoice,
    next: impl AsyncFnMut() -> anyhow::Result<Described>,
) -> anyhow::Result<()> {
    let is_terminal = stdout().is_terminal();
    let variable = |name| std::env::var(name).unwrap_or_default();
    let is_coloured = is_coloured(color, is_terminal, &variable("NO_COLOR"), &variable("TERM"));
    // crossterm itself reads NO_COLOR.
    force_color_output(is_coloured);
    if is_terminal { live(next, is_coloured).await } else { piped(next, is_coloured).await }
}

/// Whether the output has colours: <https://no-color.org> describes the variable.
fn is_coloured(color: ColorChoice, is_terminal: bool, no_color: &str, term: &str) -> bool {
    match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && no_color.is_empty() && term != "dumb",
    }
}

/// The lines that a terminal of this size shows for the later of two snapshots. Snapshots are not
/// trusted, since any server can send them.
pub fn table(before: &Snapshot, latest: Described, size: Size, is_coloured: bool) -> Vec<String> {
    let lines = lines(&Frame::since(before, latest), &mut Choice::default(), size);
    lines.iter().map(|line| render(line, is_coloured)).collect()
}

/// Prints the second of two frames, since rates need two. `demo` answers with the same for a tick.
async fn piped(
    mut next: impl AsyncFnMut() -> anyhow::Result<Described>,
    is_coloured: bool,
) -> anyhow::Result<()> {
    let (_, before) = next().await?;
    let mut fetches = 0;
    let latest = loop {
        sleep(FETCH_INTERVAL).await;
        let latest = next().await?;
        fetches += 1;
        if latest.1.observed_at_ms != before.observed_at_ms || fetches == MOST_FETCHES {
            break latest;
        }
    };
    let size = Size::of_pipe(std::env::var("COLUMNS").ok().as_deref());
    let lines = table(&before, latest, size, is_coloured);
    print(lines.join("\n") + "\n", &mut stdout()).context("cannot write the table")
}

async fn live(
    mut next: impl AsyncFnMut() -> anyhow::Result<Described>,
    is_coloured: bool,
) -> anyhow::Result<()> {
    // An error in the first frame is printed before the terminal is switched to raw mode.
    let (source, snapshot) = next().await?;
    let (shown, latest) = watch::channel(Frame { source, snapshot, error: None });
    let on = |kind| signal(kind).context("cannot listen for signals");
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let no_terminal = "cannot use the terminal: pipe the output to get one table";
    let mut screen = Screen::enter(is_coloured).context(no_terminal)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_a_flag_or_a_variable_says_otherwise() {
        let auto = ColorChoice::Auto;
        assert!(is_coloured(auto, true, "", "xterm"));
        assert!(!is_coloured(auto, false, "", "xterm"));
        assert!(!is_coloured(auto, true, "1", "xterm"));
        assert!(!is_coloured(auto, true, "", "dumb"));
        assert!(is_coloured(ColorChoice::Always, false, "1", "dumb"));
        assert!(!is_coloured(ColorChoice::Never, true, "", "xterm"));
    }
}
