//! The files of one cgroup that an export pass reads besides pressure.

use super::state::CgroupState;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::sample::{CgroupStats, CpuStats, Detail, Groups, MemoryStats};
use crate::waiting::files::Files;

/// `None` if no group is selected. Files of controllers that are off are not opened.
pub(super) fn read_stats(
    files: &mut Files,
    state: &mut CgroupState,
    dir: &CgroupDir,
    (groups, detail): (Groups, Detail),
) -> Option<Box<CgroupStats>> {
    let everything = detail == Detail::Everything;
    if groups == Groups::default() && !everything {
        return None;
    }
    let on = state.controllers(files, dir);
    let spec = groups.spec || everything;
    let (memory, processes) = (on.memory && groups.memory, groups.processes);
    Some(Box::new(CgroupStats {
        cpu: CpuStats {
            stat: files.read_if(groups.cpu || everything, |buffer| dir.cpu_stat(buffer)),
            max: files.read_if(on.cpu && spec, |buffer| dir.cpu_max(buffer)),
            weight: files.read_if(on.cpu && groups.spec, |buffer| dir.cpu_weight(buffer)),
        },
        memory: MemoryStats {
            current: files
                .read_if(memory || on.memory && everything, |buffer| dir.memory_current(buffer)),
            stat: files.read_if(memory, |buffer| dir.memory_stat(buffer)),
            events: files.read_if(memory, |buffer| dir.memory_events(buffer)),
            max: files.read_if(on.memory && spec, |buffer| dir.memory_max(buffer)),
            swap_current: files.read_if(memory, |buffer| dir.memory_swap_current(buffer)),
            peak: files.read_if(memory, |buffer| dir.memory_peak(buffer)),
        },
        io: if on.io && groups.io { files.io_stat(dir).flatten() } else { None },
        pids_current: files.read_if(on.pids && processes, |buffer| dir.pids_current(buffer)),
        pids_max: files.read_if(on.pids && processes, |buffer| dir.pids_max(buffer)),
        processes: files.read_if(processes, |buffer| dir.process_count(buffer)),
    }))
}
