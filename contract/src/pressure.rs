//! A Node's pressure and its age.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

use super::annotations::{Annotations, ContractError, whole};
use super::keys::{Key, Prefix};

/// Default age from which a value is stale, 10 min. By default, agents renew a value every 5 min,
/// so a stale value has missed two renewals.
pub const STALE_AFTER: Duration = Duration::from_secs(600);

/// How far a node's clock may be ahead of the reader's.
const CLOCK_SKEW: Duration = Duration::from_secs(30);

/// Source of the CPU wait time and version of the estimator. Compare values of the same basis only.
/// Bases are ordered: PSI before run delay, and older versions before newer ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum Basis {
    /// Estimated from pressure stall information: `psi/N`.
    #[strum(to_string = "psi/{0}")]
    Psi(u32),
    /// Measured as the run delay of vCPU threads: `run-delay/N`.
    #[strum(to_string = "run-delay/{0}")]
    RunDelay(u32),
}

impl Basis {
    /// The most common basis. Of equally common ones, the last in their order.
    #[must_use]
    pub fn most_common(bases: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut counts: BTreeMap<Self, usize> = BTreeMap::new();
        for basis in bases {
            *counts.entry(basis).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(basis, count)| (*count, *basis)).map(|(basis, _)| basis)
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

/// A Node's pressure, as its agent published it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePressure {
    /// How much contention on the node slows its VMs down, 0 (not at all) to 100.
    pub score: u8,
    /// CPU contention, 0 to 100; `None` where it could not be measured.
    pub cpu: Option<u8>,
    /// Memory contention, 0 to 100; `None` where it could not be measured.
    pub memory: Option<u8>,
    /// I/O contention, 0 to 100; `None` where it could not be measured. Not part of the score by
    /// default.
    pub io: Option<u8>,
    /// The time of measurement.
    pub observed_at: Timestamp,
    /// Source and version of the estimator.
    pub basis: Basis,
}

/// Whether a value may be used, and its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Young enough to be used.
    Fresh {
        /// Time since the measurement.
        age: Duration,
    },
    /// Not renewed in time: treat the node's pressure as unknown.
    Stale {
        /// Time since the measurement.
        age: Duration,
    },
    /// Dated later than now: the clock of the node or of the reader is wrong.
    Future,
}

impl NodePressure {
    /// Parses a Node's annotations; `None` if the Node has none of [`Key::OF_SCORE`] with this
    /// prefix.
    ///
    /// # Errors
    /// [`ContractError`] if a required annotation is missing or one is malformed.
    pub fn from_annotations(
        prefix: &Prefix,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<Self>, ContractError> {
        let Some(own) = Annotations::of(prefix, &Key::OF_SCORE, annotations) else {
            return Ok(None);
        };
        let points = |text: &str| whole(text).filter(|points: &u8| *points <= 100);
        let expected = "an integer from 0 to 100";
        Ok(Some(Self {
            score: own.required(Key::Score, expected, points)?,
            cpu: own.optional(Key::Cpu, expected, points)?,
            memory: own.optional(Key::Memory, expected, points)?,
            io: own.optional(Key::Io, expected, points)?,
            observed_at: own
                .required(Key::ObservedAt, "a time in RFC 3339", |text| text.parse().ok())?,
            basis: own.required(Key::Basis, "psi/N or run-delay/N", |text| text.parse().ok())?,
        }))
    }

    /// Whether the value may be used at `now` by a reader that accepts an age of `at_most`. A date
    /// up to 30 s ahead counts as `now`, since clocks differ.
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
            ("basis", "psi/8"),
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
    fn a_node_without_own_annotations_has_no_value() {
        let foreign: BTreeMap<String, String> =
            [("other.io/score".to_owned(), "40".to_owned())].into();
        assert_eq!(NodePressure::from_annotations(&Prefix::default(), &foreign), Ok(None));
    }

    #[test]
    fn an_unknown_resource_is_absent_and_not_zero() {
        let pressure = read(&[("memory", None)]).unwrap().unwrap();
        assert_eq!((pressure.memory, pressure.io), (None, Some(0)));
    }

    #[test]
    fn a_missing_or_malformed_annotation_is_an_error_that_names_it() {
        for (change, expected) in [
            (("score", None), "annotation psi-agent.io/score is missing, but others are present"),
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
    fn age_counts_from_the_measurement_and_small_clock_skew_is_accepted() {
        let pressure = read(&[]).unwrap().unwrap();
        let minute = Duration::from_secs(60);
        let at = |time: &str| pressure.freshness(time.parse().unwrap(), minute);
        assert_eq!(at("2026-01-02T03:05:05Z"), Freshness::Fresh { age: minute });
        let older = minute + Duration::from_secs(1);
        assert_eq!(at("2026-01-02T03:05:06Z"), Freshness::Stale { age: older });
        assert_eq!(at("2026-01-02T03:03:50Z"), Freshness::Fresh { age: Duration::ZERO });
        assert_eq!(at("2026-01-02T03:03:00Z"), Freshness::Future);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_an_error(key in "score|cpu|observed-at|basis", value: String) {
            let _ = read(&[(&key, Some(&value))]);
        }

        #[test]
        fn a_basis_parses_as_it_is_printed(version: u32) {
            for basis in [Basis::Psi(version), Basis::RunDelay(version)] {
                prop_assert_eq!(basis.to_string().parse(), Ok(basis));
            }
        }
    }
}
