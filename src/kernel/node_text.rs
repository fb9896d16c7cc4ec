//! Parsers of the node's files: `/proc/stat`, `/proc/schedstat`, `/proc/vmstat`, `/proc/meminfo`
//! and `/proc/diskstats`.

use std::collections::BTreeMap;

pub use procfs::DiskStat;

use super::io_stat::Device;
use super::limits::{CpuSet, MAX_CPUS};
use super::text::{
    ParseError, keyed_file, lines, numbers, parse_keyed, parse_u64, split_once, words,
};

/// `/proc/stat`: CPU time in clock ticks since boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Of all CPUs together.
    pub all: Ticks,
    /// Of each that is online.
    pub each: BTreeMap<u32, Ticks>,
    /// Time of boot, seconds since the epoch.
    pub boot_time_s: u64,
}

/// Clock ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticks {
    /// A CPU ran a task or an interrupt of this node.
    pub busy: u64,
    /// Runnable while the hypervisor of this node ran other guests.
    pub steal: u64,
    /// All ticks: busy, steal and idle.
    pub total: u64,
}

/// The CPUs of each core, which are several with SMT.
pub type Cores = Vec<Vec<u32>>;

keyed_file! {
    /// `/proc/vmstat`, since boot.
    Reclaim, parse_vmstat:
    /// Pages that kswapd scanned, in the background.
    pgscan_kswapd = "pgscan_kswapd",
    /// Times that a task had to reclaim the node's memory itself: for the kernel, and for processes. Newer
    /// kernels count scanned pages of reclaim by limits, too, so those do not show it.
    stalls_normal = "allocstall_normal",
    stalls_movable = "allocstall_movable",
    /// Pages read back from swap.
    pswpin = "pswpin",
}

keyed_file! {
    /// `/proc/meminfo`, bytes.
    NodeMemory, parse_meminfo:
    total = "MemTotal:",
    /// Memory available without swapping, as estimated by the kernel.
    available = "MemAvailable:",
    swap_total = "SwapTotal:",
    swap_free = "SwapFree:",
}

pub fn parse_proc_stat(text: &[u8]) -> Result<CpuTimes, ParseError> {
    let (mut all, mut each, mut boot_time_s) = (None, BTreeMap::new(), None);
    for line in lines(text)? {
        let Some((keyword, rest)) = split_once(line, b' ') else { continue };
        let ticks = || parse_ticks(rest).ok_or(ParseError("a CPU's ticks"));
        match keyword {
            b"cpu" => all = Some(ticks()?),
            b"btime" => {
                let expected = ParseError("the boot time");
                boot_time_s = Some(parse_u64(rest).ok_or(expected)?);
            }
            _ => {
                if let Some(cpu) = cpu(keyword) {
                    each.insert(cpu, ticks()?);
                }
            }
        }
    }
    let all = all.ok_or(ParseError("a line `cpu`"))?;
    let boot_time_s = boot_time_s.ok_or(ParseError("a line `btime`"))?;
    Ok(CpuTimes { all, each, boot_time_s })
}

/// `user` includes guests, whose own columns follow.
fn parse_ticks(text: &[u8]) -> Option<Ticks> {
    let ticks = numbers(&mut words(text))?;
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
    let total = [idle, iowait, steal].into_iter().fold(busy, u64::saturating_add);
    Some(Ticks { busy, steal, total })
}

/// Parses `/proc/cpuinfo`. There are no cores where the architecture does not show them.
pub fn parse_cores(text: &[u8]) -> Cores {
    let mut cores: BTreeMap<[u32; 2], Vec<u32>> = BTreeMap::new();
    for cpu in String::from_utf8_lossy(text).split("\n\n") {
        let fields = || cpu.lines().filter_map(|line| line.split_once(':'));
        let field = |name| {
            let (_, value) = fields().find(|(key, _)| key.trim_end() == name)?;
            value.trim().parse().ok()
        };
        let numbers = ["processor", "physical id", "core id"].map(field);
        if let [Some(cpu), Some(package), Some(core)] = numbers {
            cores.entry([package, core]).or_default().push(cpu);
        }
    }
    cores.into_values().collect()
}

/// The number of the CPU that a line is of, such as 0 of `cpu0`.
fn cpu(keyword: &[u8]) -> Option<u32> {
    let number = u32::try_from(parse_u64(keyword.strip_prefix(b"cpu")?)?);
    number.ok().filter(|number| *number < MAX_CPUS)
}

/// `/proc/schedstat`: run delay, which includes throttling by quotas. A wait is added only when the task
/// runs again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunDelay {
    /// Nanoseconds since boot, summed over tasks and online CPUs.
    pub total_ns: u64,
    /// The CPUs that are summed. One that comes online adds its delay since boot.
    pub online: CpuSet,
}

/// Parses `/proc/schedstat`.
pub fn parse_schedstat(text: &[u8]) -> Result<RunDelay, ParseError> {
    let (mut total_ns, mut online) = (0_u64, Vec::new());
    for line in lines(text)? {
        let Some((keyword, rest)) = split_once(line, b' ') else { continue };
        if let Some(cpu) = cpu(keyword) {
            let expected = ParseError("nine numbers of a CPU");
            // In versions 15 to 17 of the file.
            let [.., delay, _]: [u64; 9] = numbers(&mut words(rest)).ok_or(expected)?;
            total_ns = total_ns.checked_add(delay).ok_or(expected)?;
            online.push(cpu);
        }
    }
    if online.is_empty() {
        return Err(ParseError("a line `cpu0`"));
    }
    Ok(RunDelay { total_ns, online: online.into_iter().collect() })
}

/// Parses `/proc/swaps`: names of the block devices that are swap space, such as `vda2`; none if a file is, since
/// its device is not shown.
pub fn parse_swaps(text: &[u8]) -> Result<Vec<String>, ParseError> {
    let device =
        |line: &str| line.split_whitespace().next()?.strip_prefix("/dev/").map(str::to_owned);
    let devices: Option<_> = String::from_utf8_lossy(text).lines().skip(1).map(device).collect();
    Ok(devices.unwrap_or_default())
}

/// Parses `/proc/diskstats`: counters of block devices since boot. They count operations after merging; a
/// cgroup's `io.stat` counts them before. Lines that do not parse are skipped.
pub fn parse_diskstats(text: &[u8]) -> BTreeMap<Device, DiskStat> {
    let disk = |line| {
        let stat = DiskStat::from_line(line).ok()?;
        let (major, minor) = (stat.major.try_into().ok()?, stat.minor.try_into().ok()?);
        Some((Device { major, minor }, stat))
    };
    String::from_utf8_lossy(text).lines().filter_map(disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_gives_ticks_cpus_and_boot_time() {
        let cpus = "cpu0 4 5 6 7 8 9 1 2\ncpu3 0 0 0 9 0 0 0 0 0 0\n";
        let all = "cpu  10 20 30 40 50 60 70 80 90 100";
        let text = format!("{all}\n{cpus}intr 5 0 0\nbtime 1795231601\n");
        let times = parse_proc_stat(text.as_bytes()).unwrap();
        assert_eq!(times.all, Ticks { busy: 190, steal: 80, total: 360 });
        let idle = Ticks { total: 9, ..Ticks::default() };
        let each = [(0, Ticks { busy: 25, steal: 2, total: 42 }), (3, idle)];
        assert_eq!((times.each, times.boot_time_s), (BTreeMap::from(each), 1_795_231_601));
    }

    #[test]
    fn cpuinfo_shows_the_cpus_of_a_core() {
        let cpu = |cpu, package, core| {
            format!(
                "processor\t: {cpu}\nphysical id\t: {package}\ncore id\t\t: {core}\nflags\t: ht\n\n"
            )
        };
        let text = [cpu(0, 0, 0), cpu(1, 0, 1), cpu(2, 0, 0), cpu(3, 1, 0)].concat();
        assert_eq!(parse_cores(text.as_bytes()), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(parse_cores(b"processor\t: 0\nBogoMIPS\t: 50\n\n"), Cores::new());
    }

    #[test]
    fn a_proc_stat_without_all_ticks_or_without_cpus_is_an_error() {
        assert!(parse_proc_stat(b"cpu  1 2 3 4 5 6 7 8\nbtime 5\n").is_ok());
        assert!(parse_proc_stat(b"cpu  1 2 3 4 5 6 7\nbtime 5\n").is_err());
        assert!(parse_proc_stat(b"cpu  1 2 3 4 5 6 7 8\ncpu0 1 2\nbtime 5\n").is_err());
        assert!(parse_proc_stat(b"btime 5\n").is_err());
    }

    #[test]
    fn swaps_are_named_as_in_diskstats_unless_one_is_a_file() {
        let text = "Filename\t\t\tType\t\tSize\tUsed\tPriority\n\
                    /dev/nvme0n1p2  partition\t8388604\t\t0\t\t-2\n\
                    /dev/dm-1  partition 4 0 -4\n";
        assert_eq!(parse_swaps(text.as_bytes()), Ok(vec!["nvme0n1p2".into(), "dm-1".into()]));
        let with_file = format!("{text}/swapfile  file\t\t1048572\t\t0\t\t-3\n");
        assert_eq!(parse_swaps(with_file.as_bytes()), Ok(vec![]));
        assert_eq!(parse_swaps(b""), Ok(vec![]));
    }

    #[test]
    fn meminfo_is_converted_to_bytes() {
        let text = "MemTotal:       24676204 kB\nHugePages_Total:       0\nSwapFree:  0 kB\n";
        let memory = parse_meminfo(text.as_bytes()).unwrap();
        assert_eq!(memory.total, Some(24_676_204 * 1024));
        assert_eq!((memory.swap_free, memory.available), (Some(0), None));
        assert!(parse_meminfo(b"MemTotal: 1 MB\n").is_err());
        assert!(parse_meminfo("é\n".as_bytes()).is_err());
    }

    #[test]
    fn vmstat_counts_the_nodes_own_reclaim() {
        let text = b"nr_free_pages 1\nallocstall_dma 9\nallocstall_movable 0\npgscan_kswapd 7\n";
        let reclaim = parse_vmstat(text).unwrap();
        assert_eq!((reclaim.pgscan_kswapd, reclaim.stalls_movable), (Some(7), Some(0)));
    }

    #[test]
    fn diskstats_gives_name_and_counters_of_each_device() {
        let text = b" 254       0 vda 1 20 9 7 300 4000 9 9 9 9 9\nrubbish\n";
        let disks = parse_diskstats(text);
        assert_eq!(disks.len(), 1);
        let vda = &disks[&Device { major: 254, minor: 0 }];
        assert_eq!((vda.name.as_str(), vda.time_reading), ("vda", 7));
        let counted = [vda.reads, vda.merged, vda.writes, vda.writes_merged];
        assert_eq!(counted, [1, 20, 300, 4000]);
    }

    #[test]
    fn schedstat_gives_the_run_delay_of_all_cpus() {
        let cpus = "cpu0 0 0 9 8 7 6 2700 500 3\ndomain0 03 1 2\ncpu1 0 0 0 0 0 0 0 41 0\n";
        let text = format!("version 15\ntimestamp 4294898432\n{cpus}");
        let delay = RunDelay { total_ns: 541, online: [0, 1].into_iter().collect() };
        assert_eq!(parse_schedstat(text.as_bytes()), Ok(delay));
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
