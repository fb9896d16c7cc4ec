//! The files of one cgroup that an export pass reads besides pressure.

use super::files::Files;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::counters::{
    count_processes, parse_cpu_stat, parse_cpu_stat_local, parse_memory_events, parse_memory_stat,
};
use crate::kernel::limits::{parse_cpu_max, parse_io_max, parse_limit, parse_number};
use crate::sample::{CgroupStats, Detail, Groups};

/// `None` where no group is wanted.
pub(super) fn read_stats(
    files: &mut Files,
    dir: &CgroupDir,
    groups: Groups,
    detail: Detail,
) -> Option<Box<CgroupStats>> {
    let everything = detail == Detail::Everything;
    if groups == Groups::default() && !everything {
        return None;
    }
    let mut stats = CgroupStats::default();
    if groups.cpu || everything {
        stats.cpu = files.read_value(dir, c"cpu.stat", parse_cpu_stat);
    }
    if groups.spec || everything {
        stats.cpu_max = files.read_value(dir, c"cpu.max", parse_cpu_max);
        stats.memory_max = files.read_value(dir, c"memory.max", parse_limit);
    }
    if groups.spec {
        stats.cpu_weight = files.read_value(dir, c"cpu.weight", parse_number);
    }
    if groups.memory || everything {
        stats.memory_current = files.read_value(dir, c"memory.current", parse_number);
    }
    if groups.memory {
        stats.memory = files.read_value(dir, c"memory.stat", parse_memory_stat);
        stats.memory_events = files.read_value(dir, c"memory.events", parse_memory_events);
        stats.swap_current = files.read_value(dir, c"memory.swap.current", parse_number);
        stats.memory_peak = files.read_value(dir, c"memory.peak", parse_number);
    }
    if groups.io {
        stats.io = files.read_io_stat(dir).flatten();
    }
    if groups.processes {
        stats.processes = files.read_value(dir, c"cgroup.procs", count_processes);
        stats.pids_current = files.read_value(dir, c"pids.current", parse_number);
        stats.pids_max = files.read_value(dir, c"pids.max", parse_limit);
    }
    if everything {
        stats.throttled_local_us =
            files.read_value(dir, c"cpu.stat.local", parse_cpu_stat_local).flatten();
        stats.memory_events_local =
            files.read_value(dir, c"memory.events.local", parse_memory_events);
        stats.memory_high = files.read_value(dir, c"memory.high", parse_limit);
        stats.io_max = files.read_value(dir, c"io.max", parse_io_max);
    }
    Some(Box::new(stats))
}
