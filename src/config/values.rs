//! Parsers of flag values.

use std::ops::RangeInclusive;
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

/// The allowed windows. A shorter one follows every burst; with a longer one, a node's score stays high
/// for hours.
const WINDOWS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(3_600);

pub(super) fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_duration(text)?;
    WINDOWS.contains(&window).then_some(window).ok_or_else(|| "a window is 10s to 1h long".into())
}

/// The allowed heartbeat intervals. The longer the interval, the longer the last value of a stopped
/// agent counts as fresh.
pub(super) const HEARTBEATS: RangeInclusive<Duration> =
    Duration::from_secs(300)..=Duration::from_secs(1_800);

pub(super) fn parse_heartbeat(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    let interval = HEARTBEATS.contains(&interval).then_some(interval);
    interval.ok_or_else(|| "a heartbeat interval is 5m to 30m".into())
}
