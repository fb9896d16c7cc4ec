//! Parsers of the node's files: `/proc/stat`, `/proc/schedstat`, `/proc/vmstat`, `/proc/meminfo`
//! and `/proc/diskstats`.

use std::collections::BTreeMap;

use procfs::DiskStat;

use super::io_stat::Device;
use super::text::{
    ParseError, keyed_file, lines, numbers, parse_keyed, parse_u64, split_once, words,
};

/// `/proc/stat`: CPU time in clock ticks since boot, summed over CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// A CPU ran a task or an interrupt of this node.
    pub busy: u64,
    /// Runnable while the hypervisor of this node ran other guests.
    pub steal: u64,
    /// All ticks: busy, steal and idle.
    pub total: u64,
    pub cpus: u64,
    /// Time of boot, seconds since the epoch.
    pub boot_time_s: u64,
}

keyed_file! {
    /// `/proc/vmstat`: pages since boot. Those that reclaim scanned for a cgroup's own limit are not
    /// counted.
    Reclaim, parse_vmstat:
    /// By kswapd, in the background.
    pgscan_kswapd = "pgscan_kswapd",
    /// By tasks that were allocating memory.
    pgscan_direct = "pgscan_direct",
    /// Read back from swap.
    pswpin = "pswpin",
}

/// `/proc/meminfo`, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMemory {
    pub total: Option<u64>,
    /// Memory available without swapping, as estimated by the kernel.
    pub available: Option<u64>,
    pub swap_total: Option<u64>,
    pub swap_free: Option<u64>,
}

pub fn parse_proc_stat(text: &[u8]) -> Result<CpuTimes, ParseError> {
    let mut times = None;
    let (mut cpus, mut boot_time_s) = (0, None);
    for (line, content) in lines(text)? {
        let Some((keyword, rest)) = split_once(content, b' ') else { continue };
        match keyword {
            b"cpu" => {
                let expected = ParseError { line, expected: "the CPUs' ticks" };
                times = Some(parse_ticks(rest).ok_or(expected)?);
            }
            b"btime" => {
                let expected = ParseError { line, expected: "the boot time" };
                boot_time_s = Some(parse_u64(rest).ok_or(expected)?);
            }
            _ => cpus += u64::from(is_cpu(keyword)),
        }
    }
    let times = times.ok_or(ParseError::of_file("a line `cpu`"))?;
    let boot_time_s = boot_time_s.ok_or(ParseError::of_file("a line `btime`"))?;
    Ok(CpuTimes { cpus, boot_time_s, ..times })
}

/// `user nice system idle`, then `iowait irq softirq steal` of later kernels, which default to 0.
/// `user` includes guests.
fn parse_ticks(text: &[u8]) -> Option<CpuTimes> {
    let mut words = words(text);
    let [user, nice, system, idle] = numbers(&mut words)?;
    let mut later = || words.next().map_or(Some(0), parse_u64);
    let (iowait, irq, softirq, steal) = (later()?, later()?, later()?, later()?);
    let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
    let total = [idle, iowait, steal].into_iter().fold(busy, u64::saturating_add);
    Some(CpuTimes { busy, steal, total, ..CpuTimes::default() })
}

/// Whether a line is that of one CPU, such as `cpu0`.
fn is_cpu(keyword: &[u8]) -> bool {
    keyword.strip_prefix(b"cpu").is_some_and(|number| parse_u64(number).is_some())
}

/// Parses `/proc/schedstat`: run delay, nanoseconds since boot, summed over tasks and online CPUs. It
/// includes throttling by quotas, and a wait is added only when the task runs again.
pub fn parse_schedstat(text: &[u8]) -> Result<u64, ParseError> {
    let (mut version, mut run_delay_ns) = (false, None);
    for (line, content) in lines(text)? {
        let Some((keyword, rest)) = split_once(content, b' ') else { continue };
        version |= keyword == b"version" && parse_u64(rest).is_some();
        if is_cpu(keyword) {
            let expected = ParseError { line, expected: "nine numbers of a CPU" };
            // In versions 15 to 17 of the file.
            let [.., delay, _]: [u64; 9] = numbers(&mut words(rest)).ok_or(expected)?;
            let sum = run_delay_ns.unwrap_or(0_u64).checked_add(delay);
            run_delay_ns = Some(sum.ok_or(expected)?);
        }
    }
    if !version {
        return Err(ParseError::of_file("a line `version`"));
    }
    run_delay_ns.ok_or(ParseError::of_file("a line `cpu0`"))
}

pub fn parse_meminfo(text: &[u8]) -> Result<NodeMemory, ParseError> {
    let mut memory = NodeMemory::default();
    for (line, content) in lines(text)? {
        let expected = ParseError { line, expected: "a key and a number of kB" };
        let (key, value) = split_once(content, b':').ok_or(expected)?;
        let slot = match key {
            b"MemTotal" => &mut memory.total,
            b"MemAvailable" => &mut memory.available,
            b"SwapTotal" => &mut memory.swap_total,
            b"SwapFree" => &mut memory.swap_free,
            _ => continue,
        };
        let kilobytes = value.trim_ascii().strip_suffix(b" kB").and_then(parse_u64);
        *slot = Some(kilobytes.and_then(|kb| kb.checked_mul(1024)).ok_or(expected)?);
    }
    Ok(memory)
}

/// Parses `/proc/swaps`: names of the block devices that are swap space, such as `vda2`. Files are
/// omitted, since their device is not shown.
pub fn parse_swaps(text: &[u8]) -> Result<Vec<String>, ParseError> {
    let device =
        |line: &str| line.split_whitespace().next()?.strip_prefix("/dev/").map(str::to_owned);
    Ok(String::from_utf8_lossy(text).lines().filter_map(device).collect())
}

/// A value for each block device.
pub type Devices<T> = BTreeMap<Device, T>;

/// Counters of a block device since boot. They count operations after merging; a cgroup's `io.stat`
/// counts them before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    pub reads: u64,
    pub reads_merged: u64,
    pub writes: u64,
    pub writes_merged: u64,
    /// Duration of all reads from request to completion, milliseconds, concurrent ones added up.
    pub reading_ms: u64,
}

impl From<DiskStat> for DiskCounters {
    fn from(stat: DiskStat) -> Self {
        Self {
            reads: stat.reads,
            reads_merged: stat.merged,
            writes: stat.writes,
            writes_merged: stat.writes_merged,
            reading_ms: stat.time_reading,
        }
    }
}

/// Parses `/proc/diskstats`, and keeps a part of each line. Lines that do not parse are skipped.
pub fn parse_diskstats<T>(text: &[u8], part: impl Fn(DiskStat) -> T) -> Devices<T> {
    let device = |line| {
        let stat = DiskStat::from_line(line).ok()?;
        let (major, minor) = (stat.major.try_into().ok()?, stat.minor.try_into().ok()?);
        Some((Device { major, minor }, part(stat)))
    };
    String::from_utf8_lossy(text).lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_gives_ticks_cpus_and_boot_time() {
        let text = b"cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 5 0 0\nbtime 1795231601\n";
        let times = parse_proc_stat(text).unwrap();
        assert_eq!((times.busy, times.total), (190, 360));
        assert_eq!((times.cpus, times.boot_time_s, times.steal), (2, 1_795_231_601, 80));
    }

    #[test]
    fn an_old_proc_stat_has_no_steal() {
        let times = parse_proc_stat(b"cpu  1 2 3 4\nbtime 5\n").unwrap();
        assert_eq!((times.busy, times.total, times.steal), (6, 10, 0));
        assert!(parse_proc_stat(b"cpu  1 2 3\nbtime 5\n").is_err());
        assert!(parse_proc_stat(b"btime 5\n").is_err());
    }

    #[test]
    fn meminfo_is_converted_to_bytes() {
        let text = "MemTotal:       24676204 kB\nHugePages_Total:       0\nSwapFree:  0 kB\n";
        let memory = parse_meminfo(text.as_bytes()).unwrap();
        assert_eq!(memory.total, Some(24_676_204 * 1024));
        assert_eq!((memory.swap_free, memory.available), (Some(0), None));
        assert!(parse_meminfo(b"MemTotal: 1 MB\n").is_err());
        assert!(parse_meminfo("é 5\n".as_bytes()).is_err());
    }

    #[test]
    fn vmstat_counts_the_nodes_own_reclaim() {
        let reclaim = parse_vmstat(b"nr_free_pages 1\npgscan_kswapd 7\npgscan_direct 0\n").unwrap();
        assert_eq!((reclaim.pgscan_kswapd, reclaim.pgscan_direct), (Some(7), Some(0)));
    }

    #[test]
    fn diskstats_gives_name_and_counters_of_each_device() {
        let text = b" 254       0 vda 1 20 9 7 300 4000 9 9 9 9 9\nrubbish\n";
        let names = parse_diskstats(text, |stat| stat.name);
        let disks = parse_diskstats(text, DiskCounters::from);
        assert_eq!(names, BTreeMap::from([(Device { major: 254, minor: 0 }, "vda".to_owned())]));
        let vda = DiskCounters {
            reads: 1,
            reads_merged: 20,
            writes: 300,
            writes_merged: 4000,
            reading_ms: 7,
        };
        assert_eq!(disks, BTreeMap::from([(Device { major: 254, minor: 0 }, vda)]));
    }

    #[test]
    fn schedstat_gives_the_run_delay_of_all_cpus() {
        let cpus = "cpu0 0 0 9 8 7 6 2700 500 3\ndomain0 03 1 2\ncpu1 0 0 0 0 0 0 0 41 0\n";
        let text = |version| format!("{version}timestamp 4294898432\n{cpus}");
        assert_eq!(parse_schedstat(text("version 15\n").as_bytes()), Ok(541));
        assert!(parse_schedstat(text("").as_bytes()).is_err());
        for wrong in [
            &b""[..],
            b"version 15\n",
            b"version 15\ncpu0 0 0 9 8 7 6 2700 500\n",
            b"version 15\ncpu0 0 0 9 8 7 6 2700 -1 3\n",
            b"version 15\ncpu0 0 0 9 8 7 6 2700 500 3",
            b"version 15\ncpu0 0 0 0 0 0 0 0 18446744073709551615 0\ncpu1 0 0 0 0 0 0 0 1 0\n",
        ] {
            assert!(parse_schedstat(wrong).is_err(), "{wrong:?}");
        }
    }
}
