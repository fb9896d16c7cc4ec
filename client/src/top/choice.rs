//! What the user of a terminal chose by keys. Pure.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::COLUMNS;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Index of the column that rows are sorted by, the largest first.
    pub(super) sort: usize,
    /// The smallest first.
    pub(super) is_reversed: bool,
    /// Show the meaning of the columns in place of the table.
    pub(super) help: bool,
    /// Text in the names of the rows to show.
    pub(super) filter: String,
    pub(super) is_typing: bool,
    /// Rows above the first one that is shown. Drawing limits it to the last page.
    pub(super) above: usize,
    /// Rows that were drawn last.
    pub(super) page: usize,
}

impl Choice {
    /// Whether the user quits by this key. Any key closes the help.
    #[allow(clippy::wildcard_enum_match_arm, reason = "most keys do nothing")]
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        let was_help = std::mem::take(&mut self.help);
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc if self.is_filtered() => {
                (self.is_typing, self.filter) = Default::default()
            }
            KeyCode::Backspace if self.is_typing => _ = self.filter.pop(),
            KeyCode::Char(letter) if self.is_typing => self.filter.push(letter),
            KeyCode::Esc | KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('?') => self.help = !was_help,
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Up | KeyCode::Char('k') => self.above = self.above.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.above = self.above.saturating_add(1),
            KeyCode::PageUp => self.above = self.above.saturating_sub(self.page),
            KeyCode::PageDown => self.above = self.above.saturating_add(self.page),
            KeyCode::Home => self.above = 0,
            KeyCode::End => self.above = usize::MAX,
            KeyCode::Char(letter) => {
                let column = COLUMNS.iter().position(|column| column.key == letter);
                self.sort = column.unwrap_or(self.sort);
            }
            _ => {}
        }
        false
    }

    pub(super) fn is_filtered(&self) -> bool {
        self.is_typing || !self.filter.is_empty()
    }
}
