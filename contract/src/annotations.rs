//! The agent's annotations among those of a Node.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::keys::{Key, Prefix};

/// The annotations are not as an agent writes them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// Some annotations are present, but this required one is not.
    #[error("annotation {0} is missing, but others are present")]
    Missing(String),
    /// The value of an annotation does not have the expected form.
    #[error("annotation {key} is {value:?}, expected {expected}")]
    Malformed {
        /// The annotation's key.
        key: String,
        /// Its value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
}

/// The annotations of a Node with an agent.
pub(super) struct Annotations<'a> {
    prefix: &'a Prefix,
    all: &'a BTreeMap<String, String>,
}

impl<'a> Annotations<'a> {
    /// `None` if the Node has none of these keys.
    pub(super) fn of(
        prefix: &'a Prefix,
        keys: &[Key],
        all: &'a BTreeMap<String, String>,
    ) -> Option<Self> {
        let has_any = keys.iter().any(|key| all.contains_key(&key.of(prefix)));
        has_any.then_some(Self { prefix, all })
    }

    pub(super) fn optional<T>(
        &self,
        key: Key,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ContractError> {
        let key = key.of(self.prefix);
        let Some(value) = self.all.get(&key) else { return Ok(None) };
        let malformed = || ContractError::Malformed { key, value: value.clone(), expected };
        parse(value).ok_or_else(malformed).map(Some)
    }

    pub(super) fn required<T>(
        &self,
        key: Key,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ContractError> {
        let missing = || ContractError::Missing(key.of(self.prefix));
        self.optional(key, expected, parse)?.ok_or_else(missing)
    }
}

/// A number in decimal digits, without a sign.
pub(super) fn whole<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}
