//! Parsers of flag values.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::client::flags::parse_duration;

/// One of `values`, typed as its `word`.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [T],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(move |&value| word(value))).try_map(move |typed| {
        let mut values = values.iter().copied();
        values.find(|&value| word(value) == typed).ok_or("not one of the possible values")
    })
}

/// A duration from `shortest` to `longest` seconds; `rule` is the error for others.
pub(super) fn duration_within(
    [shortest, longest]: [u64; 2],
    rule: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    let allowed = Duration::from_secs(shortest)..=Duration::from_secs(longest);
    move |text| {
        let duration = parse_duration(text)?;
        if allowed.contains(&duration) { Ok(duration) } else { Err(rule.into()) }
    }
}
