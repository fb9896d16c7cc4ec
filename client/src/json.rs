//! Decodes JSON as kube does, from `str`: with bytes, the binary would have a second decoder of each type. Declares the
//! parts of objects that are read.

use serde::Deserialize;
use serde::de::Error;

/// Decodes a text in UTF-8.
pub fn decode<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    serde_json::from_str(std::str::from_utf8(text).map_err(Error::custom)?)
}

/// Structs that are parsed from an object of the API server: names are in camel case, a missing field is empty, and
/// all others are skipped.
macro_rules! objects {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type,)* }
    )*};
}
pub(crate) use objects;
