//! The files of one cgroup that an export pass reads besides pressure.

use std::time::Instant;

use super::files::Files;
use super::state::CgroupState;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::counters::{
    count_processes, parse_cpu_stat, parse_cpu_stat_local, parse_memory_events, parse_memory_stat,
};
use crate::kernel::limits::{parse_cpu_max, parse_io_max, parse_limit, parse_number};
use crate::sample::{CgroupStats, Detail, Groups};

/// `None` if no group is selected. Files of controllers that are off are not opened.
pub(super) fn read_stats(
    files: &mut Files,
    state: &mut CgroupState,
    dir: &CgroupDir,
    (groups, detail): (Groups, Detail),
    now: Instant,
) -> Option<Box<CgroupStats>> {
    let everything = detail == Detail::Everything;
    if groups == Groups::default() && !everything {
        return None;
    }
    let on = state.controllers(files, dir, now);
    let spec = groups.spec || everything;
    let (memory, processes) = (on.memory && groups.memory, groups.processes);
    let page = on.memory && everything;
    let throttled = files.read_if(everything, dir, c"cpu.stat.local", parse_cpu_stat_local);
    Some(Box::new(CgroupStats {
        cpu: files.read_if(groups.cpu || everything, dir, c"cpu.stat", parse_cpu_stat),
        throttled_local_us: throttled.flatten(),
        cpu_max: files.read_if(on.cpu && spec, dir, c"cpu.max", parse_cpu_max),
        cpu_weight: files.read_if(on.cpu && groups.spec, dir, c"cpu.weight", parse_number),
        memory_current: files.read_if(memory || page, dir, c"memory.current", parse_number),
        memory: files.read_if(memory, dir, c"memory.stat", parse_memory_stat),
        memory_events: files.read_if(memory, dir, c"memory.events", parse_memory_events),
        memory_events_local: files.read_if(page, dir, c"memory.events.local", parse_memory_events),
        memory_max: files.read_if(on.memory && spec, dir, c"memory.max", parse_limit),
        memory_high: files.read_if(page, dir, c"memory.high", parse_limit),
        swap_current: files.read_if(memory, dir, c"memory.swap.current", parse_number),
        memory_peak: files.read_if(memory, dir, c"memory.peak", parse_number),
        io: if on.io && groups.io { files.read_io_stat(dir).flatten() } else { None },
        io_max: files.read_if(on.io && everything, dir, c"io.max", parse_io_max),
        pids_current: files.read_if(on.pids && processes, dir, c"pids.current", parse_number),
        pids_max: files.read_if(on.pids && processes, dir, c"pids.max", parse_limit),
        processes: files.read_if(processes, dir, c"cgroup.procs", count_processes),
    }))
}
