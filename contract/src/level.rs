//! Levels, as the label and the taints show them, and the thresholds at which they begin.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use strum::{EnumString, IntoStaticStr};

use super::keys::{Key, Prefix};

/// The score in one word. The agent applies hysteresis: a short peak does not change the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Level {
    /// Below the first threshold.
    Low,
    /// VMs are slowed down noticeably: place new VMs elsewhere if possible.
    Medium,
    /// VMs are slowed down severely.
    High,
}

impl Level {
    /// All but `Low`.
    pub const RAISED: [Self; 2] = [Level::Medium, Level::High];

    /// Demand, in CPUs, below which the CPU contention of a VM counts for this level only in part: a VM that is nearly
    /// idle waits for little, whatever the share. At the default thresholds, such VMs, which together want a CPU or
    /// more, reach the level with a CPU ready of 5 % or 10 %. VMware's rule of thumb is that users notice the
    /// first, and that the second is bad.
    #[must_use]
    pub fn full_demand(self) -> f64 {
        match self {
            Level::Low => 0.0,
            Level::Medium => 0.5,
            Level::High => 1.0 / 3.0,
        }
    }

    /// The label's value: `low`, `medium` or `high`.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The level that a Node's label shows; `None` without the label, or if it has another value.
    #[must_use]
    pub fn from_labels(prefix: &Prefix, labels: &BTreeMap<String, String>) -> Option<Self> {
        labels.get(&Key::Pressure.of(prefix))?.parse().ok()
    }

    /// The level that the keys of a Node's taints show: `Low` without a taint of the prefix, and so
    /// also if the agent does not write taints.
    pub fn from_taints<K: AsRef<str>>(prefix: &Prefix, keys: impl IntoIterator<Item = K>) -> Self {
        let [medium, high] = Key::TAINTS.map(|key| key.of(prefix));
        let levels = keys.into_iter().map(|key| match key.as_ref() {
            key if key == high => Level::High,
            key if key == medium => Level::Medium,
            _ => Level::Low,
        });
        levels.max().unwrap_or(Level::Low)
    }
}

/// Scores at which levels begin, in points of the score, 1 to 100. Default: 10 and 30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    medium: u8,
    high: u8,
}

/// The text is not a pair of thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("levels are two numbers from 1 to 100, the smaller first, such as 10,30")]
pub struct NotThresholds;

impl Thresholds {
    /// The score at which `medium` begins.
    #[must_use]
    pub fn medium(&self) -> u8 {
        self.medium
    }

    /// The score at which `high` begins.
    #[must_use]
    pub fn high(&self) -> u8 {
        self.high
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { medium: 10, high: 30 }
    }
}

impl FromStr for Thresholds {
    type Err = NotThresholds;

    fn from_str(text: &str) -> Result<Self, NotThresholds> {
        let (medium, high) = text.split_once(',').ok_or(NotThresholds)?;
        let points = |text: &str| text.trim().parse::<u8>().ok().filter(|n| (1..=100).contains(n));
        match (points(medium), points(high)) {
            (Some(medium), Some(high)) if medium < high => Ok(Self { medium, high }),
            _ => Err(NotThresholds),
        }
    }
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.medium, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_two_rising_numbers() {
        assert_eq!("10,30".parse(), Ok(Thresholds::default()));
        assert_eq!(Thresholds::default().to_string(), "10,30");
        for wrong in ["", "10", "30,10", "10,10", "0,5", "10,101", "a,b", "10,30,50", "-1,5"] {
            assert_eq!(wrong.parse::<Thresholds>(), Err(NotThresholds), "{wrong}");
        }
    }

    #[test]
    fn a_level_is_read_from_the_label_and_from_taints() {
        let prefix = Prefix::default();
        let label = |key: &str, value: &str| {
            Level::from_labels(&prefix, &[(key.to_owned(), value.to_owned())].into())
        };
        let own = "psi-agent.io/pressure";
        assert_eq!([label(own, "medium"), label(own, "x")], [Some(Level::Medium), None]);
        assert_eq!(label("other", "high"), None);
        let taints = |keys: &[&str]| Level::from_taints(&prefix, keys);
        let [medium, high] = ["psi-agent.io/pressure-medium", "psi-agent.io/pressure-high"];
        assert_eq!(taints(&["other"]), Level::Low);
        assert_eq!(taints(&[medium, "other"]), Level::Medium);
        assert_eq!(taints(&[high]), Level::High);
        assert_eq!(taints(&[high, medium]), Level::High);
    }
}
