//! The containers that the score is about, as a tick reads them: `cpu.pressure` always, the rest
//! only where it can matter, since a `cpu.stat` costs twenty times as much.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::attention::{Look, Watched};
use super::cgroup::CgroupReader;
use super::tick::Tick;
use crate::identity::Workload;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::cgroup_tree::{CgroupId, Node};
use crate::kernel::counters::parse_memory_events;
use crate::kernel::limits::parse_io_max;
use crate::kernel::pressure::Pressure;
use crate::sample::{CgroupSample, Depth, MemberSample, Pressures};

/// A container in the tree, and whose it is.
pub(super) type Candidate<'a> = (&'a Node, Option<Arc<Workload>>);

/// Reads members, and keeps what cannot have changed since.
#[derive(Debug, Default)]
pub(super) struct MemberReader {
    known: HashMap<CgroupId, Known>,
}

/// What the last tick found. A limit can have held nobody back who has not waited since.
#[derive(Debug, Clone, Copy)]
struct Known {
    watched: Watched,
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
    /// Reads the members.
    pub(super) fn read(
        &mut self,
        tick: &mut Tick<'_>,
        members: Vec<Candidate<'_>>,
    ) -> Vec<MemberSample> {
        let mut samples = Vec::with_capacity(members.len());
        for (member, workload) in members {
            let (reader, node) = (&mut *tick.reader, tick.node);
            let Some(sample) = reader.read(member, node, tick.now, Depth::Score) else {
                tick.gone.push(member.cgroup.path.clone());
                continue;
            };
            samples.push(self.read_one(tick, member, CgroupSample { workload, ..sample }));
        }
        let alive: HashSet<CgroupId> = samples.iter().map(|sample| sample.cgroup.id).collect();
        self.known.retain(|id, _| alive.contains(id));
        samples
    }

    /// What the container used, and what it was not allowed, beside its pressure.
    fn read_one(&mut self, tick: &mut Tick<'_>, member: &Node, read: CgroupSample) -> MemberSample {
        let id = member.cgroup.id;
        let known = self.known.get(&id).copied();
        let watched = Watched::after(known.as_ref().map(|known| &known.watched), read.pressure);
        let closely = tick.look == Look::Everybody
            || watched.waited_lately(tick.now)
            || !tick.cpu_use.has_two(id);
        let cpu = if closely {
            tick.read_cpu_use(member, watched.stalled_us())
        } else {
            tick.cpu_use.kept(id, tick.now)
        };
        let pod = tick.pod_of(member).map(|pod| &pod.dir);
        let dirs = [Some(&member.dir), pod];
        let now = read.pressure.pressures;
        let stood_still = |pressure: fn(&Pressures) -> Option<Pressure>| {
            known.filter(|known| pressure(&known.watched.pressure.pressures) == pressure(&now))
        };
        let memory_limit_hits = match stood_still(|pressures| pressures.memory) {
            Some(known) => known.memory_limit_hits,
            None => memory_limit_hits(tick.reader, dirs),
        };
        let has_io_max = match stood_still(|pressures| pressures.io) {
            Some(known) => known.has_io_max,
            None => has_io_max(tick.reader, dirs),
        };
        self.known.insert(id, Known { watched, memory_limit_hits, has_io_max });
        MemberSample {
            cgroup: read.cgroup,
            workload: read.workload,
            pressure: read.pressure,
            cpu,
            memory_limit_hits,
            has_io_max,
        }
    }
}

/// Times that a memory limit of the container's own or of its pod's made it reclaim.
fn memory_limit_hits(reader: &mut CgroupReader, dirs: [Option<&CgroupDir>; 2]) -> Option<u64> {
    dirs.into_iter().flatten().try_fold(0_u64, |sum, dir| {
        let events = reader.read_whole(dir, c"memory.events.local", parse_memory_events)?;
        let hits = events.map_or(0, |events| {
            events.high.unwrap_or_default().saturating_add(events.max.unwrap_or_default())
        });
        Some(sum.saturating_add(hits))
    })
}

/// Whether the container or its pod has an `io.max`.
fn has_io_max(reader: &mut CgroupReader, dirs: [Option<&CgroupDir>; 2]) -> Option<bool> {
    dirs.into_iter().flatten().try_fold(false, |has, dir| {
        let rows = reader.read_whole(dir, c"io.max", parse_io_max)?;
        Some(has || rows.is_some_and(|rows| !rows.is_empty()))
    })
}
