//! What a container used of CPUs, and what held it back: files that cost much more than a
//! pressure, so the caller says when they matter, and what cannot have changed is kept.

use std::collections::HashMap;
use std::time::Instant;

use super::attention::Look;
use super::cgroup::CgroupReader;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::kernel::counters::{CpuStat, parse_cpu_stat, parse_cpu_stat_local};
use crate::kernel::limits::{CpuMax, parse_cpu_count, parse_cpu_max, parse_number};
use crate::sample::{CpuCounters, CpuRoom, CpuUse, Throttled};

/// Who stalled for less between two readings has not waited: no limit held it back.
const WAITED_US: u64 = 1_000;

/// A container, and its pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Container<'a> {
    pub(super) own: &'a CgroupNode,
    pub(super) pod: Option<&'a CgroupNode>,
}

/// Reads it, and keeps the last two readings of each container.
#[derive(Debug, Default)]
pub(super) struct CpuUseReader {
    known: HashMap<CgroupId, Known>,
    pods: Pods,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    cpu: CpuUse,
    stalled_us: Option<u64>,
    /// At which tick it was asked for.
    asked_at: Instant,
}

/// What a tick has read of pods so far, each file once for all containers of one.
#[derive(Debug, Default)]
struct Pods {
    throttled_us: HashMap<CgroupId, Option<u64>>,
    max: HashMap<CgroupId, Option<Option<CpuMax>>>,
}

impl CpuUseReader {
    /// Whether two readings of a container are kept: fewer make no rate.
    pub(super) fn has_two(&self, id: CgroupId) -> bool {
        self.known.get(&id).is_some_and(|known| known.cpu.before.is_some())
    }

    /// What was read of a container last, and keeps it.
    pub(super) fn kept(&mut self, id: CgroupId, now: Instant) -> CpuUse {
        let known = self.known.get_mut(&id);
        known.map_or_else(CpuUse::default, |known| {
            known.asked_at = now;
            known.cpu
        })
    }

    /// Reads a container's files, given its total of stalling: its limits only when everybody is
    /// looked at, and what a limit took only where it may have held somebody back.
    pub(super) fn read(
        &mut self,
        reader: &mut CgroupReader,
        container: Container<'_>,
        stalled_us: Option<u64>,
        look: Look,
        now: Instant,
    ) -> CpuUse {
        let id = container.own.cgroup.id;
        let before = self.known.get(&id).copied();
        let last = before.and_then(|known| known.cpu.last);
        let calm = before.is_some_and(|known| !has_waited(known.stalled_us, stalled_us));
        let room = match before.and_then(|known| known.cpu.room) {
            Some(room) if calm => Some(room),
            Some(room) if look == Look::WhoWaits => read_tasks(reader, container, room),
            _ => self.pods.read_room(reader, container),
        };
        let stat = read_cpu_stat(reader, &container.own.dir);
        let throttled = match last {
            Some(last) if calm => last.throttled,
            _ => stat
                .zip(room)
                .and_then(|(stat, room)| self.pods.read_throttled(reader, container, stat, room)),
        };
        let usage_us = stat.flatten().and_then(|stat| stat.usage_us);
        let cpu =
            CpuUse { last: Some(CpuCounters { at: now, usage_us, throttled }), before: last, room };
        self.known.insert(id, Known { cpu, stalled_us, asked_at: now });
        cpu
    }

    /// Ends a tick: what it did not ask for is forgotten, or its next rate would tell of the past.
    pub(super) fn forget_others(&mut self, now: Instant) {
        self.known.retain(|_, known| known.asked_at == now);
        self.pods = Pods::default();
    }
}

impl Pods {
    /// What quotas took, given the container's own `cpu.stat`.
    fn read_throttled(
        &mut self,
        reader: &mut CgroupReader,
        container: Container<'_>,
        stat: Option<CpuStat>,
        room: CpuRoom,
    ) -> Option<Throttled> {
        // A pod without a quota takes nothing, and its `cpu.stat` is the dearest of all.
        let limited = room.pod_max.and_then(CpuMax::cpus).is_some();
        let pod_us = match container.pod.filter(|_| limited) {
            Some(pod) => {
                let read = || {
                    let stat = read_cpu_stat(reader, &pod.dir)?;
                    Some(stat.and_then(|stat| stat.throttled_us).unwrap_or_default())
                };
                Some((*self.throttled_us.entry(pod.cgroup.id).or_insert_with(read))?)
            }
            None => None,
        };
        let own = &container.own.dir;
        let local = reader.read_whole(own, c"cpu.stat.local", parse_cpu_stat_local)?;
        Some(Throttled {
            container_us: stat.and_then(|stat| stat.throttled_us).unwrap_or_default(),
            pod_us,
            here_or_above_us: local.flatten().unwrap_or_default(),
        })
    }

    /// What it may use.
    fn read_room(
        &mut self,
        reader: &mut CgroupReader,
        container: Container<'_>,
    ) -> Option<CpuRoom> {
        let pod_max = match container.pod {
            Some(pod) => {
                let read = || reader.read_whole(&pod.dir, c"cpu.max", parse_cpu_max);
                (*self.max.entry(pod.cgroup.id).or_insert_with(read))?
            }
            None => None,
        };
        let own = &container.own.dir;
        let cpuset = c"cpuset.cpus.effective";
        let cpus = match (reader.read_whole(own, cpuset, parse_cpu_count)?, container.pod) {
            (None, Some(pod)) => reader.read_whole(&pod.dir, cpuset, parse_cpu_count)?,
            (cpus, _) => cpus,
        };
        let container_max = reader.read_whole(own, c"cpu.max", parse_cpu_max)?;
        read_tasks(reader, container, CpuRoom { container_max, pod_max, cpus, tasks: None })
    }
}

/// The same room with the tasks that are there now.
fn read_tasks(
    reader: &mut CgroupReader,
    container: Container<'_>,
    room: CpuRoom,
) -> Option<CpuRoom> {
    let tasks = reader.read_whole(&container.own.dir, c"pids.current", parse_number)?;
    Some(CpuRoom { tasks, ..room })
}

/// `cpu.stat`; the outer `None` is an error, the inner one that there is no such file.
fn read_cpu_stat(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<Option<CpuStat>> {
    reader.read_whole(dir, c"cpu.stat", parse_cpu_stat)
}

fn has_waited(before: Option<u64>, now: Option<u64>) -> bool {
    before.zip(now).is_some_and(|(before, now)| now.abs_diff(before) >= WAITED_US)
}
