//! The terminal: drawn in place, redrawn when its size changes, and restored at the end.

use std::io::{self, Write};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{execute, queue};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::table::{Choice, Frame, Size, Sort, lines};

/// The terminal in raw mode. It is restored on drop: whenever the program ends, except by SIGKILL.
pub(super) struct Screen {
    out: io::Stdout,
    choice: Choice,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        let mut screen = Self { out: io::stdout(), choice: Choice::default() };
        execute!(screen.out, EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Shows the latest frame until the user quits or the terminal is closed.
    pub(super) async fn show(&mut self, mut frames: watch::Receiver<Frame>) -> io::Result<()> {
        let mut events = EventStream::new();
        loop {
            self.draw(&frames.borrow_and_update())?;
            tokio::select! {
                changed = frames.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                event = events.next() => match event {
                    Some(Ok(Event::Resize(..))) => {
                        queue!(self.out, Clear(ClearType::All))?;
                    }
                    Some(Ok(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                        if quits(key) {
                            return Ok(());
                        }
                        self.choice = chosen(self.choice, key.code);
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Overwrites the last frame: clearing the screen first would flicker.
    fn draw(&mut self, frame: &Frame) -> io::Result<()> {
        let (columns, rows) = size()?;
        let size = Size { columns: columns.into(), rows: rows.into() };
        let mut lines = lines(frame, self.choice, size).into_iter();
        for row in 0..rows {
            let line = lines.next().unwrap_or_default();
            let padded = format!("{line:width$}", width = size.columns);
            queue!(self.out, MoveTo(0, row), Print(padded))?;
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

/// The choice after a key press. Any key closes the help.
fn chosen(before: Choice, key: KeyCode) -> Choice {
    let letter = key.as_char();
    let sort = match letter {
        Some('c') => Sort::Contention,
        Some('u') => Sort::Cpus,
        Some('m') => Sort::Memory,
        _ => before.sort,
    };
    Choice { sort, help: letter == Some('?') && !before.help }
}

fn quits(key: KeyEvent) -> bool {
    let interrupts =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc) || interrupts
}
