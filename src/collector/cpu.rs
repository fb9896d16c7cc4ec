//! CPU usage, throttling and limits of a container, by rules 3 and 4 of `state.rs`.

use std::sync::Arc;
use std::time::Instant;

use super::files::Files;
use super::population::Pods;
use super::state::{CgroupState, is_due};
use crate::cgroup_path::Place;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::cgroup_tree::CgroupNode;
use crate::kernel::counters::{CpuStat, parse_cpu_stat, parse_cpu_stat_local};
use crate::kernel::limits::{CpuMax, parse_cpu_max, parse_cpu_set, parse_number};
use crate::sample::{CpuCounters, CpuLimits, CpuSource, CpuUse, ThrottledTime};

/// The directories of a container and of its pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels<'a> {
    pub(super) container: &'a CgroupDir,
    pub(super) pod: Option<&'a CgroupDir>,
}

impl<'a> Levels<'a> {
    pub(super) fn new(node: &'a CgroupNode, pods: &Pods<'a>) -> Self {
        let uid = if let Place::Pod(place) = &node.cgroup.place { Some(&place.uid) } else { None };
        let pod = uid.and_then(|uid| pods.get(uid)).map(|pod| &pod.dir);
        Self { container: &node.dir, pod }
    }

    /// Both, the container first.
    pub(super) fn iter(self) -> impl Iterator<Item = &'a CgroupDir> {
        std::iter::once(self.container).chain(self.pod)
    }
}

/// Reads the CPU files that `source` needs, and keeps their values in the container's state. With
/// run delay, usage is read from the threads. The files are then needed only for the effect of
/// limits while the container waits, and two readings are not compared across a time in which it
/// did not wait.
pub(super) fn read_cpu_use(
    files: &mut Files,
    state: &mut CgroupState,
    dirs: Levels<'_>,
    source: CpuSource,
    now: Instant,
) -> CpuUse {
    let waits = state.cpu_wait.waited_lately(now);
    if is_due(state.limits_at, now) {
        state.limits_at = Some(now);
        state.cpu.limits = read_limits(files, dirs);
    }
    if source == CpuSource::RunDelay && !waits {
        state.cpu = CpuUse { limits: state.cpu.limits.take(), ..CpuUse::default() };
        return state.cpu.clone();
    }
    let counters_due = match source {
        CpuSource::RunDelay => {
            state.cpu.limits.as_ref().is_some_and(|limits| limits.quota().is_some())
        }
        CpuSource::Psi => {
            let newest_of_a_pair = state.cpu.before.and(state.cpu.last);
            waits || is_due(newest_of_a_pair.map(|last| last.at), now)
        }
    };
    if counters_due {
        if let (CpuSource::Psi, Some(limits)) = (source, &mut state.cpu.limits) {
            // The number of tasks changes: a VM starts its threads after its container is created.
            limits.tasks = files.read_value(dirs.container, c"pids.current", parse_number);
        }
        let last = read_counters(files, dirs, state.cpu.limits.as_ref(), now);
        state.cpu.before = state.cpu.last.replace(last);
    }
    state.cpu.clone()
}

/// `None` where a file could not be read.
fn read_limits(files: &mut Files, dirs: Levels<'_>) -> Option<CpuLimits> {
    let pod_max = dirs.pod.map_or(Some(None), |pod| files.read(pod, c"cpu.max", parse_cpu_max))?;
    let weight = files.read(dirs.pod.unwrap_or(dirs.container), c"cpu.weight", parse_number)?;
    let cpuset = c"cpuset.cpus.effective";
    let cpus = match (files.read(dirs.container, cpuset, parse_cpu_set)?, dirs.pod) {
        (None, Some(pod)) => files.read(pod, cpuset, parse_cpu_set)?,
        (cpus, _) => cpus,
    };
    let container_max = files.read(dirs.container, c"cpu.max", parse_cpu_max)?;
    Some(CpuLimits { container_max, pod_max, cpus: cpus.map(Arc::new), weight, tasks: None })
}

fn read_counters(
    files: &mut Files,
    dirs: Levels<'_>,
    limits: Option<&CpuLimits>,
    now: Instant,
) -> CpuCounters {
    let stat = files.read(dirs.container, c"cpu.stat", parse_cpu_stat);
    let throttled = limits.zip(stat).and_then(|(limits, stat)| match limits.quota() {
        None => Some(ThrottledTime::default()),
        Some(_) => read_throttled(files, dirs, limits, stat),
    });
    CpuCounters { at: now, usage_us: stat.flatten().and_then(|stat| stat.usage_us), throttled }
}

fn read_throttled(
    files: &mut Files,
    dirs: Levels<'_>,
    limits: &CpuLimits,
    stat: Option<CpuStat>,
) -> Option<ThrottledTime> {
    let of = |stat: Option<CpuStat>| stat.and_then(|stat| stat.throttled_us).unwrap_or_default();
    let pod_us = match dirs.pod {
        Some(pod) if limits.pod_max.and_then(CpuMax::cpus).is_some() => {
            Some(of(files.read(pod, c"cpu.stat", parse_cpu_stat)?))
        }
        _ => None,
    };
    let local = files.read(dirs.container, c"cpu.stat.local", parse_cpu_stat_local)?;
    let here_or_above_us = local.flatten().unwrap_or_default();
    Some(ThrottledTime { container_us: of(stat), pod_us, here_or_above_us })
}
