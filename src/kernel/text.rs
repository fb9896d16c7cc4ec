//! Lines, words and numbers of kernel text, parsed strictly as bytes. Nothing here slices or
//! indexes, so no input can make it panic.

/// A kernel file that does not follow its documented format, with the content that the format requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: expected {0}")]
pub struct ParseError(pub &'static str);

/// The lines of a file. A text that does not end in a newline is truncated.
pub(crate) fn lines(text: &[u8]) -> Result<impl Iterator<Item = &[u8]>, ParseError> {
    if text.last().is_some_and(|&byte| byte != b'\n') {
        return Err(ParseError("a newline at the end"));
    }
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    Ok(lines.filter_map(|line| line.strip_suffix(b"\n")))
}

/// The line of a file that has exactly one, without its newline.
pub(crate) fn single_line(text: &[u8]) -> Result<&[u8], ParseError> {
    let mut all = lines(text)?;
    match (all.next(), all.next()) {
        (Some(line), None) => Ok(line),
        _ => Err(ParseError("one line")),
    }
}

/// Cuts at the first `separator`; `None` where there is none.
pub(crate) fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == separator)?;
    let (head, tail) = text.split_at_checked(at)?;
    Some((head, tail.get(1..)?))
}

/// The words of a line, which are separated by spaces.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// The next words, which are all numbers.
pub(crate) fn numbers<'a, const N: usize>(
    words: &mut impl Iterator<Item = &'a [u8]>,
) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = parse_u64(words.next()?)?;
    }
    Some(numbers)
}

/// Decimal digits only; `None` when empty, signed, padded or above `u64::MAX`.
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

/// As [`parse_u64`], for numbers of 32 bits (PIDs, device numbers).
pub(crate) fn parse_u32(digits: &[u8]) -> Option<u32> {
    parse_u64(digits).and_then(|value| u32::try_from(value).ok())
}

/// Parses a flat keyed file, which has lines `key value`, and stores the values of these keys, those
/// in kB as bytes. Other keys are ignored. An empty file is valid: `cpu.stat.local` is empty where the cpu
/// controller is off.
pub(crate) fn parse_keyed(
    text: &[u8],
    fields: &mut [(&str, &mut Option<u64>)],
) -> Result<(), ParseError> {
    for line in lines(text)? {
        let expected = ParseError("a key and a number");
        let (key, value) = split_once(line, b' ').ok_or(expected)?;
        let value = parse_u64(value).or_else(|| parse_padded(value));
        let value = value.filter(|_| !key.is_empty()).ok_or(expected)?;
        if let Some((_, field)) = fields.iter_mut().find(|(name, _)| name.as_bytes() == key) {
            **field = Some(value);
        }
    }
    Ok(())
}

/// A number after spaces, as in `/proc/meminfo`, where most are kB.
fn parse_padded(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii_start();
    match value.strip_suffix(b" kB") {
        Some(kilobytes) => parse_u64(kilobytes)?.checked_mul(1024),
        None => parse_u64(value),
    }
}

/// A struct for a flat keyed file, and its parser: a field for each key that is kept. It is `None`
/// where the kernel does not write the key.
macro_rules! keyed_file {
    (
        $(#[$about:meta])*
        $File:ident, $parse:ident: $($(#[$field_about:meta])* $field:ident = $key:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $File {
            $($(#[$field_about])* pub $field: Option<u64>,)*
        }

        pub fn $parse(text: &[u8]) -> Result<$File, ParseError> {
            let mut file = $File::default();
            parse_keyed(text, &mut [$(($key, &mut file.$field)),*]).map(|()| file)
        }
    };
}
pub(super) use keyed_file;

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
    fn a_truncated_file_is_an_error_and_an_empty_one_has_no_lines() {
        assert_eq!(lines(b"").unwrap().count(), 0);
        assert_eq!(lines(b"a\nb\n").unwrap().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(lines(b"a\nb").err(), Some(ParseError("a newline at the end")));
    }

    #[test]
    fn a_malformed_line_of_a_keyed_file_is_an_error() {
        for text in [&b"usage_usec 1\nuser_usec\n"[..], b"usage_usec 1\n 5\n"] {
            let wrong = parse_keyed(text, &mut []).unwrap_err();
            assert_eq!(wrong.to_string(), "malformed: expected a key and a number");
        }
    }

    proptest! {
        #[test]
        fn a_printed_number_parses_to_itself(value: u64) {
            prop_assert_eq!(parse_u64(value.to_string().as_bytes()), Some(value));
        }
    }
}
