//! The flat keyed files of a cgroup: `cpu.stat`, `cpu.stat.local`, `memory.stat`,
//! `memory.events`. A key that the kernel does not write is `None`.

use super::text::{ParseError, lines, malformed_file, parse_keyed, parse_u64};

/// `cpu.stat`. Times are microseconds of CPU since the cgroup was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuStat {
    /// CPU time used.
    pub usage_us: Option<u64>,
    /// CPU time used in user mode.
    pub user_us: Option<u64>,
    /// CPU time used in the kernel.
    pub system_us: Option<u64>,
    /// Enforcement periods that elapsed; `None` where the cpu controller is off.
    pub nr_periods: Option<u64>,
    /// Periods in which the quota ran out.
    pub nr_throttled: Option<u64>,
    /// Time throttled, summed over CPUs.
    pub throttled_us: Option<u64>,
}

/// `memory.stat`, the part that is used. Bytes, where nothing else is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// Anonymous memory.
    pub anon: Option<u64>,
    /// Page cache.
    pub file: Option<u64>,
    /// Page cache not used of late, the first to go under reclaim.
    pub inactive_file: Option<u64>,
    /// Pages that the node's background thread looked at to free memory: only the node's shortage
    /// wakes it. Pages, not bytes.
    pub pgscan_kswapd: Option<u64>,
    /// Pages that tasks looked at that needed memory at once, for the node's sake or for a limit's.
    pub pgscan_direct: Option<u64>,
    /// Pages of files that were taken from the page cache and were read once more. Pages, not bytes.
    pub workingset_refault_file: Option<u64>,
    /// Pages of its own memory that were taken and came back from swap.
    pub workingset_refault_anon: Option<u64>,
    /// Of these the ones that were in use when they were taken, which is when the kernel calls their coming
    /// back a stall.
    pub workingset_restore_anon: Option<u64>,
}

/// `memory.events` (the cgroup and all below it) or `memory.events.local` (itself alone).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// Times that usage went over `memory.high`.
    pub high: Option<u64>,
    /// Times that usage was about to go over `memory.max`.
    pub max: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kill: Option<u64>,
}

/// Reads `cgroup.events`: whether there are tasks in the cgroup or below it.
///
/// # Errors
/// [`ParseError`] when a line is not a key and a number, or none says so.
pub fn parse_populated(text: &[u8]) -> Result<bool, ParseError> {
    let mut populated = None;
    parse_keyed(text, |key, value| {
        if key == b"populated" {
            populated = Some(value != 0);
        }
    })?;
    populated.ok_or(malformed_file("a line `populated`"))
}

/// Reads `cpu.stat`.
///
/// # Errors
/// [`ParseError`] when a line is not a key and a number.
pub fn parse_cpu_stat(text: &[u8]) -> Result<CpuStat, ParseError> {
    let mut stat = CpuStat::default();
    parse_keyed(text, |key, value| {
        let slot = match key {
            b"usage_usec" => &mut stat.usage_us,
            b"user_usec" => &mut stat.user_us,
            b"system_usec" => &mut stat.system_us,
            b"nr_periods" => &mut stat.nr_periods,
            b"nr_throttled" => &mut stat.nr_throttled,
            b"throttled_usec" => &mut stat.throttled_us,
            _ => return,
        };
        *slot = Some(value);
    })?;
    Ok(stat)
}

/// Reads `cpu.stat.local`: time throttled at this level or above, microseconds, summed over CPUs.
/// `None` where the file is there but empty: the cpu controller is off.
///
/// # Errors
/// [`ParseError`] when a line is not a key and a number.
pub fn parse_cpu_stat_local(text: &[u8]) -> Result<Option<u64>, ParseError> {
    let mut throttled_us = None;
    parse_keyed(text, |key, value| {
        if key == b"throttled_usec" {
            throttled_us = Some(value);
        }
    })?;
    Ok(throttled_us)
}

/// Reads `memory.stat`.
///
/// # Errors
/// [`ParseError`] when a line is not a key and a number.
pub fn parse_memory_stat(text: &[u8]) -> Result<MemoryStat, ParseError> {
    let mut stat = MemoryStat::default();
    parse_keyed(text, |key, value| {
        let slot = match key {
            b"anon" => &mut stat.anon,
            b"file" => &mut stat.file,
            b"inactive_file" => &mut stat.inactive_file,
            b"pgscan_kswapd" => &mut stat.pgscan_kswapd,
            b"pgscan_direct" => &mut stat.pgscan_direct,
            b"workingset_refault_file" => &mut stat.workingset_refault_file,
            b"workingset_refault_anon" => &mut stat.workingset_refault_anon,
            b"workingset_restore_anon" => &mut stat.workingset_restore_anon,
            _ => return,
        };
        *slot = Some(value);
    })?;
    Ok(stat)
}

/// Reads `memory.events` or `memory.events.local`.
///
/// # Errors
/// [`ParseError`] when a line is not a key and a number.
pub fn parse_memory_events(text: &[u8]) -> Result<MemoryEvents, ParseError> {
    let mut events = MemoryEvents::default();
    parse_keyed(text, |key, value| {
        let slot = match key {
            b"high" => &mut events.high,
            b"max" => &mut events.max,
            b"oom_kill" => &mut events.oom_kill,
            _ => return,
        };
        *slot = Some(value);
    })?;
    Ok(events)
}

/// Counts the processes of `cgroup.procs`.
///
/// # Errors
/// [`ParseError`] when a line is not a process id.
pub fn count_processes(text: &[u8]) -> Result<u64, ParseError> {
    let mut count = 0;
    for (line, pid) in lines(text)? {
        parse_u64(pid).ok_or(ParseError { line, expected: "a process id" })?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cpu_stat_without_the_controller_has_no_periods() {
        let stat = parse_cpu_stat(b"usage_usec 30\nuser_usec 20\nsystem_usec 10\n").unwrap();
        let expected = CpuStat {
            usage_us: Some(30),
            user_us: Some(20),
            system_us: Some(10),
            ..CpuStat::default()
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn cpu_stat_local_is_empty_where_the_controller_is_off() {
        assert_eq!(parse_cpu_stat_local(b""), Ok(None));
        assert_eq!(parse_cpu_stat_local(b"throttled_usec 5\n"), Ok(Some(5)));
    }

    #[test]
    fn unknown_keys_are_passed_over() {
        let stat = parse_memory_stat(b"anon 4096\nfile 8192\nsec_pagetables 0\n").unwrap();
        let expected = MemoryStat { anon: Some(4096), file: Some(8192), ..MemoryStat::default() };
        assert_eq!(stat, expected);
        let events = parse_memory_events(b"low 0\nhigh 3\nmax 0\noom 1\noom_kill 2\n").unwrap();
        assert_eq!(events, MemoryEvents { high: Some(3), max: Some(0), oom_kill: Some(2) });
    }

    #[test]
    fn processes_are_counted_by_line() {
        assert_eq!(count_processes(b""), Ok(0));
        assert_eq!(count_processes(b"1\n20\n"), Ok(2));
        // Seen from a child process namespace, the host's processes are all 0.
        assert_eq!(count_processes(b"0\n0\n"), Ok(2));
        assert!(count_processes(b"1\nx\n").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
            let _ = (parse_cpu_stat(&bytes), parse_cpu_stat_local(&bytes));
            let _ = (parse_memory_stat(&bytes), parse_memory_events(&bytes), count_processes(&bytes));
        }
    }
}
