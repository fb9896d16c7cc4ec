//! The containers that the score is about, as a tick reads them: `cpu.pressure` always, the rest
//! only where it can matter, since a `cpu.stat` costs twenty times as much.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bystander::pod_of;
use super::cgroup::CgroupReader;
use super::cpu_use::{Directories, read_cpu_stat, read_room, read_throttled};
use crate::cgroup_path::PodUid;
use crate::identity::Workload;
use crate::kernel::cgroup_tree::{CgroupId, Node};
use crate::kernel::counters::parse_memory_events;
use crate::kernel::limits::parse_io_max;
use crate::sample::{CpuRoom, CpuUse, Depth, MemberSample, NodeSample, Pressures, Throttled};

/// Who stalled for less between two ticks has not waited.
const WAITED_US: u64 = 1_000;

/// For so long after somebody waited, everybody's CPU time is read.
const ATTENTIVE_FOR: Duration = Duration::from_secs(600);

/// A container in the tree, and whose it is.
pub(super) type Candidate<'a> = (&'a Node, Option<Arc<Workload>>);

/// Reads members, and keeps what cannot have changed since.
#[derive(Debug, Default)]
pub(super) struct MemberReader {
    known: HashMap<CgroupId, Known>,
    somebody_waited_at: Option<Instant>,
}

/// What the last tick found. A limit can have held nobody back who has not waited since.
#[derive(Debug, Clone, Copy)]
struct Known {
    pressures: Pressures,
    throttled: Option<Throttled>,
    room: Option<CpuRoom>,
    memory_limit_hits: Option<u64>,
    has_io_max: Option<bool>,
}

/// Of all containers those that the score is about: the ones in which VMs run, without those whose
/// VM is still elsewhere; on a node without VMs, every container.
pub(super) fn population(containers: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    let awaits_handover =
        |workload: &Workload| workload.vm.as_ref().is_some_and(|vm| vm.awaits_handover);
    let here: Vec<Candidate<'_>> = containers
        .into_iter()
        .filter(|(_, workload)| !workload.as_deref().is_some_and(awaits_handover))
        .collect();
    let is_vm = |(_, workload): &Candidate<'_>| workload.as_deref().is_some_and(Workload::is_vm);
    if here.iter().any(is_vm) { here.into_iter().filter(is_vm).collect() } else { here }
}

impl MemberReader {
    /// Reads the members. `pods` are the cgroups of their pods; the paths of those that are gone
    /// are added to `gone`.
    pub(super) fn read(
        &mut self,
        reader: &mut CgroupReader,
        members: Vec<Candidate<'_>>,
        pods: &HashMap<&PodUid, &Node>,
        node: &NodeSample,
        now: Instant,
        gone: &mut Vec<Box<str>>,
    ) -> Vec<MemberSample> {
        let mut samples = Vec::with_capacity(members.len());
        let mut nodes = Vec::with_capacity(members.len());
        for (member, workload) in members {
            let Some(sample) = reader.read(member, node, now, Depth::Score) else {
                gone.push(member.cgroup.path.clone());
                continue;
            };
            samples.push(MemberSample {
                cgroup: sample.cgroup,
                workload,
                pressure: sample.pressure,
                cpu: CpuUse::default(),
                memory_limit_hits: None,
                has_io_max: None,
            });
            nodes.push(member);
        }
        if samples.iter().any(|sample| self.waited_for_cpu(sample)) {
            self.somebody_waited_at = Some(now);
        }
        let attentive = self.is_attentive(now);
        for (sample, member) in samples.iter_mut().zip(nodes) {
            let pod = pod_of(&member.cgroup.place, pods).map(|pod| &pod.dir);
            self.read_limits(reader, Directories { own: &member.dir, pod }, attentive, sample);
        }
        let alive: HashSet<CgroupId> = samples.iter().map(|sample| sample.cgroup.id).collect();
        self.known.retain(|id, _| alive.contains(id));
        samples
    }

    /// Whether somebody waited for CPU of late.
    pub(super) fn is_attentive(&self, now: Instant) -> bool {
        self.somebody_waited_at.is_some_and(|at| now.saturating_duration_since(at) < ATTENTIVE_FOR)
    }

    fn waited_for_cpu(&self, sample: &MemberSample) -> bool {
        let stalled = |pressures: &Pressures| pressures.cpu.and_then(|cpu| cpu.some_us);
        let before = self.known.get(&sample.cgroup.id).and_then(|known| stalled(&known.pressures));
        let now = stalled(&sample.pressure.pressures);
        before.zip(now).is_some_and(|(before, now)| now.abs_diff(before) >= WAITED_US)
    }

    /// What the container used, and what it was not allowed.
    fn read_limits(
        &mut self,
        reader: &mut CgroupReader,
        dirs: Directories<'_>,
        attentive: bool,
        sample: &mut MemberSample,
    ) {
        let waited_for_cpu = self.waited_for_cpu(sample);
        let known = self.known.get(&sample.cgroup.id).copied();
        let pressures = sample.pressure.pressures;
        let stat =
            (attentive || known.is_none()).then(|| read_cpu_stat(reader, dirs.own)).flatten();
        sample.cpu = CpuUse {
            usage_us: stat.flatten().and_then(|stat| stat.usage_us),
            throttled: match known.filter(|_| !waited_for_cpu) {
                Some(known) => known.throttled,
                None => stat.and_then(|stat| read_throttled(reader, dirs, stat)),
            },
            room: match known.filter(|_| !waited_for_cpu) {
                Some(known) => known.room,
                None => read_room(reader, dirs),
            },
        };
        sample.memory_limit_hits = match known {
            Some(known) if known.pressures.memory == pressures.memory => known.memory_limit_hits,
            _ => [Some(dirs.own), dirs.pod].into_iter().flatten().try_fold(0_u64, |sum, dir| {
                let events = reader.read_whole(dir, c"memory.events.local", parse_memory_events)?;
                let hits = events.map_or(0, |events| {
                    events.high.unwrap_or_default().saturating_add(events.max.unwrap_or_default())
                });
                Some(sum.saturating_add(hits))
            }),
        };
        sample.has_io_max = match known {
            Some(known) if known.pressures.io == pressures.io => known.has_io_max,
            _ => [Some(dirs.own), dirs.pod].into_iter().flatten().try_fold(false, |has, dir| {
                let rows = reader.read_whole(dir, c"io.max", parse_io_max)?;
                Some(has || rows.is_some_and(|rows| !rows.is_empty()))
            }),
        };
        let CpuUse { throttled, room, .. } = sample.cpu;
        let (memory_limit_hits, has_io_max) = (sample.memory_limit_hits, sample.has_io_max);
        let known = Known { pressures, throttled, room, memory_limit_hits, has_io_max };
        self.known.insert(sample.cgroup.id, known);
    }
}
