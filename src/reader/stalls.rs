//! What tells whose doing it is that a container waits for memory or for disks: read only where it
//! waits, since `memory.stat` and `io.stat` cost as much as `cpu.stat`.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::attention::Watched;
use super::cgroup::CgroupReader;
use super::tick::Tick;
use crate::kernel::cgroup_dir::{CgroupDir, Resource};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::kernel::counters::{parse_memory_events, parse_memory_stat};
use crate::kernel::limits::{parse_io_max, parse_number};
use crate::kernel::node_text::Reclaim;
use crate::kernel::page_bytes;
use crate::sample::{
    DiskOperations, IoUse, MemoryUse, PressureReading, Pressures, Refaults, Scanned,
};

/// What was taken to free memory comes back for so long after, and for longer: but then the shortage is over.
const COMES_BACK: Duration = Duration::from_secs(60);

/// Reads them, and keeps what cannot have changed since.
#[derive(Debug, Default)]
pub(super) struct StallReader {
    known: HashMap<CgroupId, Known>,
    /// What the node had looked at to free memory at the tick before, for itself or for all pods' limit.
    freed: Option<Freed>,
    /// When that last moved.
    freed_at: Option<Instant>,
}

type Freed = (Reclaim, Option<u64>);

fn freed(tick: &Tick<'_>) -> Option<Freed> {
    Some((tick.node.reclaim?, tick.node.pods_limit_hits))
}

/// What the last tick found. A limit can have held nobody back who has not waited since.
#[derive(Debug)]
struct Known {
    for_disks: Watched,
    pressures: Pressures,
    memory: MemoryUse,
    has_io_max: Option<bool>,
}

impl StallReader {
    /// Reads what matters of a container, whose pressures are these now.
    pub(super) fn read(
        &mut self,
        tick: &mut Tick<'_>,
        member: &CgroupNode,
        reading: &PressureReading,
    ) -> (MemoryUse, IoUse) {
        let known = self.known.get(&member.cgroup.id);
        let dirs = [Some(&member.dir), tick.pod_of(member).map(|pod| &pod.dir)];
        let stood_still = |resource| {
            let before = |known: &&Known| known.pressures.of(resource);
            known.filter(|known| before(known) == reading.pressures.of(resource))
        };
        let memory = match stood_still(Resource::Memory) {
            Some(known) => known.memory,
            None => read_memory(tick.reader, dirs, known.map(|known| known.memory)),
        };
        let has_max = match stood_still(Resource::Io) {
            Some(known) => known.has_io_max,
            None => read_has_io_max(tick.reader, dirs),
        };
        let before = known.map(|known| &known.for_disks);
        let for_disks = Watched::after_stall(before, reading, Resource::Io);
        let waited_lately = for_disks.waited_lately(tick.now);
        let operations = waited_lately.then(|| read_operations(tick.reader, &member.dir)).flatten();
        let (refaults, pod_memory) = if waited_lately && self.freed_lately(tick) {
            // Its pod's other containers are no others.
            let pod = dirs.into_iter().flatten().last();
            let pod_memory = pod.and_then(|pod| read_memory_of(tick.reader, pod));
            (read_refaults(tick.reader, &member.dir), pod_memory)
        } else {
            (None, None)
        };
        let pressures = reading.pressures;
        let known = Known { for_disks, pressures, memory, has_io_max: has_max };
        self.known.insert(member.cgroup.id, known);
        (memory, IoUse { has_max, operations, refaults, pod_memory })
    }

    fn frees_memory(&self, tick: &Tick<'_>) -> bool {
        self.freed.is_some() && self.freed != freed(tick)
    }

    fn freed_lately(&self, tick: &Tick<'_>) -> bool {
        let since = |at| tick.now.saturating_duration_since(at);
        self.frees_memory(tick) || self.freed_at.is_some_and(|at| since(at) < COMES_BACK)
    }

    /// After the last container of a tick: keeps those that are left.
    pub(super) fn end(&mut self, tick: &Tick<'_>, alive: &HashSet<CgroupId>) {
        if self.frees_memory(tick) {
            self.freed_at = Some(tick.now);
        }
        self.freed = freed(tick);
        self.known.retain(|id, _| alive.contains(id));
    }
}

/// A container's directory, and its pod's.
type Levels<'a> = [Option<&'a CgroupDir>; 2];

/// How often a memory limit made this cgroup reclaim; zero where the memory controller is off.
pub(super) fn read_limit_hits(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<u64> {
    let events = reader.read_whole(dir, c"memory.events.local", parse_memory_events)?;
    Some(events.map_or(0, |events| {
        events.high.unwrap_or_default().saturating_add(events.max.unwrap_or_default())
    }))
}

fn read_memory(
    reader: &mut CgroupReader,
    dirs: Levels<'_>,
    before: Option<MemoryUse>,
) -> MemoryUse {
    let limit_hits = dirs
        .into_iter()
        .flatten()
        .try_fold(0_u64, |sum, dir| Some(sum.saturating_add(read_limit_hits(reader, dir)?)));
    let hit_a_limit = before.is_some_and(|before| {
        before.scanned.is_some() || before.limit_hits.zip(limit_hits).is_some_and(|(a, b)| a < b)
    });
    let own = dirs.into_iter().flatten().next().filter(|_| hit_a_limit);
    let scanned = own.and_then(|own| read_scanned(reader, own));
    MemoryUse { limit_hits, scanned }
}

/// `None` too on kernels that do not tell who looked.
fn read_scanned(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<Scanned> {
    let stat = reader.read_whole(dir, c"memory.stat", parse_memory_stat)??;
    Some(Scanned { by_kswapd: stat.pgscan_kswapd?, directly: stat.pgscan_direct? })
}

fn read_has_io_max(reader: &mut CgroupReader, dirs: Levels<'_>) -> Option<bool> {
    dirs.into_iter().flatten().try_fold(false, |has, dir| {
        let rows = reader.read_whole(dir, c"io.max", parse_io_max)?;
        Some(has || rows.is_some_and(|rows| !rows.is_empty()))
    })
}

fn read_operations(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<DiskOperations> {
    let Some(devices) = reader.read_io_stat(dir)? else {
        return Some(DiskOperations::Uncounted);
    };
    Some(DiskOperations::Counted(devices.into_iter().map(|row| (row.device, row)).collect()))
}

fn read_refaults(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<Refaults> {
    let stat = reader.read_whole(dir, c"memory.stat", parse_memory_stat)??;
    let bytes = |pages: u64| pages.saturating_mul(page_bytes());
    Some(Refaults {
        anon: bytes(stat.workingset_refault_anon?),
        anon_stalled: bytes(stat.workingset_restore_anon?),
        file: bytes(stat.workingset_refault_file?),
    })
}

/// What a cgroup has of memory, bytes.
pub(super) fn read_memory_of(reader: &mut CgroupReader, dir: &CgroupDir) -> Option<u64> {
    reader.read_whole(dir, c"memory.current", parse_number)?
}
