//! Parsers of a cgroup's `io.max`, which has a row for each limited device, and `io.stat`, which has a
//! row for each device. Some kernels end the row of a device without numbers by a space, so that the
//! next row is in the same line.

use super::text::{ParseError, lines, parse_u32, parse_u64, split_once, words};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// I/O of a cgroup on one device since the cgroup was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCounters {
    pub device: Device,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoStat {
    pub devices: Vec<IoCounters>,
    pub dropped_rows: u64,
}

fn parse_device(word: &[u8]) -> Option<Device> {
    let (major, minor) = split_once(word, b':')?;
    Some(Device { major: parse_u32(major)?, minor: parse_u32(minor)? })
}

/// Parses `io.max`: whether any device is limited.
pub fn parse_io_limited(text: &[u8]) -> Result<bool, ParseError> {
    lines(text)?.try_fold(false, |_, (line, row)| {
        let device = words(row).next().and_then(parse_device);
        device.map(|_| true).ok_or(ParseError { line, expected: "a device and its limits" })
    })
}

/// Parses `io.stat`. A malformed row is counted and does not affect the others.
pub fn parse_io_stat(text: &[u8]) -> IoStat {
    let mut stat = IoStat::default();
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        // A last line without a newline is truncated, perhaps within a number. Linux 5.15 to 5.19 end the file so
        // after devices without numbers.
        let Some(line) = line.strip_suffix(b"\n") else {
            let is_complete = words(line).all(|word| parse_device(word).is_some());
            stat.dropped_rows += u64::from(!is_complete);
            break;
        };
        let words: Vec<&[u8]> = words(line).collect();
        for row in words.chunk_by(|_, word| parse_device(word).is_none()) {
            match parse_row(row) {
                Some(counters) => stat.devices.extend(counters),
                None => stat.dropped_rows += 1,
            }
        }
    }
    stat
}

/// Counters of a row; the inner `None` is a device that the cgroup never used, of which some kernels write the
/// number alone or what controllers add (`cost.usage`), or one path of a multipath disk, which is counted as a whole.
fn parse_row(row: &[&[u8]]) -> Option<Option<IoCounters>> {
    let (device, rest) = row.split_first()?;
    let is_counter = |word: &&[u8]| {
        [&b"rbytes="[..], b"wbytes=", b"rios=", b"wios="].iter().any(|key| word.starts_with(key))
    };
    let is_unused = rest.iter().all(|word| word.contains(&b'=') && !is_counter(word));
    if *device == b"(unknown)" || is_unused && parse_device(device).is_some() {
        return Some(None);
    }
    let device = parse_device(device)?;
    let value = |key: &[u8]| parse_u64(rest.iter().find_map(|word| word.strip_prefix(key))?);
    Some(Some(IoCounters {
        device,
        read_bytes: value(b"rbytes=")?,
        written_bytes: value(b"wbytes=")?,
        reads: value(b"rios=")?,
        writes: value(b"wios=")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_io_max_is_a_limit() {
        let limited = parse_io_limited(b"8:16 rbps=2097152 wbps=max riops=max wiops=120\n");
        assert_eq!((limited, parse_io_limited(b"")), (Ok(true), Ok(false)));
        assert!(
            parse_io_limited(b"rbps=1\n").is_err() && parse_io_limited(b"8:16 rbps=1").is_err()
        );
    }

    #[test]
    fn rows_become_counters() {
        let stat = parse_io_stat(
            b"8:0 rbytes=90112 wbytes=4096 rios=22 wios=1 dbytes=0 dios=0\n259:3 rbytes=1 wbytes=2 rios=3 wios=4 cost.usage=9\n",
        );
        assert_eq!(stat.dropped_rows, 0);
        let row = |major, minor, [read_bytes, written_bytes, reads, writes]: [u64; 4]| {
            let device = Device { major, minor };
            IoCounters { device, read_bytes, written_bytes, reads, writes }
        };
        assert_eq!(stat.devices, [row(8, 0, [90_112, 4096, 22, 1]), row(259, 3, [1, 2, 3, 4])]);
    }

    #[test]
    fn a_device_begins_a_row_within_a_line() {
        let numbers = "rbytes=1 wbytes=2 rios=3 wios=4";
        let text = format!("7:1 7:0 8:0 {numbers} dios=0 8:16 {numbers}\n254:0 254:16 {numbers}\n");
        let stat = parse_io_stat(text.as_bytes());
        let devices = stat.devices.iter().map(|row| (row.device.major, row.device.minor));
        assert_eq!(devices.collect::<Vec<_>>(), [(8, 0), (8, 16), (254, 16)]);
        assert_eq!(stat.dropped_rows, 0);
    }

    #[test]
    fn a_row_without_numbers_of_reads_and_writes_is_no_error() {
        for text in [
            &b"(unknown) rbytes=0 wbytes=0 rios=6 wios=0 dbytes=0 dios=0\n"[..],
            b"8:0  cost.usage=0\n",
            b"253:0 252:0 ",
        ] {
            assert_eq!(parse_io_stat(text), IoStat::default(), "{text:?}");
        }
    }

    #[test]
    fn a_malformed_row_costs_that_row_only() {
        let stat = parse_io_stat(
            b"7:0 \n8:0 rbytes=1 wbytes=2 rios=3 wios=4\nrubbish\n8:1 rbytes=1\n8:2 x 8:3 rbytes=1 wbytes=2 rios=3 wios=4\n",
        );
        assert_eq!((stat.devices.len(), stat.dropped_rows), (2, 3));
        let truncated = parse_io_stat(b"8:0 rbytes=1 wbytes=2 rios=3 wios=4");
        assert_eq!((truncated.devices.len(), truncated.dropped_rows), (0, 1));
    }
}
