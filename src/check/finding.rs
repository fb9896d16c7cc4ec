//! The result of one check, as lines of the output.

use std::fmt::{self, Display, Formatter};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    /// The agent runs, with limitations.
    Warn,
    /// The agent cannot run, or has nothing to export or no score.
    Fail,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    about: &'static str,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(about: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, about, text: text.into(), remedy: None }
    }

    pub(super) fn warn(
        about: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Warn, about, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(
        about: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(about, text, remedy) }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        writeln!(f, "{verdict:<5} {:<10} {}", self.about, self.text)?;
        match &self.remedy {
            Some(remedy) => writeln!(f, "{:<16} -> {remedy}", ""),
            None => Ok(()),
        }
    }
}
