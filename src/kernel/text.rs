//! Words and numbers of kernel text, strictly, as bytes. Nothing here slices or indexes: whatever
//! the bytes are, the answer is a value or a [`ParseError`].

use std::fmt;

/// A file of the kernel's that does not read as its format says.
///
/// `line` counts from 1; 0 means the file as a whole (empty, or cut off before its last newline).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError {
    /// Line number, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "malformed: expected {}", self.expected),
            line => write!(f, "malformed in line {line}: expected {}", self.expected),
        }
    }
}

impl std::error::Error for ParseError {}

/// The whole file is wrong.
pub(crate) const fn malformed_file(expected: &'static str) -> ParseError {
    ParseError { line: 0, expected }
}

/// The lines of a file with their numbers. A text that does not end in a newline was cut off.
pub(crate) fn lines(text: &[u8]) -> Result<impl Iterator<Item = (usize, &[u8])>, ParseError> {
    let body = match text.split_last() {
        None => None,
        Some((b'\n', body)) => Some(body),
        Some(_) => return Err(malformed_file("a newline at the end")),
    };
    Ok(body.into_iter().flat_map(|body| body.split(|&byte| byte == b'\n')).zip(1..).map(swap))
}

fn swap<A, B>((a, b): (A, B)) -> (B, A) {
    (b, a)
}

/// Cuts at the first `separator`; `None` where there is none.
pub(crate) fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == separator)?;
    let (head, tail) = text.split_at_checked(at)?;
    Some((head, tail.get(1..)?))
}

/// Decimal digits and nothing else; `None` when empty, signed, padded or beyond `u64`.
pub(crate) fn parse_u64(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// As [`parse_u64`], for numbers that fit 32 bits (device numbers).
pub(crate) fn parse_u32(digits: &[u8]) -> Option<u32> {
    parse_u64(digits).and_then(|value| u32::try_from(value).ok())
}

/// Calls `field` for every line `key value` of a flat keyed file (`cpu.stat`, `memory.stat`,
/// `memory.events`, `/proc/vmstat`). An empty file is well-formed: `cpu.stat.local` is empty
/// where the controller is off.
pub(crate) fn parse_keyed(
    text: &[u8],
    mut field: impl FnMut(&[u8], u64),
) -> Result<(), ParseError> {
    for (line, content) in lines(text)? {
        let expected = ParseError { line, expected: "a key and a number" };
        let (key, value) = split_once(content, b' ').ok_or(expected)?;
        if key.is_empty() {
            return Err(expected);
        }
        field(key, parse_u64(value).ok_or(expected)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_is_digits_only() {
        assert_eq!(parse_u64(b"0"), Some(0));
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [&b""[..], b"+1", b"-1", b" 1", b"1 ", b"1.0", b"18446744073709551616", b"x"] {
            assert_eq!(parse_u64(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_cut_off_file_is_malformed_and_an_empty_one_has_no_lines() {
        assert_eq!(lines(b"").unwrap().count(), 0);
        assert_eq!(lines(b"a\nb\n").unwrap().collect::<Vec<_>>(), [(1, &b"a"[..]), (2, &b"b"[..])]);
        assert_eq!(lines(b"a\nb").err(), Some(malformed_file("a newline at the end")));
    }

    #[test]
    fn a_keyed_file_names_its_wrong_line() {
        let wrong = parse_keyed(b"usage_usec 1\nuser_usec\n", |_, _| {}).unwrap_err();
        assert_eq!(wrong.to_string(), "malformed in line 2: expected a key and a number");
    }

    proptest! {
        #[test]
        fn numbers_survive_printing(value: u64) {
            prop_assert_eq!(parse_u64(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
            let _ = parse_keyed(&bytes, |_, _| {});
        }
    }
}
