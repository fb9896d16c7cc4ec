//! The result of one check of this host.

/// What was found, or the problem.
pub type Finding<T = String> = Result<T, Problem>;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {remedy}")]
pub struct Problem {
    /// Whether the agent cannot run, or has nothing to export or no score. Else it runs with limitations.
    pub is_fatal: bool,
    pub text: String,
    pub remedy: String,
}

pub fn warn<T>(text: impl ToString, remedy: impl ToString) -> Finding<T> {
    Err(Problem { is_fatal: false, text: text.to_string(), remedy: remedy.to_string() })
}

pub fn fail<T>(text: impl ToString, remedy: impl ToString) -> Finding<T> {
    Err(Problem { is_fatal: true, text: text.to_string(), remedy: remedy.to_string() })
}
