//! The keys on a Node.

use std::fmt;
use std::str::FromStr;

use strum::IntoStaticStr;

/// The DNS subdomain that all keys begin with, without the slash. Default: `psi-agent.io`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(String);

/// The text cannot be the prefix of a Kubernetes key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a DNS subdomain: use lower-case letters, digits, dashes and dots, such as \
     psi-agent.io"
)]
pub struct NotASubdomain(String);

impl Default for Prefix {
    fn default() -> Self {
        Self("psi-agent.io".into())
    }
}

impl Prefix {
    /// Whether `key` has this prefix: `<prefix>/<name>`.
    #[must_use]
    pub fn owns(&self, key: &str) -> bool {
        key.strip_prefix(&self.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl FromStr for Prefix {
    type Err = NotASubdomain;

    fn from_str(text: &str) -> Result<Self, NotASubdomain> {
        if is_subdomain(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotASubdomain(text.to_owned()))
        }
    }
}

/// Whether this is a DNS subdomain, as Kubernetes defines it for names of objects and for prefixes of keys.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key on a Node, or on a virt-launcher pod. The agent writes all keys of a Node in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Key {
    /// Annotation: the largest of the counted resources (by default CPU and memory), 0 to 100.
    Score,
    /// Annotation: CPU contention, 0 to 100.
    Cpu,
    /// Annotation: memory contention, 0 to 100.
    Memory,
    /// Annotation: I/O contention, 0 to 100.
    Io,
    /// Annotation: the time of measurement, RFC 3339 in UTC, to the second.
    ObservedAt,
    /// Annotation: source and version of the estimator.
    Basis,
    /// Annotation: busy vCPUs that can be added before the level is `medium`, a whole number. Label
    /// (opt-in): the same, rounded down to 0, 1, 2, 4, 8 and so on.
    Headroom,
    /// Annotation: CPUs that VMs would use without waiting, and that all else uses.
    Demand,
    /// Annotation: CPUs' worth of time that VMs wait because of the node.
    Waiting,
    /// Annotation: the VMs whose moves end most waiting, at most three.
    Candidates,
    /// Label: `low`, `medium` or `high`.
    Pressure,
    /// Taint: the level is `medium` or `high`.
    PressureMedium,
    /// Taint: the level is `high`.
    PressureHigh,
    /// Label of a virt-launcher pod: `true` on the VM to move first.
    MigrateFirst,
}

impl Key {
    /// The annotations of the score.
    pub const OF_SCORE: [Key; 6] =
        [Key::Score, Key::Cpu, Key::Memory, Key::Io, Key::ObservedAt, Key::Basis];
    /// The annotations of the demand.
    pub const OF_DEMAND: [Key; 4] = [Key::Headroom, Key::Demand, Key::Waiting, Key::Candidates];
    /// The labels of a Node.
    pub const LABELS: [Key; 2] = [Key::Headroom, Key::Pressure];
    /// The taints.
    pub const TAINTS: [Key; 2] = [Key::PressureMedium, Key::PressureHigh];

    /// The key as it is written on a Node, such as `psi-agent.io/score`.
    #[must_use]
    pub fn of(self, prefix: &Prefix) -> String {
        let name: &str = self.into();
        format!("{prefix}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_dns_subdomain() {
        for right in ["psi-agent.io", "a", "x-1.example.com"] {
            assert!(right.parse::<Prefix>().is_ok(), "{right}");
        }
        let long = "a".repeat(254);
        for wrong in ["", "Psi.io", "a..b", "-a", "a-", "a/b", ".a", "a_b", "ä.io", &long] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_prefix_owns_the_keys_below_it() {
        let prefix = Prefix::default();
        assert!(prefix.owns("psi-agent.io/score"));
        assert!(!prefix.owns("psi-agent.iox/score") && !prefix.owns("psi-agent.io"));
    }
}
