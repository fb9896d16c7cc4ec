//! Durations as flags take them.

use std::time::Duration;

/// `15m`, `1h30m`: more than nothing.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    let age = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    let age = Duration::try_from(age).map_err(|_| "an age is not negative".to_owned())?;
    if age.is_zero() { Err("an age is more than nothing".into()) } else { Ok(age) }
}
