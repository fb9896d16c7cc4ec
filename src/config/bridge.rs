//! What the bridge alone is told.

use std::time::Duration;

use clap::Args;

use super::flags::parse_age;

/// The shortest and the longest window. A shorter one follows every burst; over a longer one, a node
/// counts as short for hours after it was.
const WINDOWS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3_600)];

/// What the bridge alone is told.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Bridge {
    /// Over how long each node's score is averaged, 10s to 1h
    #[arg(long, env = "PSI_AGENT_WINDOW", value_parser = parse_window, default_value = "10m")]
    pub window: Duration,

    /// Which Nodes, by their labels, in kubectl's syntax; all of them if empty
    #[arg(
        long,
        env = "PSI_AGENT_NODE_SELECTOR",
        value_name = "SELECTOR",
        default_value = "kubevirt.io/schedulable=true"
    )]
    pub node_selector: String,

    /// How old a value may be; agents renew theirs every five minutes
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
