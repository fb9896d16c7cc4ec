//! A reader of the text format, independent of the agent's writer.

use std::collections::{BTreeMap, BTreeSet};

/// One series and its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// All series of an exposition.
pub(crate) fn parse(text: &str) -> Vec<Series> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> Series {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels_left = labels.strip_suffix('}').expect("closed labels");
    let mut labels = BTreeMap::new();
    while let Some((key, rest)) = labels_left.split_once("=\"") {
        let (value, rest) = unquote(rest);
        labels.insert(key.to_owned(), value);
        labels_left = rest.strip_prefix(',').unwrap_or(rest);
    }
    let value = value.parse().unwrap_or_else(|_| panic!("a number: {line}"));
    Series { name: name.to_owned(), labels, value }
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

/// What is said of a family, and the names of its labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) labels: BTreeSet<String>,
}

/// All families of an exposition, with every label that any of their series has.
pub(crate) fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        }
    }
    for series in parse(text) {
        if let Some(family) = families.get_mut(&series.name) {
            family.labels.extend(series.labels.into_keys());
        }
    }
    families
}
