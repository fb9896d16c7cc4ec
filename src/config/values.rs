//! Parsers of flag values.

use std::time::Duration;

use crate::client::flags::parse_duration;

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
