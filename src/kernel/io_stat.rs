//! Parser of a cgroup's `io.stat`, which has a row for each device. Some kernels write rows without
//! numbers, or two devices in one line: such a row is dropped and counted, the others are kept.

use super::text::{parse_u32, parse_u64, split_once};

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

pub(crate) fn parse_device(word: &[u8]) -> Option<Device> {
    let (major, minor) = split_once(word, b':')?;
    Some(Device { major: parse_u32(major)?, minor: parse_u32(minor)? })
}

/// Parses `io.stat`. A malformed row is counted and does not affect the others.
pub fn parse_io_stat(text: &[u8]) -> IoStat {
    let mut stat = IoStat::default();
    for row in text.split_inclusive(|&byte| byte == b'\n') {
        // A last row without a newline is truncated, perhaps within a number.
        match row.strip_suffix(b"\n").and_then(parse_row) {
            Some(Row::Counters(counters)) => stat.devices.push(counters),
            Some(Row::NoNumbers) => {}
            None => stat.dropped_rows += 1,
        }
    }
    stat
}

enum Row {
    Counters(IoCounters),
    /// A device that the cgroup never used: some kernels write its number alone.
    NoNumbers,
}

fn parse_row(row: &[u8]) -> Option<Row> {
    let mut words = row.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let device = parse_device(words.next()?)?;
    let (mut rbytes, mut wbytes, mut rios, mut wios) = (None, None, None, None);
    let mut any = false;
    for word in words {
        any = true;
        let (key, value) = split_once(word, b'=')?;
        let slot = match key {
            b"rbytes" => &mut rbytes,
            b"wbytes" => &mut wbytes,
            b"rios" => &mut rios,
            b"wios" => &mut wios,
            _ => continue,
        };
        *slot = Some(parse_u64(value)?);
    }
    if !any {
        return Some(Row::NoNumbers);
    }
    Some(Row::Counters(IoCounters {
        device,
        read_bytes: rbytes?,
        written_bytes: wbytes?,
        reads: rios?,
        writes: wios?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_malformed_row_costs_that_row_only() {
        let stat = parse_io_stat(
            b"254:0 254:16 rbytes=1 wbytes=1 rios=1 wios=1\n7:0 \n8:0 rbytes=1 wbytes=2 rios=3 wios=4\nrubbish\n8:1 rbytes=1\n",
        );
        assert_eq!((stat.devices.len(), stat.dropped_rows), (1, 3));
        let truncated = parse_io_stat(b"8:0 rbytes=1 wbytes=2 rios=3 wios=4");
        assert_eq!((truncated.devices.len(), truncated.dropped_rows), (0, 1));
    }
}
