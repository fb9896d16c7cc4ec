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

fn parse_device(word: &[u8]) -> Option<Device> {
    let (major, minor) = split_once(word, b':')?;
    Some(Device { major: parse_u32(major)?, minor: parse_u32(minor)? })
}

/// Parses `io.max`: whether any device is limited.
pub fn parse_io_limited(text: &[u8]) -> Result<bool, ParseError> {
    lines(text)?.try_fold(false, |_, row| {
        let device = words(row).next().and_then(parse_device);
        device.map(|_| true).ok_or(ParseError("a device and its limits"))
    })
}

/// Parses `io.stat`.
pub fn parse_io_stat(text: &[u8]) -> Result<Vec<IoCounters>, ParseError> {
    // Linux 5.15 to 5.19 end the file by devices without numbers, and no newline.
    let last = text.rsplit(|&byte| byte == b'\n').next();
    let last = last.filter(|last| words(last).all(|word| parse_device(word).is_some()));
    let text = last.and_then(|last| text.strip_suffix(last)).unwrap_or(text);
    let mut devices = Vec::new();
    for line in lines(text)? {
        let words: Vec<&[u8]> = words(line).collect();
        for row in words.chunk_by(|_, word| parse_device(word).is_none()) {
            let expected = ParseError("devices and their counters");
            devices.extend(parse_row(row).ok_or(expected)?);
        }
    }
    Ok(devices)
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

    fn parsed(text: &str) -> Vec<IoCounters> {
        parse_io_stat(text.as_bytes()).unwrap()
    }

    #[test]
    fn rows_become_counters() {
        let devices = parsed(
            "8:0 rbytes=90112 wbytes=4096 rios=22 wios=1 dbytes=0 dios=0\n259:3 rbytes=1 wbytes=2 rios=3 wios=4 cost.usage=9\n",
        );
        let row = |major, minor, [read_bytes, written_bytes, reads, writes]: [u64; 4]| {
            let device = Device { major, minor };
            IoCounters { device, read_bytes, written_bytes, reads, writes }
        };
        assert_eq!(devices, [row(8, 0, [90_112, 4096, 22, 1]), row(259, 3, [1, 2, 3, 4])]);
    }

    #[test]
    fn a_device_begins_a_row_within_a_line() {
        let numbers = "rbytes=1 wbytes=2 rios=3 wios=4";
        let text = format!("7:1 7:0 8:0 {numbers} dios=0 8:16 {numbers}\n254:0 254:16 {numbers}\n");
        let devices = parsed(&text).into_iter().map(|row| (row.device.major, row.device.minor));
        assert_eq!(devices.collect::<Vec<_>>(), [(8, 0), (8, 16), (254, 16)]);
        assert_eq!(parsed(&format!("8:16 {numbers}\n253:0 252:0 ")).len(), 1);
    }

    #[test]
    fn a_row_without_numbers_of_reads_and_writes_is_no_error() {
        for text in [
            "",
            "(unknown) rbytes=0 wbytes=0 rios=6 wios=0 dbytes=0 dios=0\n",
            "8:0  cost.usage=0\n",
            "253:0 252:0 ",
        ] {
            assert_eq!(parsed(text), [], "{text:?}");
        }
    }

    #[test]
    fn a_malformed_row_or_a_truncated_file_is_an_error() {
        for text in [
            "8:0 rbytes=1 wbytes=2 rios=3 wios=4\nrubbish\n",
            "8:1 rbytes=1\n",
            "8:2 x 8:3 rbytes=1 wbytes=2 rios=3 wios=4\n",
            "8:0 rbytes=1 wbytes=2 rios=3 wios=4",
        ] {
            assert!(parse_io_stat(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
