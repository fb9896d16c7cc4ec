//! A reader of the text format, independent of the agent's writer.

use std::collections::{BTreeMap, BTreeSet};

/// The families of pressure, as the kubelet and cAdvisor name them.
pub(crate) const PRESSURE: [&str; 6] = [
    "container_pressure_cpu_stalled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
];

/// One series and its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
    /// Milliseconds since the epoch, where the line has them.
    pub(crate) timestamp_ms: Option<u64>,
}

/// What an exposition says of a family: its HELP and TYPE, and the names of its labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) help: String,
    pub(crate) kind: String,
    pub(crate) labels: Vec<String>,
}

/// All series of an exposition.
pub(crate) fn parse(text: &str) -> Vec<Series> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(parse_line).collect()
}

/// The number of series of the agent itself with the flags of `daemonset/base`, as in
/// docs/operations.md.
pub(crate) const OWN_SERIES_OF_THE_MANIFEST: usize = 35;

/// The series of the agent itself: neither of the score nor of what is scored.
pub(crate) fn own_series(series: &[Series]) -> Vec<&Series> {
    let of_score =
        ["psi_agent_node_", "psi_agent_vmi_", "psi_agent_workload_", "psi_agent_score_info"];
    let own = series.iter().filter(|series| {
        let begins = |prefix: &str| series.name.starts_with(prefix);
        (begins("process_") || begins("psi_agent_")) && !of_score.into_iter().any(begins)
    });
    own.collect()
}

/// All families of an exposition, by name. Each stands in one block, its series alike.
pub(crate) fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            let new = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), new).is_none(), "{name} stands twice");
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' ')) {
            kind.clone_into(&mut families.get_mut(name).expect("a HELP before").kind);
        }
    }
    let mut seen = BTreeSet::new();
    for series in parse(text) {
        // A histogram's parts have names of their own.
        let Some(family) = families.get_mut(&series.name) else { continue };
        let labels: Vec<String> = series.labels.into_keys().collect();
        if seen.insert(series.name.clone()) {
            family.labels = labels;
        } else {
            assert_eq!(family.labels, labels, "{} has series of two kinds", series.name);
        }
    }
    families
}

fn parse_line(line: &str) -> Series {
    let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a value"));
    let mut labels = BTreeMap::new();
    let mut numbers = rest;
    if let Some(mut left) = rest.strip_prefix('{') {
        while let Some((key, rest)) = left.split_once("=\"") {
            let (value, rest) = unquote(rest);
            labels.insert(key.to_owned(), value);
            left = rest.strip_prefix(',').unwrap_or(rest);
        }
        numbers = left.strip_prefix('}').expect("closed labels");
    }
    let mut numbers = numbers.split_ascii_whitespace();
    let value = numbers.next().and_then(|value| value.parse().ok());
    let value = value.unwrap_or_else(|| panic!("a number: {line}"));
    let timestamp_ms = numbers.next().map(|timestamp| timestamp.parse().expect("a timestamp"));
    Series { name: name.to_owned(), labels, value, timestamp_ms }
}

/// A quoted value without its opening quote, and what follows the closing one.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => match characters.next().expect("an escaped character").1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    panic!("an unclosed label value: {text}")
}

/// The value of the series with this name and `id`.
pub(crate) fn value_of(series: &[Series], name: &str, id: &str) -> Option<f64> {
    let same = |series: &&Series| {
        series.name == name && series.labels.get("id").is_some_and(|own| own == id)
    };
    series.iter().find(same).map(|series| series.value)
}

/// All `id`s that a family has.
pub(crate) fn ids<'a>(series: &'a [Series], name: &str) -> Vec<&'a str> {
    let of_family = series.iter().filter(|series| series.name == name);
    of_family.filter_map(|series| series.labels.get("id").map(String::as_str)).collect()
}
