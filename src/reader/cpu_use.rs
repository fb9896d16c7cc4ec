//! What one container used of CPUs, and what held it back: files that cost much more than a
//! pressure, so the caller says when they can matter.

use super::cgroup::CgroupReader;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::counters::{CpuStat, parse_cpu_stat, parse_cpu_stat_local};
use crate::kernel::limits::{parse_cpu_count, parse_cpu_max, parse_number};
use crate::sample::{CpuRoom, CpuUse, Throttled};

/// A container's directory, and its pod's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Directories<'a> {
    pub(super) own: &'a CgroupDir,
    pub(super) pod: Option<&'a CgroupDir>,
}

/// `cpu.stat`; the outer `None` is an error, the inner one that there is no such file.
pub(super) fn read_cpu_stat(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<Option<CpuStat>> {
    reader.read_whole(dir, c"cpu.stat", parse_cpu_stat)
}

/// All of it.
pub(super) fn read_cpu_use(reader: &mut CgroupReader, dirs: Directories<'_>) -> CpuUse {
    let Some(stat) = read_cpu_stat(reader, dirs.own) else {
        return CpuUse::default();
    };
    CpuUse {
        usage_us: stat.and_then(|stat| stat.usage_us),
        throttled: read_throttled(reader, dirs, stat),
        room: read_room(reader, dirs),
    }
}

/// What quotas took, given the container's own `cpu.stat`.
pub(super) fn read_throttled(
    reader: &mut CgroupReader,
    dirs: Directories<'_>,
    stat: Option<CpuStat>,
) -> Option<Throttled> {
    let pod = dirs.pod.map(|pod| read_cpu_stat(reader, pod));
    let local = reader.read_whole(dirs.own, c"cpu.stat.local", parse_cpu_stat_local)?;
    Some(Throttled {
        container_us: stat.and_then(|stat| stat.throttled_us).unwrap_or_default(),
        pod_us: match pod {
            Some(stat) => stat?.and_then(|stat| stat.throttled_us).unwrap_or_default(),
            None => 0,
        },
        here_or_above_us: local.flatten().unwrap_or_default(),
    })
}

/// What it may use.
pub(super) fn read_room(reader: &mut CgroupReader, dirs: Directories<'_>) -> Option<CpuRoom> {
    let pod_max = match dirs.pod {
        Some(pod) => reader.read_whole(pod, c"cpu.max", parse_cpu_max)?,
        None => None,
    };
    let cpuset = c"cpuset.cpus.effective";
    let cpus = match (reader.read_whole(dirs.own, cpuset, parse_cpu_count)?, dirs.pod) {
        (None, Some(pod)) => reader.read_whole(pod, cpuset, parse_cpu_count)?,
        (cpus, _) => cpus,
    };
    Some(CpuRoom {
        container_max: reader.read_whole(dirs.own, c"cpu.max", parse_cpu_max)?,
        pod_max,
        cpus,
        tasks: reader.read_whole(dirs.own, c"pids.current", parse_number)?,
    })
}
