//! The terminal: drawn in place, redrawn when its size changes, and restored at the end.

use std::io::{self, Write};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, EventStream, KeyEventKind};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{execute, queue};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::choice::Choice;
use super::frame::{Frame, Size, lines};
use super::text::{length, render};

/// The terminal in raw mode. It is restored on drop: whenever the program ends, except by SIGKILL.
pub(super) struct Screen {
    out: io::Stdout,
    choice: Choice,
    is_coloured: bool,
}

impl Screen {
    pub(super) fn enter(is_coloured: bool) -> io::Result<Self> {
        enable_raw_mode()?;
        let mut screen = Self { out: io::stdout(), choice: Choice::default(), is_coloured };
        execute!(screen.out, EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Shows the latest frame until the user quits or the terminal is closed.
    pub(super) async fn show(&mut self, mut frames: watch::Receiver<Frame>) -> io::Result<()> {
        let mut events = EventStream::new();
        loop {
            self.draw(&frames.borrow_and_update())?;
            tokio::select! {
                // Who sends frames outlives this loop.
                _ = frames.changed() => {}
                event = events.next() => match event.transpose()? {
                    Some(Event::Resize(..)) => queue!(self.out, Clear(ClearType::All))?,
                    Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                        if self.choice.press(key) {
                            return Ok(());
                        }
                    }
                    Some(_) => {}
                    None => return Ok(()),
                },
            }
        }
    }

    /// Overwrites the last frame: clearing the screen first would flicker.
    fn draw(&mut self, frame: &Frame) -> io::Result<()> {
        // A terminal of unknown size reports 0.
        let known = |length: u16, usual| if length == 0 { usual } else { length };
        let (columns, rows) =
            size().map(|(columns, rows)| (known(columns, 80), known(rows, 24)))?;
        let size = Size { columns: columns.into(), rows: rows.into() };
        let mut lines = lines(frame, &mut self.choice, size).into_iter();
        for row in 0..rows {
            let line = lines.next().unwrap_or_default();
            let padding = " ".repeat(size.columns.saturating_sub(length(&line)));
            let text = render(&line, self.is_coloured);
            queue!(self.out, MoveTo(0, row), Print(text), Print(padding))?;
        }
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails if the terminal is closed.
        let _ = execute!(self.out, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}
