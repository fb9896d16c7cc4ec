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
    use FamilyGroup::{Cpu, Io, Irq, Memory, Spec};
    let everything = detail == Detail::Everything;
    let selected = [Cpu, Memory, Io, Spec, Irq].map(|group| groups.contains(&group));
    if !selected.contains(&true) && !everything {
        return None;
    }
    let [cpu, memory, io, spec, irq] = selected;
    Some(Box::new(CgroupStats {
        cpu_stat: files.read_if(cpu || everything, || dir.cpu_stat()),
        // Throttling is exported only where a quota is set.
        cpu_max: files.read_if(spec || cpu || everything, || dir.cpu_max()),
        memory_current: files.read_if(memory || everything, || dir.memory_current()),
        memory_stat: files.read_if(memory, || dir.memory_stat()),
        memory_events: files.read_if(memory, || dir.memory_events()),
        memory_max: files.read_if(spec || everything, || dir.memory_max()),
        memory_swap_current: files.read_if(memory, || dir.memory_swap_current()),
        io: files.read_if(io, || dir.io_stat()),
        irq_pressure: files.read_if(irq, || dir.irq_pressure()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;
    use crate::kernel::cgroup_dir::CgroupRoot;
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn only_the_files_of_the_exported_families_are_read() {
        let path = std::env::temp_dir().join(format!("psi-agent-families-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cpu.max"), "50000 100000\n").unwrap();
        fs::write(path.join("memory.current"), "1\n").unwrap();
        let dir = CgroupDir::open(&CgroupRoot::open(&path).unwrap(), "/", true).unwrap();
        let read = |group, detail| {
            let groups = [FamilyGroup::Pressure, group];
            let stats = read_stats(&mut Files::new(Arc::new(now)), &dir, &groups, detail)?;
            Some((stats.cpu_max.is_some(), stats.memory_current.is_some()))
        };
        assert_eq!(read(FamilyGroup::Node, Detail::Exported), None);
        assert_eq!(read(FamilyGroup::Node, Detail::Everything), Some((true, true)));
        assert_eq!(read(FamilyGroup::Cpu, Detail::Exported), Some((true, false)));
        assert_eq!(read(FamilyGroup::Memory, Detail::Exported), Some((false, true)));
        fs::remove_dir_all(&path).unwrap();
    }
}
