//! Parsers of a cgroup's limits: `cpu.max`, `cpu.weight`, `cpuset.cpus.effective`, `memory.max` and
//! similar files, `pids.max`, `io.max`. `max` is a variant of its own, not a number.

use super::io_stat::{Device, parse_device};
use super::text::{ParseError, lines, parse_u64, single_line, split_once};

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

/// CPUs by number, up to 1023.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuSet([u64; 16]);

impl CpuSet {
    /// Adds a CPU. Returns `false` if its number is above 1023.
    pub fn insert(&mut self, cpu: u64) -> bool {
        let word = usize::try_from(cpu / 64).ok().and_then(|index| self.0.get_mut(index));
        word.map(|word| *word |= 1 << (cpu % 64)).is_some()
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// CPUs in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut common = *self;
        common.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= other);
        common
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
    let expected = ParseError { line: 1, expected: "a list of CPUs below 1024" };
    let ranges = single_line(text)?.split(|&byte| byte == b',').filter(|range| !range.is_empty());
    let mut set = CpuSet::default();
    for range in ranges {
        let (first, last) = split_once(range, b'-').unwrap_or((range, range));
        let (first, last) = parse_u64(first).zip(parse_u64(last)).ok_or(expected)?;
        if first > last || !(first..=last).all(|cpu| set.insert(cpu)) {
            return Err(expected);
        }
    }
    Ok(set)
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
        assert_eq!(set(b"0-3,64,1023\n").and(&set(b"2,3,4,60-70,1023\n")), set(b"2-3,64,1023\n"));
        for wrong in
            [&b""[..], b"0-3", b"3-0\n", b"a\n", b"0-18446744073709551615\n", b"1-2-3\n", b"1024\n"]
        {
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
}
