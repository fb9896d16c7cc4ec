//! Decodes JSON as kube does, from `str`: with bytes, the binary would have a second decoder of each type.

use serde::Deserialize;
use serde::de::Error;

/// Decodes a text in UTF-8.
pub fn decode<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    serde_json::from_str(std::str::from_utf8(text).map_err(Error::custom)?)
}
