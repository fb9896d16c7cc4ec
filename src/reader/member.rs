//! The containers that the score is about, as a tick reads them: `cpu.pressure` always, the rest
//! only where it can matter, since a `cpu.stat` costs twenty times as much.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::attention::{Look, Watched};
use super::stalls::StallReader;
use super::tick::Tick;
use crate::identity::Workload;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::sample::{CgroupSample, Depth, MemberSample, ThreadTimes};

/// A container in the tree, and whose it is.
pub(super) type Candidate<'a> = (&'a CgroupNode, Option<Arc<Workload>>);

/// Reads members, and keeps what cannot have changed since.
#[derive(Debug, Default)]
pub(super) struct MemberReader {
    known: HashMap<CgroupId, Watched>,
    stalls: StallReader,
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
    /// Whether any of them waited of late, as far as the tick before knew.
    pub(super) fn somebody_waits(&self, now: Instant) -> bool {
        self.known.values().any(|watched| watched.waited_lately(now))
    }

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
        self.stalls.end(tick, &alive);
        samples
    }

    /// What the container used, and what it was not allowed, beside its pressure.
    fn read_one(
        &mut self,
        tick: &mut Tick<'_>,
        member: &CgroupNode,
        read: CgroupSample,
    ) -> MemberSample {
        let id = member.cgroup.id;
        let before = self.known.get(&id);
        let threads = tick.read_threads(id);
        let watched = match tick.threads {
            Some(_) => Watched::after(before, threads.as_deref().map(delay_us), tick.now),
            None => Watched::after_stall(before, &read.pressure, Resource::Cpu),
        };
        let closely = tick.look == Look::Everybody
            || watched.waited_lately(tick.now)
            || !tick.cpu_use.has_two(id);
        let cpu = if closely {
            tick.read_cpu_use(member, watched.waited_us())
        } else {
            tick.cpu_use.kept(id, tick.now)
        };
        let (memory, io) = self.stalls.read(tick, member, &read.pressure);
        self.known.insert(id, watched);
        MemberSample {
            cgroup: read.cgroup,
            workload: read.workload,
            pressure: read.pressure,
            cpu,
            threads,
            memory,
            io,
        }
    }
}

/// For how long all of them waited, microseconds.
fn delay_us(threads: &[ThreadTimes]) -> u64 {
    threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.times.delay_ns / 1000))
}
