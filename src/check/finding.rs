//! The result of one check, as lines of the output.

/// What was found, or the problem.
pub(super) type Finding = Result<String, Problem>;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Whether the agent cannot run, or has nothing to export or no score. Else it runs with limitations.
    pub(super) is_fatal: bool,
    text: String,
    remedy: String,
}

pub(super) fn warn(text: impl ToString, remedy: impl ToString) -> Finding {
    Err(Problem { is_fatal: false, text: text.to_string(), remedy: remedy.to_string() })
}

pub(super) fn fail(text: impl ToString, remedy: impl ToString) -> Finding {
    Err(Problem { is_fatal: true, text: text.to_string(), remedy: remedy.to_string() })
}

/// The lines of a finding about one requirement.
pub(super) fn lines((about, finding): &(&str, Finding)) -> String {
    let line = |verdict, text| format!("{verdict:<5} {about:<10} {text}\n");
    match finding {
        Ok(text) => line("ok", text),
        Err(Problem { is_fatal, text, remedy }) => {
            let verdict = if *is_fatal { "FAIL" } else { "warn" };
            format!("{}{:<16} -> {remedy}\n", line(verdict, text), "")
        }
    }
}
