//! The files of one cgroup that an export pass reads besides pressure.

use crate::kernel::cgroup_dir::CgroupDir;
use crate::sample::{CgroupStats, Detail, FamilyGroup};
use crate::waiting::files::Files;

/// `None` if no group with such files is selected.
pub(super) fn read_stats(
    files: &mut Files,
    dir: &CgroupDir,
    groups: &[FamilyGroup],
    detail: Detail,
) -> Option<Box<CgroupStats>> {
    use FamilyGroup::{Cpu, Io, Memory, Processes, Spec};
    let everything = detail == Detail::Everything;
    let selected = [Cpu, Memory, Io, Processes, Spec].map(|group| groups.contains(&group));
    if !selected.contains(&true) && !everything {
        return None;
    }
    let [cpu, memory, io, processes, spec] = selected;
    Some(Box::new(CgroupStats {
        cpu_stat: files.read_if(cpu || everything, |buffer| dir.cpu_stat(buffer)),
        // Throttling is exported only where a quota is set.
        cpu_max: files.read_if(spec || cpu || everything, |buffer| dir.cpu_max(buffer)),
        cpu_weight: files.read_if(spec, |buffer| dir.cpu_weight(buffer)),
        memory_current: files.read_if(memory || everything, |buffer| dir.memory_current(buffer)),
        memory_stat: files.read_if(memory, |buffer| dir.memory_stat(buffer)),
        memory_events: files.read_if(memory, |buffer| dir.memory_events(buffer)),
        memory_max: files.read_if(spec || everything, |buffer| dir.memory_max(buffer)),
        memory_swap_current: files.read_if(memory, |buffer| dir.memory_swap_current(buffer)),
        memory_peak: files.read_if(memory, |buffer| dir.memory_peak(buffer)),
        io: if io { files.io_stat(dir).flatten() } else { None },
        pids_current: files.read_if(processes, |buffer| dir.pids_current(buffer)),
        pids_max: files.read_if(processes, |buffer| dir.pids_max(buffer)),
        processes: files.read_if(processes, |buffer| dir.process_count(buffer)),
    }))
}
