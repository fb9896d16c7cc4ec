//! Parser of pressure files (`/proc/pressure/*` and a cgroup's `*.pressure`). Lines are recognized by
//! keyword: `cpu` had no `full` before Linux 5.13, and `irq` has only `full`. Of their fields, only the
//! total is parsed, since rates are computed from totals.

use super::text::{ParseError, lines, parse_u64, split_once, words};

/// Totals of one pressure file, in microseconds since boot, or since the cgroup was created. `None`
/// is a line that the kernel does not write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which at least one task was stalled, microseconds.
    pub some_us: Option<u64>,
    /// Time in which all non-idle tasks were stalled at once, microseconds.
    pub full_us: Option<u64>,
}

/// Parses a pressure file. Lines with unknown keywords and fields other than `total` are ignored:
/// later kernels may add some.
pub fn parse_pressure(text: &[u8]) -> Result<Pressure, ParseError> {
    let mut pressure = Pressure::default();
    for line in lines(text)? {
        let (keyword, fields) =
            split_once(line, b' ').ok_or(ParseError("a keyword and its fields"))?;
        let slot = match keyword {
            b"some" => &mut pressure.some_us,
            b"full" => &mut pressure.full_us,
            _ => continue,
        };
        let total = words(fields).find_map(|field| field.strip_prefix(b"total="));
        let total_us = total.and_then(parse_u64).ok_or(ParseError("total in microseconds"))?;
        if slot.replace(total_us).is_some() {
            return Err(ParseError("each keyword once"));
        }
    }
    if pressure == Pressure::default() {
        return Err(ParseError("a line `some` or `full`"));
    }
    Ok(pressure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, some_us: Option<u64>, full_us: Option<u64>) {
        assert_eq!(parse_pressure(text.as_bytes()), Ok(Pressure { some_us, full_us }), "{text}");
    }

    fn check_refused(text: &str, expected: &str) {
        let malformed = parse_pressure(text.as_bytes()).expect_err(text);
        assert_eq!(malformed.to_string(), expected, "{text}");
    }

    const SOME: &str = "some avg10=0.12 avg60=3.00 avg300=100.00 total=2354911\n";
    const FULL: &str = "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

    #[test]
    fn lines_are_parsed_in_either_order() {
        check(&format!("{SOME}{FULL}"), Some(2_354_911), Some(7));
        check(&format!("{FULL}{SOME}"), Some(2_354_911), Some(7));
    }

    #[test]
    fn cpu_before_5_13_has_no_full_and_irq_has_no_some() {
        check(SOME, Some(2_354_911), None);
        check(FULL, None, Some(7));
    }

    #[test]
    fn additions_of_later_kernels_are_ignored() {
        check("some avg10=0.00 avg60=0.00 avg300=0.00 total=5 max=9\n", Some(5), None);
        check(&format!("{SOME}most avg10=0.00\n"), Some(2_354_911), None);
    }

    #[test]
    fn an_error_names_the_malformed_line() {
        check_refused("", "malformed: expected a line `some` or `full`");
        check_refused("some\n", "malformed: expected a keyword and its fields");
        check_refused(&format!("{SOME}{SOME}"), "malformed: expected each keyword once");
        check_refused(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=-5\n",
            "malformed: expected total in microseconds",
        );
        check_refused(
            "some avg10=0.00 avg60=0.00 avg300=0.00\n",
            "malformed: expected total in microseconds",
        );
    }

    proptest! {
        #[test]
        fn printed_totals_parse_to_themselves(some: u64, full: Option<u64>) {
            let mut text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\n");
            if let Some(full) = full {
                text += &format!("full avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n");
            }
            let expected = Pressure { some_us: Some(some), full_us: full };
            prop_assert_eq!(parse_pressure(text.as_bytes()), Ok(expected));
        }

        #[test]
        fn a_truncated_file_is_an_error(cut in 1usize..) {
            let whole = format!("{SOME}{FULL}");
            let part = &whole.as_bytes()[..whole.len() - 1 - cut % (whole.len() - 1)];
            // The one cut that leaves a well-formed file is the one between the lines.
            prop_assert!(parse_pressure(part).is_err() || part.len() == SOME.len());
        }
    }
}
