//! The bridge's own flags.

use std::time::Duration;

use clap::Args;

/// The shortest and the longest window. A shorter one follows every burst; with a longer one, a
/// node's score stays high for hours.
const WINDOWS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3_600)];

/// The bridge's own settings.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Bridge {
    /// Window over which each node's score is averaged, 10s to 1h
    #[arg(long, env = "PSI_AGENT_WINDOW", value_parser = parse_window, default_value = "10m")]
    pub window: Duration,

    /// Label selector of Nodes, in kubectl's syntax; empty for all Nodes
    #[arg(
        long,
        env = "PSI_AGENT_NODE_SELECTOR",
        value_name = "SELECTOR",
        default_value = "kubevirt.io/schedulable=true"
    )]
    pub node_selector: String,

    /// Age from which a value is ignored: twice the agents' --heartbeat-interval
    #[arg(
        long,
        env = "PSI_AGENT_STALE_AFTER",
        value_name = "AGE",
        value_parser = parse_age,
        default_value = "10m"
    )]
    pub stale_after: Duration,
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_age(text)?;
    let [shortest, longest] = WINDOWS;
    if (shortest..=longest).contains(&window) {
        Ok(window)
    } else {
        Err("a window is 10s to 1h long".into())
    }
}

/// `15m`, `1h30m`: positive.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    let age = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    let age = Duration::try_from(age).ok().filter(|age| !age.is_zero());
    age.ok_or_else(|| "an age must be positive".into())
}
