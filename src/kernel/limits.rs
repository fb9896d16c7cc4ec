//! Parsers of a cgroup's limits: `cpu.max`, `cpu.weight`, `cpuset.cpus.effective`, `memory.max` and
//! similar files, `pids.max`, `io.max`. `max` is a variant of its own, not a number.

use std::ops::Range;

use super::io_stat::{Device, parse_device};
use super::text::{ParseError, lines, parse_u32, parse_u64, single_line, split_once};

/// A limit in the file's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `max`: no limit at this level.
    Max,
    At(u64),
}

impl Limit {
    pub fn at(self) -> Option<u64> {
        match self {
            Limit::Max => None,
            Limit::At(value) => Some(value),
        }
    }
}

/// `cpu.max`: CPU time allowed in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuMax {
    /// CPU time per period, microseconds.
    pub quota_us: Limit,
    /// Length of a period, microseconds.
    pub period_us: u64,
}

impl CpuMax {
    #[allow(clippy::cast_precision_loss, reason = "a quota of 2^52 us is no limit")]
    pub fn cpus(self) -> Option<f64> {
        self.quota_us.at().map(|quota_us| quota_us as f64 / self.period_us as f64)
    }
}

/// A set of CPUs by number: sorted ranges with gaps between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(Vec<Range<u32>>);

impl CpuSet {
    pub fn len(&self) -> u32 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of CPUs in both.
    pub fn common(&self, other: &Self) -> u32 {
        let with_each = self.0.iter().map(|range| {
            let first = other.0.partition_point(|other| other.end <= range.start);
            let overlaps = other.0.iter().skip(first).take_while(|other| other.start < range.end);
            let cpus = overlaps.map(|o| o.end.min(range.end) - o.start.max(range.start));
            cpus.sum::<u32>()
        });
        with_each.sum()
    }
}

impl FromIterator<Range<u32>> for CpuSet {
    fn from_iter<T: IntoIterator<Item = Range<u32>>>(ranges: T) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|range, before| {
            let joins = range.start <= before.end;
            if joins {
                before.end = before.end.max(range.end);
            }
            joins
        });
        Self(ranges)
    }
}

/// One row of `io.max`: limits per second on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoMax {
    pub device: Device,
    pub read_bytes: Limit,
    pub written_bytes: Limit,
    pub reads: Limit,
    pub writes: Limit,
}

fn limit(word: &[u8]) -> Option<Limit> {
    match word {
        b"max" => Some(Limit::Max),
        digits => parse_u64(digits).map(Limit::At),
    }
}

/// Parses a file with one number (`cpu.weight`, `memory.current`, `pids.current`).
pub fn parse_number(text: &[u8]) -> Result<u64, ParseError> {
    parse_u64(single_line(text)?).ok_or(ParseError { line: 1, expected: "a number" })
}

/// Parses a file with one limit (`memory.max`, `memory.high`, `pids.max`).
pub fn parse_limit(text: &[u8]) -> Result<Limit, ParseError> {
    limit(single_line(text)?).ok_or(ParseError { line: 1, expected: "`max` or a number" })
}

/// Parses `cpu.max`: `max 100000` or `150000 100000`.
pub fn parse_cpu_max(text: &[u8]) -> Result<CpuMax, ParseError> {
    let expected = ParseError { line: 1, expected: "a quota and a period" };
    let (quota, period) = split_once(single_line(text)?, b' ').ok_or(expected)?;
    let quota_us = limit(quota).ok_or(expected)?;
    let period_us = parse_u64(period).filter(|&period| period > 0).ok_or(expected)?;
    Ok(CpuMax { quota_us, period_us })
}

/// Parses `cpuset.cpus.effective`, such as `0-3,8`. An empty list is valid, and means that no CPU
/// is left for the cgroup.
pub fn parse_cpu_set(text: &[u8]) -> Result<CpuSet, ParseError> {
    let expected = ParseError { line: 1, expected: "a list of CPUs" };
    let ranges = single_line(text)?.split(|&byte| byte == b',').filter(|range| !range.is_empty());
    let range = |range| {
        let (first, last) = split_once(range, b'-').unwrap_or((range, range));
        let cpus = parse_u32(first)?..parse_u32(last)?.checked_add(1)?;
        (!cpus.is_empty()).then_some(cpus)
    };
    ranges.map(range).collect::<Option<_>>().ok_or(expected)
}

/// Parses `io.max`, which has a row for each limited device:
/// `8:16 rbps=2097152 wbps=max riops=max wiops=120`. A missing key is `max`, an unknown one is
/// ignored.
pub fn parse_io_max(text: &[u8]) -> Result<Vec<IoMax>, ParseError> {
    lines(text)?
        .map(|(line, content)| {
            io_max_row(content).ok_or(ParseError { line, expected: "a device and its limits" })
        })
        .collect()
}

fn io_max_row(row: &[u8]) -> Option<IoMax> {
    let mut words = row.split(|&byte| byte == b' ');
    let device = parse_device(words.next()?)?;
    let mut max = IoMax {
        device,
        read_bytes: Limit::Max,
        written_bytes: Limit::Max,
        reads: Limit::Max,
        writes: Limit::Max,
    };
    for word in words {
        let (key, value) = split_once(word, b'=')?;
        let value = limit(value)?;
        match key {
            b"rbps" => max.read_bytes = value,
            b"wbps" => max.written_bytes = value,
            b"riops" => max.reads = value,
            b"wiops" => max.writes = value,
            _ => {}
        }
    }
    Some(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::collections::BTreeSet;

    #[test]
    fn max_is_no_number() {
        assert_eq!(parse_limit(b"max\n"), Ok(Limit::Max));
        assert_eq!(parse_limit(b"67108864\n"), Ok(Limit::At(67_108_864)));
        for wrong in [&b""[..], b"\n", b"max", b"-1\n", b"1\n2\n", b"maximum\n"] {
            assert!(parse_limit(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn cpu_max_has_a_quota_and_a_period() {
        let unlimited = CpuMax { quota_us: Limit::Max, period_us: 100_000 };
        assert_eq!(parse_cpu_max(b"max 100000\n"), Ok(unlimited));
        let limited = CpuMax { quota_us: Limit::At(1500), period_us: 100_000 };
        assert_eq!(parse_cpu_max(b"1500 100000\n"), Ok(limited));
        assert_eq!((unlimited.cpus(), limited.cpus()), (None, Some(0.015)));
        for wrong in [&b"max\n"[..], b"max 0\n", b"1500 100000", b"1500 100000 5\n", b"\n"] {
            assert!(parse_cpu_max(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_list_of_cpus_is_a_set() {
        let set = |text: &[u8]| parse_cpu_set(text).unwrap();
        assert_eq!([set(b"0-3,8,10-11\n").len(), set(b"5\n").len(), set(b"\n").len()], [7, 1, 0]);
        assert_eq!(set(b"0-1279\n").len(), 1280);
        assert_eq!(set(b"0-4294967294\n").len(), u32::MAX);
        assert_eq!(set(b"0-3,64,1279\n").common(&set(b"2,3,4,60-70,1270-1280\n")), 4);
        for wrong in [&b""[..], b"0-3", b"3-0\n", b"a\n", b"0-18446744073709551615\n", b"1-2-3\n"] {
            assert!(parse_cpu_set(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn io_max_names_devices_and_their_limits() {
        let rows = parse_io_max(b"8:16 rbps=2097152 wbps=max riops=max wiops=120\n").unwrap();
        assert_eq!(
            rows,
            [IoMax {
                device: Device { major: 8, minor: 16 },
                read_bytes: Limit::At(2_097_152),
                written_bytes: Limit::Max,
                reads: Limit::Max,
                writes: Limit::At(120),
            }]
        );
        assert_eq!(parse_io_max(b""), Ok(vec![]));
        assert!(parse_io_max(b"8:16 rbps\n").is_err());
    }

    proptest! {
        #[test]
        fn ranges_of_cpus_are_the_set_of_their_numbers(
            first in vec((0..200_u32, 1..40_u32), 0..8),
            second in vec((0..200_u32, 1..40_u32), 0..8),
        ) {
            let set_of = |ranges: &[(u32, u32)]| {
                let ranges = ranges.iter().map(|(start, len)| *start..start + len);
                let numbers: BTreeSet<u32> = ranges.clone().flatten().collect();
                let text: Vec<String> =
                    ranges.map(|cpus| format!("{}-{}", cpus.start, cpus.end - 1)).collect();
                (parse_cpu_set(format!("{}\n", text.join(",")).as_bytes()).unwrap(), numbers)
            };
            let ((set, numbers), (other, other_numbers)) = (set_of(&first), set_of(&second));
            prop_assert_eq!(set.len() as usize, numbers.len());
            prop_assert_eq!(set.common(&other) as usize, numbers.intersection(&other_numbers).count());
            prop_assert_eq!(set == other, numbers == other_numbers);
            prop_assert_eq!(numbers.iter().map(|cpu| *cpu..cpu + 1).collect::<CpuSet>(), set);
        }
    }
}
