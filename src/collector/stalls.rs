//! Reads the counters that separate contention on the node from a container's own limits, as causes
//! of its memory and I/O wait. They are read only while the container waits.

use super::cpu::Levels;
use super::files::Files;
use super::state::CgroupState;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::counters::{parse_memory_events, parse_memory_stat};
use crate::kernel::limits::{parse_io_max, parse_number};
use crate::kernel::page_bytes;
use crate::sample::{DiskOperations, IoUse, MemoryUse, PressureReading, Refaults, ScannedPages};

/// Which memory files a tick reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryNeeds {
    /// Tasks of the node waited for memory since the tick before.
    pub(super) waits: bool,
    /// The node reclaimed memory within the last minute.
    pub(super) refaults: bool,
}

/// Reads the memory reclaim of a container.
pub(super) fn read_memory_use(
    files: &mut Files,
    state: &mut CgroupState,
    dirs: Levels<'_>,
    pressure: &PressureReading,
    needs: MemoryNeeds,
) -> MemoryUse {
    let pressure = pressure.pressures.memory;
    let mut memory = match state.memory {
        // The container has not waited since, so no limit delayed it.
        Some((before, memory)) if before == pressure => memory,
        before => read_reclaim(files, dirs, before.map(|(_, memory)| memory)),
    };
    memory.current = if needs.waits { read_memory_of(files, dirs.container) } else { None };
    state.memory = Some((pressure, memory));
    memory
}

fn read_reclaim(files: &mut Files, dirs: Levels<'_>, before: Option<MemoryUse>) -> MemoryUse {
    let limit_hits = dirs
        .iter()
        .try_fold(0_u64, |sum, dir| Some(sum.saturating_add(read_limit_hits(files, dir)?)));
    let was_hit = before.is_some_and(|before| {
        before.scanned.is_some() || before.limit_hits.zip(limit_hits).is_some_and(|(a, b)| a < b)
    });
    let scanned = if was_hit { read_scanned(files, dirs.container) } else { None };
    MemoryUse { current: None, limit_hits, scanned }
}

/// Reads the disk I/O of a container.
pub(super) fn read_io_use(
    files: &mut Files,
    state: &mut CgroupState,
    dirs: Levels<'_>,
    reading: &PressureReading,
    needs: MemoryNeeds,
) -> IoUse {
    let pressure = reading.pressures.io;
    let has_max = match state.io_max {
        Some((before, has_max)) if before == pressure => has_max,
        _ => read_has_io_max(files, dirs),
    };
    state.io_max = Some((pressure, has_max));
    let mut io = IoUse { has_max, ..IoUse::default() };
    if !state.io_wait.advance(pressure.and_then(|pressure| pressure.some_us), reading.at) {
        return io;
    }
    io.operations = files.read_io_stat(dirs.container).map(|rows| match rows {
        None => DiskOperations::Uncounted,
        Some(rows) => {
            DiskOperations::Counted(rows.into_iter().map(|row| (row.device, row)).collect())
        }
    });
    if needs.refaults {
        io.refaults = read_refaults(files, dirs.container);
        // The whole pod counts: its other containers do not compete for memory as other pods do.
        io.pod_memory = read_memory_of(files, dirs.pod.unwrap_or(dirs.container));
    }
    io
}

/// Times that a memory limit of this cgroup caused reclaim; 0 where the memory controller is off.
pub(super) fn read_limit_hits(files: &mut Files, dir: &CgroupDir) -> Option<u64> {
    let events = files.read(dir, c"memory.events.local", parse_memory_events)?;
    Some(events.map_or(0, |events| {
        events.high.unwrap_or_default().saturating_add(events.max.unwrap_or_default())
    }))
}

/// Memory of a cgroup, bytes.
pub(super) fn read_memory_of(files: &mut Files, dir: &CgroupDir) -> Option<u64> {
    files.read_value(dir, c"memory.current", parse_number)
}

/// `None` also on kernels that do not count kswapd and direct reclaim separately.
fn read_scanned(files: &mut Files, dir: &CgroupDir) -> Option<ScannedPages> {
    let stat = files.read_value(dir, c"memory.stat", parse_memory_stat)?;
    Some(ScannedPages { by_kswapd: stat.pgscan_kswapd?, directly: stat.pgscan_direct? })
}

fn read_has_io_max(files: &mut Files, dirs: Levels<'_>) -> Option<bool> {
    dirs.iter().try_fold(false, |has, dir| {
        let rows = files.read(dir, c"io.max", parse_io_max)?;
        Some(has || rows.is_some_and(|rows| !rows.is_empty()))
    })
}

fn read_refaults(files: &mut Files, dir: &CgroupDir) -> Option<Refaults> {
    let stat = files.read_value(dir, c"memory.stat", parse_memory_stat)?;
    let bytes = |pages: u64| pages.saturating_mul(page_bytes());
    Some(Refaults {
        anon: bytes(stat.workingset_refault_anon?),
        anon_stalled: bytes(stat.workingset_restore_anon?),
        file: bytes(stat.workingset_refault_file?),
    })
}
