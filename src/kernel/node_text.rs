//! The node's own files, those that are read at every tick: `/proc/stat`, `/proc/schedstat`,
//! `/proc/vmstat`, `/proc/meminfo`; and `/proc/diskstats` for block devices.

use std::collections::BTreeMap;

use procfs::DiskStat;

use super::io_stat::Device;
use super::text::{ParseError, lines, malformed_file, parse_keyed, parse_u64, split_once};

/// `/proc/stat`: where the CPUs' time went, in clock ticks since boot, summed over CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// User mode, guests included.
    pub user: u64,
    /// User mode at lowered priority.
    pub nice: u64,
    /// Kernel mode.
    pub system: u64,
    /// Nothing to do.
    pub idle: u64,
    /// Nothing to do while a disk is waited for.
    pub iowait: u64,
    /// Interrupts.
    pub irq: u64,
    /// Soft interrupts.
    pub softirq: u64,
    /// Wanted to run, but the hypervisor below ran somebody else.
    pub steal: u64,
    /// CPUs that are online.
    pub cpus: u64,
    /// When the node booted, seconds since the epoch.
    pub boot_time_s: u64,
}

impl CpuTimes {
    /// Ticks in which a CPU ran something of this node's.
    #[must_use]
    pub fn busy(&self) -> u64 {
        [self.user, self.nice, self.system, self.irq, self.softirq]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// All ticks, whoever had them.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.idle, self.iowait, self.steal].into_iter().fold(self.busy(), u64::saturating_add)
    }
}

/// `/proc/vmstat`: pages that the node itself looked at to free memory, since boot. They stand
/// still while a cgroup only reclaims for its own limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaim {
    /// By the background thread.
    pub pgscan_kswapd: Option<u64>,
    /// By a task that needed memory at once.
    pub pgscan_direct: Option<u64>,
}

/// `/proc/meminfo`, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Usable memory.
    pub total: Option<u64>,
    /// What new programs could get without swapping, as the kernel guesses.
    pub available: Option<u64>,
    /// Swap space.
    pub swap_total: Option<u64>,
    /// Swap space not in use.
    pub swap_free: Option<u64>,
}

/// Reads `/proc/stat`.
///
/// # Errors
/// [`ParseError`] without the summed `cpu` line (four numbers at least) or without `btime`.
pub fn parse_proc_stat(text: &[u8]) -> Result<CpuTimes, ParseError> {
    let mut times = None;
    let (mut cpus, mut boot_time_s) = (0, None);
    for (line, content) in lines(text)? {
        let Some((keyword, rest)) = split_once(content, b' ') else {
            continue;
        };
        match keyword {
            b"cpu" => {
                let expected = ParseError { line, expected: "the CPUs' ticks" };
                times = Some(parse_ticks(rest).ok_or(expected)?);
            }
            b"btime" => {
                let expected = ParseError { line, expected: "the boot time" };
                boot_time_s = Some(parse_u64(rest).ok_or(expected)?);
            }
            cpu if cpu.strip_prefix(b"cpu").and_then(parse_u64).is_some() => cpus += 1,
            _ => {}
        }
    }
    let times = times.ok_or(malformed_file("a line `cpu`"))?;
    let boot_time_s = boot_time_s.ok_or(malformed_file("a line `btime`"))?;
    Ok(CpuTimes { cpus, boot_time_s, ..times })
}

/// `user nice system idle`, then what later kernels added, 0 where they did not.
fn parse_ticks(text: &[u8]) -> Option<CpuTimes> {
    let mut ticks = text.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).map(parse_u64);
    let (user, nice, system, idle) =
        (ticks.next()??, ticks.next()??, ticks.next()??, ticks.next()??);
    let mut later = || ticks.next().unwrap_or(Some(0));
    Some(CpuTimes {
        user,
        nice,
        system,
        idle,
        iowait: later()?,
        irq: later()?,
        softirq: later()?,
        steal: later()?,
        ..CpuTimes::default()
    })
}

/// Reads `/proc/schedstat`: for how long tasks have waited for a CPU, nanoseconds since boot, summed
/// over tasks and over the CPUs that are online. It counts when a task runs at last, and what a
/// quota took from a task is in it. Tasks that wait side by side count side by side.
///
/// # Errors
/// [`ParseError`] without a version, without a CPU, or when a CPU's line is not its name and nine
/// numbers at least.
pub fn parse_schedstat(text: &[u8]) -> Result<u64, ParseError> {
    let (mut version, mut run_delay_ns) = (false, None);
    for (line, content) in lines(text)? {
        let Some((keyword, rest)) = split_once(content, b' ') else {
            continue;
        };
        version |= keyword == b"version" && parse_u64(rest).is_some();
        if keyword.strip_prefix(b"cpu").and_then(parse_u64).is_none() {
            continue;
        }
        let expected = ParseError { line, expected: "nine numbers of a CPU" };
        let numbers: Option<Vec<u64>> = rest.split(|&byte| byte == b' ').map(parse_u64).collect();
        let numbers = numbers.filter(|numbers| numbers.len() >= SCHEDSTAT_NUMBERS);
        let numbers = numbers.ok_or(expected)?;
        let delay = numbers.get(SCHEDSTAT_RUN_DELAY).copied().ok_or(expected)?;
        run_delay_ns = Some(run_delay_ns.unwrap_or(0_u64).checked_add(delay).ok_or(expected)?);
    }
    if !version {
        return Err(malformed_file("a line `version`"));
    }
    run_delay_ns.ok_or(malformed_file("a line `cpu0`"))
}

/// Of a CPU's numbers in `/proc/schedstat`, in versions 15 to 17: how many there are, and the place
/// of the run delay.
const SCHEDSTAT_NUMBERS: usize = 9;
const SCHEDSTAT_RUN_DELAY: usize = 7;

/// Reads `/proc/vmstat`.
///
/// # Errors
/// [`ParseError`] when a line is not a key and a number.
pub fn parse_vmstat(text: &[u8]) -> Result<Reclaim, ParseError> {
    let mut reclaim = Reclaim::default();
    parse_keyed(text, |key, value| match key {
        b"pgscan_kswapd" => reclaim.pgscan_kswapd = Some(value),
        b"pgscan_direct" => reclaim.pgscan_direct = Some(value),
        _ => {}
    })?;
    Ok(reclaim)
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// [`ParseError`] when a line that is used is not `Key:   number kB`.
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

/// Reads `/proc/diskstats`: the name of each block device. Lines that do not read are passed over,
/// since a device without a name still has its counters.
#[must_use]
pub fn parse_device_names(text: &[u8]) -> BTreeMap<Device, String> {
    of_devices(text, |stat| stat.name)
}

/// What a block device did since boot. A cgroup's `io.stat` counts operations before the kernel merges
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Reads completed.
    pub reads: u64,
    /// Reads that were merged into others.
    pub reads_merged: u64,
    /// Writes completed.
    pub writes: u64,
    /// Writes that were merged into others.
    pub writes_merged: u64,
    /// How long reads took from when they were asked for, milliseconds: of several at once the sum.
    pub reading_ms: u64,
}

/// Reads `/proc/diskstats`. Lines that do not read are passed over.
#[must_use]
pub fn parse_disk_counters(text: &[u8]) -> BTreeMap<Device, DiskCounters> {
    of_devices(text, |stat| DiskCounters {
        reads: stat.reads,
        reads_merged: stat.merged,
        writes: stat.writes,
        writes_merged: stat.writes_merged,
        reading_ms: stat.time_reading,
    })
}

fn of_devices<T>(text: &[u8], of: impl Fn(DiskStat) -> T) -> BTreeMap<Device, T> {
    let text = String::from_utf8_lossy(text);
    let stats = text.lines().filter_map(|line| DiskStat::from_line(line).ok());
    stats
        .filter_map(|stat| {
            let major = u32::try_from(stat.major).ok()?;
            let minor = u32::try_from(stat.minor).ok()?;
            Some((Device { major, minor }, of(stat)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn proc_stat_gives_ticks_cpus_and_boot_time() {
        let text = b"cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 5 0 0\nbtime 1795231601\n";
        let times = parse_proc_stat(text).unwrap();
        assert_eq!((times.busy(), times.total()), (190, 360));
        assert_eq!((times.cpus, times.boot_time_s, times.steal), (2, 1_795_231_601, 80));
    }

    #[test]
    fn an_old_proc_stat_has_no_steal() {
        let times = parse_proc_stat(b"cpu  1 2 3 4\nbtime 5\n").unwrap();
        assert_eq!((times.idle, times.steal), (4, 0));
        assert!(parse_proc_stat(b"cpu  1 2 3\nbtime 5\n").is_err());
        assert!(parse_proc_stat(b"btime 5\n").is_err());
    }

    #[test]
    fn meminfo_is_bytes() {
        let text = "MemTotal:       24676204 kB\nHugePages_Total:       0\nSwapFree:  0 kB\n";
        let memory = parse_meminfo(text.as_bytes()).unwrap();
        assert_eq!(memory.total, Some(24_676_204 * 1024));
        assert_eq!((memory.swap_free, memory.available), (Some(0), None));
        assert!(parse_meminfo(b"MemTotal: 1 MB\n").is_err());
        assert!(parse_meminfo("é 5\n".as_bytes()).is_err());
    }

    #[test]
    fn vmstat_keeps_the_nodes_own_reclaim() {
        let reclaim = parse_vmstat(b"nr_free_pages 1\npgscan_kswapd 7\npgscan_direct 0\n").unwrap();
        assert_eq!((reclaim.pgscan_kswapd, reclaim.pgscan_direct), (Some(7), Some(0)));
    }

    #[test]
    fn devices_have_names() {
        let names = parse_device_names(
            b" 254       0 vda 1 2 3 4 5 6 7 8 9 10 11\nrubbish\n   7       1 loop1 0 0 0 0 0 0 0 0 0 0 0\n",
        );
        assert_eq!(names.get(&Device { major: 254, minor: 0 }).map(String::as_str), Some("vda"));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn a_disk_has_counters() {
        let disks = parse_disk_counters(b" 254 0 vda 1 20 9 7 300 4000 9 9 9 9 9\nrubbish\n");
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

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
            let _ = (parse_proc_stat(&bytes), parse_vmstat(&bytes), parse_meminfo(&bytes));
            let _ = (parse_device_names(&bytes), parse_disk_counters(&bytes));
            let _ = parse_schedstat(&bytes);
        }
    }
}
