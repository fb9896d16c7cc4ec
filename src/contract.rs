//! What a Node object says of its pressure: the contract for schedulers, deschedulers and people.
//!
//! Values are small integers with a date. Whoever reads them has to look at the date, since an
//! agent that died leaves its last word behind:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::Duration;
//! use psi_agent::contract::{Freshness, NodePressure, Prefix};
//!
//! let annotations: BTreeMap<String, String> = [
//!     ("psi-agent.io/score", "40"),
//!     ("psi-agent.io/cpu", "40"),
//!     ("psi-agent.io/memory", "0"),
//!     ("psi-agent.io/observed-at", "2026-01-02T03:04:05Z"),
//!     ("psi-agent.io/basis", "psi/9"),
//! ]
//! .map(|(key, value)| (key.to_owned(), value.to_owned()))
//! .into();
//!
//! let pressure = NodePressure::from_annotations(&Prefix::default(), &annotations)?.expect("a score");
//! assert_eq!((pressure.score, pressure.memory, pressure.io), (40, Some(0), None));
//!
//! // A reader that knows the time may use a value of the last ten minutes.
//! let now = "2026-01-02T03:06:05Z".parse()?;
//! let age = Duration::from_secs(120);
//! assert_eq!(pressure.freshness(now, Duration::from_secs(600)), Freshness::Fresh { age });
//! assert_eq!(pressure.freshness(now, Duration::from_secs(60)), Freshness::Stale { age });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

/// Agents renew a value every five minutes: one this old has missed two times.
pub const STALE_AFTER: Duration = Duration::from_secs(600);

/// How far a node's clock may be ahead of the reader's.
const CLOCK_SKEW: Duration = Duration::from_secs(30);

/// The DNS subdomain that all keys begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(String);

/// A prefix that no key of the API server's can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no DNS subdomain: use lower-case letters, digits, dashes and dots, such as psi-agent.io"
)]
pub struct NotASubdomain(String);

impl Default for Prefix {
    fn default() -> Self {
        Self("psi-agent.io".into())
    }
}

impl Prefix {
    /// The subdomain, without the slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Prefix {
    type Err = NotASubdomain;

    fn from_str(text: &str) -> Result<Self, NotASubdomain> {
        let is_inner =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(is_inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if text.len() <= 253 && text.split('.').all(is_label) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotASubdomain(text.to_owned()))
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a key is about. All annotations together are written in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Annotation: the larger of CPU and memory, 0 to 100.
    Score,
    /// Annotation: CPU, 0 to 100.
    Cpu,
    /// Annotation: memory, 0 to 100.
    Memory,
    /// Annotation: I/O, 0 to 100.
    Io,
    /// Annotation: when it was so, RFC 3339 in UTC, to the second.
    ObservedAt,
    /// Annotation: how it was worked out.
    Basis,
    /// Label: `low`, `medium` or `high`.
    Pressure,
    /// Taint: at least `medium`.
    PressureMedium,
    /// Taint: `high`.
    PressureHigh,
}

impl Key {
    /// The annotations.
    pub const ANNOTATIONS: [Key; 6] =
        [Key::Score, Key::Cpu, Key::Memory, Key::Io, Key::ObservedAt, Key::Basis];
    /// The taints.
    pub const TAINTS: [Key; 2] = [Key::PressureMedium, Key::PressureHigh];

    /// The key as it stands on a Node.
    #[must_use]
    pub fn of(self, prefix: &Prefix) -> String {
        let name = match self {
            Key::Score => "score",
            Key::Cpu => "cpu",
            Key::Memory => "memory",
            Key::Io => "io",
            Key::ObservedAt => "observed-at",
            Key::Basis => "basis",
            Key::Pressure => "pressure",
            Key::PressureMedium => "pressure-medium",
            Key::PressureHigh => "pressure-high",
        };
        format!("{prefix}/{name}")
    }
}

/// A score in one word, with hysteresis: it neither comes nor goes with a short peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nobody waits much for the node.
    Low,
    /// VMs that can go elsewhere should start elsewhere.
    Medium,
    /// VMs are held back.
    High,
}

impl Level {
    /// The label's value.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Level::Low => "low",
            Level::Medium => "medium",
            Level::High => "high",
        }
    }
}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Level::Low, Level::Medium, Level::High]
            .into_iter()
            .find(|level| level.word() == text)
            .ok_or(())
    }
}

/// What a score was worked out from, and by which version of the estimator. Values of different
/// bases do not compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Pressure stall information.
    Psi(u32),
    /// The run delay of each thread.
    RunDelay(u32),
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Psi(version) => write!(f, "psi/{version}"),
            Basis::RunDelay(version) => write!(f, "run-delay/{version}"),
        }
    }
}

impl FromStr for Basis {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (source, version) = text.split_once('/').ok_or(())?;
        let version = version.parse().map_err(drop)?;
        match source {
            "psi" => Ok(Basis::Psi(version)),
            "run-delay" => Ok(Basis::RunDelay(version)),
            _ => Err(()),
        }
    }
}

/// A Node's pressure as an agent wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePressure {
    /// How much the node holds its VMs back, 0 (nobody waits for it) to 100.
    pub score: u8,
    /// CPU; `None` where it could not be read.
    pub cpu: Option<u8>,
    /// Memory; `None` where it could not be read.
    pub memory: Option<u8>,
    /// I/O; `None` where it could not be read. Not part of the score unless the agent was told so.
    pub io: Option<u8>,
    /// When it was so.
    pub observed_at: Timestamp,
    /// How it was worked out.
    pub basis: Basis,
}

/// Annotations that no agent writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// One that belongs to the others is not there.
    #[error("annotation {0} is missing beside the others")]
    Missing(String),
    /// One is there, and is not of its form.
    #[error("annotation {key} is {value:?}, expected {expected}")]
    Malformed {
        /// The annotation.
        key: String,
        /// What stands there.
        value: String,
        /// What should.
        expected: &'static str,
    },
}

/// How old a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Young enough to be used.
    Fresh {
        /// Time since it was observed.
        age: Duration,
    },
    /// Its agent has not renewed it: nothing is known of the node now.
    Stale {
        /// Time since it was observed.
        age: Duration,
    },
    /// Dated later than now: a clock is wrong, and so may the value be.
    Future,
}

impl NodePressure {
    /// Reads a Node's annotations; `None` where there is no value at all.
    ///
    /// # Errors
    /// [`ContractError`] where there is a part of one, or something else than an agent writes.
    pub fn from_annotations(
        prefix: &Prefix,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<Self>, ContractError> {
        if Key::ANNOTATIONS.iter().all(|key| !annotations.contains_key(&key.of(prefix))) {
            return Ok(None);
        }
        let required = |key: Key| {
            let key = key.of(prefix);
            annotations.get(&key).cloned().ok_or(ContractError::Missing(key))
        };
        let parsed = |key: Key, value: String| Annotation { key: key.of(prefix), value };
        let optional = |key: Key| {
            let value = annotations.get(&key.of(prefix)).cloned();
            value.map(|value| parsed(key, value).percentage()).transpose()
        };
        Ok(Some(Self {
            score: parsed(Key::Score, required(Key::Score)?).percentage()?,
            cpu: optional(Key::Cpu)?,
            memory: optional(Key::Memory)?,
            io: optional(Key::Io)?,
            observed_at: parsed(Key::ObservedAt, required(Key::ObservedAt)?)
                .read("a time in RFC 3339", |text| text.parse().ok())?,
            basis: parsed(Key::Basis, required(Key::Basis)?)
                .read("psi/N or run-delay/N", |text| text.parse().ok())?,
        }))
    }

    /// Whether the value may be used at `now`, when it must not be older than `at_most`.
    #[must_use]
    pub fn freshness(&self, now: Timestamp, at_most: Duration) -> Freshness {
        match Duration::try_from(now.duration_since(self.observed_at)) {
            Ok(age) if age <= at_most => Freshness::Fresh { age },
            Ok(age) => Freshness::Stale { age },
            Err(_) if self.observed_at.duration_since(now).unsigned_abs() <= CLOCK_SKEW => {
                Freshness::Fresh { age: Duration::ZERO }
            }
            Err(_) => Freshness::Future,
        }
    }
}

struct Annotation {
    key: String,
    value: String,
}

impl Annotation {
    fn read<T>(
        self,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ContractError> {
        parse(&self.value).ok_or(ContractError::Malformed {
            key: self.key,
            value: self.value,
            expected,
        })
    }

    fn percentage(self) -> Result<u8, ContractError> {
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        self.read("an integer from 0 to 100", |text| {
            text.parse().ok().filter(|&number| digits(text) && number <= 100)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn annotations(changes: &[(&str, Option<&str>)]) -> BTreeMap<String, String> {
        let whole = [
            ("score", "40"),
            ("cpu", "40"),
            ("memory", "5"),
            ("io", "0"),
            ("observed-at", "2026-01-02T03:04:05Z"),
            ("basis", "psi/9"),
        ];
        let mut annotations: BTreeMap<String, String> = whole
            .iter()
            .map(|(key, value)| (format!("psi-agent.io/{key}"), (*value).to_owned()))
            .collect();
        for (key, value) in changes {
            let key = format!("psi-agent.io/{key}");
            match value {
                Some(value) => annotations.insert(key, (*value).to_owned()),
                None => annotations.remove(&key),
            };
        }
        annotations
    }

    fn read(changes: &[(&str, Option<&str>)]) -> Result<Option<NodePressure>, ContractError> {
        NodePressure::from_annotations(&Prefix::default(), &annotations(changes))
    }

    #[test]
    fn a_node_without_own_keys_has_no_value() {
        let foreign: BTreeMap<String, String> =
            [("other.io/score".to_owned(), "40".to_owned())].into();
        assert_eq!(NodePressure::from_annotations(&Prefix::default(), &foreign), Ok(None));
    }

    #[test]
    fn what_could_not_be_read_is_absent_and_not_zero() {
        let pressure = read(&[("memory", None)]).unwrap().unwrap();
        assert_eq!((pressure.memory, pressure.io), (None, Some(0)));
    }

    #[test]
    fn half_a_value_and_foreign_forms_are_named() {
        for (change, expected) in [
            (("score", None), "annotation psi-agent.io/score is missing beside the others"),
            (
                ("score", Some("101")),
                "annotation psi-agent.io/score is \"101\", expected an integer from 0 to 100",
            ),
            (
                ("cpu", Some("+5")),
                "annotation psi-agent.io/cpu is \"+5\", expected an integer from 0 to 100",
            ),
            (
                ("score", Some("NaN")),
                "annotation psi-agent.io/score is \"NaN\", expected an integer from 0 to 100",
            ),
            (
                ("observed-at", Some("yesterday")),
                "annotation psi-agent.io/observed-at is \"yesterday\", expected a time in RFC 3339",
            ),
            (
                ("basis", Some("psi")),
                "annotation psi-agent.io/basis is \"psi\", expected psi/N or run-delay/N",
            ),
        ] {
            assert_eq!(read(&[change]).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn age_counts_from_the_observation_and_a_little_skew_is_forgiven() {
        let pressure = read(&[]).unwrap().unwrap();
        let minute = Duration::from_secs(60);
        let at = |time: &str| pressure.freshness(time.parse().unwrap(), minute);
        assert_eq!(at("2026-01-02T03:05:05Z"), Freshness::Fresh { age: minute });
        let older = minute + Duration::from_secs(1);
        assert_eq!(at("2026-01-02T03:05:06Z"), Freshness::Stale { age: older });
        assert_eq!(at("2026-01-02T03:03:50Z"), Freshness::Fresh { age: Duration::ZERO });
        assert_eq!(at("2026-01-02T03:03:00Z"), Freshness::Future);
    }

    #[test]
    fn a_prefix_is_a_dns_subdomain() {
        for right in ["psi-agent.io", "a", "x-1.example.com"] {
            assert!(right.parse::<Prefix>().is_ok(), "{right}");
        }
        let long = "a".repeat(64);
        for wrong in ["", "Psi.io", "a..b", "-a", "a-", "a/b", ".a", "a_b", "ä.io", &long] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_named(key in "score|cpu|observed-at|basis", value: String) {
            let _ = read(&[(&key, Some(&value))]);
        }

        #[test]
        fn a_basis_survives_printing(version: u32) {
            for basis in [Basis::Psi(version), Basis::RunDelay(version)] {
                prop_assert_eq!(basis.to_string().parse(), Ok(basis));
            }
        }
    }
}
