//! The commands and flags of the binary, as rows of the tables in docs/reference.md.

use std::collections::{BTreeMap, BTreeSet};

use clap::Arg;
use psi_agent::config::Command;

/// All rows. A flag with the same default and help for several commands is one row.
pub(crate) fn rows_of_flags() -> BTreeSet<String> {
    let mut rows: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut facts = BTreeSet::new();
    for command in Command::program().get_subcommands() {
        let positional = command.get_positionals().map(|argument| {
            let id = argument.get_id().as_str().to_uppercase();
            if argument.is_required_set() { format!(" {id}") } else { format!(" [{id}]") }
        });
        let (name, positional) = (command.get_name(), positional.collect::<String>());
        let about = command.get_about().unwrap();
        facts.insert(format!("| `psi-agent {name}{positional}` | {about} |"));
        for row in command.get_arguments().filter_map(row_of_flag) {
            rows.entry(row).or_default().push(name.to_owned());
        }
    }
    let rows = rows.into_iter().map(|((before, after), commands)| {
        format!("{before} | {} | {after} |", commands.join(", "))
    });
    facts.extend(rows);
    facts
}

/// The cells before and after that of the commands.
fn row_of_flag(flag: &Arg) -> Option<(String, String)> {
    let long = flag.get_long().filter(|long| !["help", "version"].contains(long))?;
    let takes_value = flag.get_action().takes_values();
    let value =
        flag.get_value_names().filter(|_| takes_value).map(|names| format!(" {}", names[0]));
    let variable = flag.get_env().map(|name| format!("`{}`", name.display()));
    let help = flag.get_help().unwrap().to_string();
    let (help, default) = help.split_once(" [default: ").unwrap_or((&help, ""));
    let default = match flag.get_default_values() {
        [typed] if takes_value => format!("`{}`", typed.display()),
        _ => default.trim_end_matches(']').to_owned(),
    };
    let long_help = flag.get_long_help().map(ToString::to_string).unwrap_or_default();
    let details = long_help.split_once("\n\n").map(|(_, details)| format!(". {details}"));
    let sentences = format!("{help}{}", details.unwrap_or_default());
    // The possible values, in one line or each with its help in a line of its own.
    let values = flag.get_possible_values();
    let values = if values.iter().any(|value| value.get_help().is_some()) {
        let lines = values
            .iter()
            .map(|value| format!("<br>`{}`: {}", value.get_name(), value.get_help().unwrap()));
        lines.collect()
    } else if values.is_empty() || !takes_value {
        String::new()
    } else {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        format!(" Values: `{}`.", names.join("`, `"))
    };
    let meaning = format!("{}.{values}", sentences.trim_end_matches('.'));
    let meaning = meaning.replace('\n', " ").replace('|', "\\|").replace('*', "\\*");
    let [value, variable] = [value, variable].map(Option::unwrap_or_default);
    Some((format!("| `--{long}{value}` | {variable} | {default}"), meaning))
}
