//! Parsers of a cgroup's limits: `cpu.max`, `cpu.weight`, `cpuset.cpus.effective`, `memory.max` and
//! similar files. `max` is `None`, not a number.

use super::text::{ParseError, parse_u32, parse_u64, single_line, split_once};

/// `cpu.max`: CPU time allowed in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuMax {
    /// CPU time per period, microseconds; `None` for `max`.
    pub quota_us: Option<u64>,
    /// Length of a period, microseconds.
    pub period_us: u64,
}

impl CpuMax {
    pub fn cpus(self) -> Option<f64> {
        self.quota_us.map(|quota_us| quota_us as f64 / self.period_us as f64)
    }
}

/// A set of CPUs by number: a bit for each, 64 in an element.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(Vec<u64>);

/// More CPUs than any kernel has, which bounds the size of a set.
pub(super) const MAX_CPUS: u32 = 1 << 16;

impl CpuSet {
    pub fn count(&self) -> u32 {
        self.0.iter().map(|bits| bits.count_ones()).sum()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get((cpu / 64) as usize).is_some_and(|bits| bits >> (cpu % 64) & 1 == 1)
    }

    /// Number of CPUs in both.
    pub fn common(&self, other: &Self) -> u32 {
        self.0.iter().zip(&other.0).map(|(bits, others)| (bits & others).count_ones()).sum()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        let mut bits = Vec::new();
        for cpu in cpus {
            let at = (cpu / 64) as usize;
            bits.resize(bits.len().max(at + 1), 0);
            if let Some(element) = bits.get_mut(at) {
                *element |= 1 << (cpu % 64);
            }
        }
        Self(bits)
    }
}

fn limit(word: &[u8]) -> Option<Option<u64>> {
    if word == b"max" { Some(None) } else { parse_u64(word).map(Some) }
}

/// Parses a file with one number (`cpu.weight`, `memory.current`, `pids.current`).
pub fn parse_number(text: &[u8]) -> Result<u64, ParseError> {
    parse_u64(single_line(text)?).ok_or(ParseError("a number"))
}

/// Parses a file with one limit (`memory.max`); `None` for `max`.
pub fn parse_limit(text: &[u8]) -> Result<Option<u64>, ParseError> {
    limit(single_line(text)?).ok_or(ParseError("`max` or a number"))
}

/// Parses `cpu.max`: `max 100000` or `150000 100000`.
pub fn parse_cpu_max(text: &[u8]) -> Result<CpuMax, ParseError> {
    let expected = ParseError("a quota and a period");
    let (quota, period) = split_once(single_line(text)?, b' ').ok_or(expected)?;
    let quota_us = limit(quota).ok_or(expected)?;
    let period_us = parse_u64(period).filter(|&period| period > 0).ok_or(expected)?;
    Ok(CpuMax { quota_us, period_us })
}

/// Parses `cpuset.cpus.effective`, such as `0-3,8`. An empty list is valid, and means that no CPU
/// is left for the cgroup.
pub fn parse_cpu_set(text: &[u8]) -> Result<CpuSet, ParseError> {
    let expected = ParseError("a list of CPUs");
    let ranges = single_line(text)?.split(|&byte| byte == b',').filter(|range| !range.is_empty());
    let range = |range| {
        let (first, last) = split_once(range, b'-').unwrap_or((range, range));
        let cpus = parse_u32(first)?..=parse_u32(last)?;
        (!cpus.is_empty() && *cpus.end() < MAX_CPUS).then_some(cpus)
    };
    let ranges: Option<Vec<_>> = ranges.map(range).collect();
    Ok(ranges.ok_or(expected)?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::collections::BTreeSet;

    #[test]
    fn max_is_no_number() {
        assert_eq!(parse_limit(b"max\n"), Ok(None));
        assert_eq!(parse_limit(b"67108864\n"), Ok(Some(67_108_864)));
        for wrong in [&b""[..], b"\n", b"max", b"-1\n", b"1\n2\n", b"maximum\n"] {
            assert!(parse_limit(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn cpu_max_has_a_quota_and_a_period() {
        let unlimited = CpuMax { quota_us: None, period_us: 100_000 };
        assert_eq!(parse_cpu_max(b"max 100000\n"), Ok(unlimited));
        let limited = CpuMax { quota_us: Some(1500), period_us: 100_000 };
        assert_eq!(parse_cpu_max(b"1500 100000\n"), Ok(limited));
        assert_eq!((unlimited.cpus(), limited.cpus()), (None, Some(0.015)));
        for wrong in [&b"max\n"[..], b"max 0\n", b"1500 100000", b"1500 100000 5\n", b"\n"] {
            assert!(parse_cpu_max(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_list_of_cpus_is_a_set() {
        let set = |text: &[u8]| parse_cpu_set(text).unwrap();
        assert_eq!(
            [set(b"0-3,8,10-11\n").count(), set(b"5\n").count(), set(b"\n").count()],
            [7, 1, 0]
        );
        assert_eq!(set(b"0-1279\n").count(), 1280);
        assert_eq!(set(b"0-65535\n").count(), 65_536);
        assert_eq!(set(b"0-3,64,1279\n").common(&set(b"2,3,4,60-70,1270-1280\n")), 4);
        for wrong in [
            &b""[..],
            b"0-3",
            b"3-0\n",
            b"a\n",
            b"0-65536\n",
            b"0-18446744073709551615\n",
            b"1-2-3\n",
        ] {
            assert!(parse_cpu_set(wrong).is_err(), "{wrong:?}");
        }
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
            prop_assert_eq!(set.count() as usize, numbers.len());
            prop_assert_eq!(set.common(&other) as usize, numbers.intersection(&other_numbers).count());
            prop_assert_eq!(set == other, numbers == other_numbers);
            prop_assert_eq!(numbers.into_iter().collect::<CpuSet>(), set);
        }
    }
}
