//! Parsers of a cgroup's keyed files: `cgroup.events`, `cpu.stat`, `cpu.stat.local`, `memory.stat`
//! and `memory.events`; and of `cgroup.procs`. A key that the kernel does not write is `None`. All
//! fail when a line is not a key and a number.

use super::text::{ParseError, keyed_file, lines, parse_keyed, parse_u64};

keyed_file! {
    /// `cpu.stat`. Times are microseconds of CPU time since the cgroup was created. `cpu.stat.local`
    /// has only `throttled_us`, of this level or above, and is empty where the cpu controller is off.
    CpuStat, parse_cpu_stat:
    usage_us = "usage_usec",
    user_us = "user_usec",
    system_us = "system_usec",
    /// Quota periods elapsed; `None` where the cpu controller is off.
    nr_periods = "nr_periods",
    nr_throttled = "nr_throttled",
    /// Time throttled, summed over CPUs.
    throttled_us = "throttled_usec",
}

keyed_file! {
    /// Parts of `memory.stat`, in bytes unless noted.
    MemoryStat, parse_memory_stat:
    anon = "anon",
    file = "file",
    /// Inactive page cache, which is reclaimed first.
    inactive_file = "inactive_file",
    /// Pages scanned by kswapd, which runs only when the node is short of memory.
    pgscan_kswapd = "pgscan_kswapd",
    /// Pages scanned by allocating tasks, because the node is short of memory, or because of a
    /// limit.
    pgscan_direct = "pgscan_direct",
    /// Pages of files read again after their eviction from the page cache.
    workingset_refault_file = "workingset_refault_file",
    /// Pages of anonymous memory read back from swap.
    workingset_refault_anon = "workingset_refault_anon",
    /// Of these, pages that were active when evicted. The kernel counts only the reading of these as
    /// a memory stall.
    workingset_restore_anon = "workingset_restore_anon",
    /// Pages read back from a swap device (since Linux 6.13).
    pswpin = "pswpin",
    /// Pages read back from zswap, compressed memory in front of a swap device (since Linux 5.19).
    zswpin = "zswpin",
    /// Page faults that waited for a disk, for pages of files or from swap.
    pgmajfault = "pgmajfault",
}

keyed_file! {
    /// `memory.events` (the cgroup and its descendants) or `memory.events.local` (the cgroup alone).
    MemoryEvents, parse_memory_events:
    /// Times that usage exceeded `memory.high`.
    high = "high",
    /// Times that usage was about to exceed `memory.max`.
    max = "max",
    oom_kill = "oom_kill",
}

/// Parses `cgroup.events`: whether the cgroup or a descendant has tasks.
pub fn parse_populated(text: &[u8]) -> Result<bool, ParseError> {
    let mut populated = None;
    parse_keyed(text, &mut [("populated", &mut populated)])?;
    Ok(populated.ok_or(ParseError("a line `populated`"))? != 0)
}

pub fn count_processes(text: &[u8]) -> Result<u64, ParseError> {
    lines(text)?.try_fold(0, |count, pid| {
        parse_u64(pid).map(|_| count + 1).ok_or(ParseError("a process id"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(parse_cpu_stat(b""), Ok(CpuStat::default()));
        let throttled = CpuStat { throttled_us: Some(5), ..CpuStat::default() };
        assert_eq!(parse_cpu_stat(b"throttled_usec 5\n"), Ok(throttled));
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let stat = parse_memory_stat(b"anon 4096\nfile 8192\nsec_pagetables 0\n").unwrap();
        let expected = MemoryStat { anon: Some(4096), file: Some(8192), ..MemoryStat::default() };
        assert_eq!(stat, expected);
        let events = parse_memory_events(b"low 0\nhigh 3\nmax 0\noom 1\noom_kill 2\n").unwrap();
        assert_eq!(events, MemoryEvents { high: Some(3), max: Some(0), oom_kill: Some(2) });
    }

    #[test]
    fn the_lines_of_cgroup_procs_are_counted() {
        assert_eq!(count_processes(b""), Ok(0));
        assert_eq!(count_processes(b"1\n20\n"), Ok(2));
        // In a child PID namespace the host's processes are all 0.
        assert_eq!(count_processes(b"0\n0\n"), Ok(2));
        assert!(count_processes(b"1\nx\n").is_err());
    }
}
