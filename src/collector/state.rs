//! The state of one cgroup that is kept between passes, until the cgroup is removed.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::node::{NodeReader, is_fresh};
use super::threads::ContainerThreads;
use crate::clock::Moment;
use crate::identity::Workload;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupId, Resource};
use crate::kernel::counters::CpuStat;
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::kernel::{ReadError, if_present};
use crate::sample::RenderedLabels;
use crate::waiting::files::Files;
use crate::waiting::reader::Dirs;
use crate::waiting::readings::{CpuCounters, Readings, Threads};
use crate::waiting::series::{PressureReadings, Reading, Window};

/// Boxed, since the map has up to twice as many slots as cgroups.
pub(super) type States = HashMap<CgroupId, Box<CgroupState>>;

/// The state of one cgroup.
#[derive(Debug, Default)]
pub(super) struct CgroupState {
    pressures: PerResource<Option<KeptPressure>>,
    has_tasks: bool,
    /// The labels of its series, and the workload that they are of: it can become known after its cgroup.
    labels: (Option<Arc<Workload>>, Arc<OnceLock<RenderedLabels>>),
    /// What ticks have read; `None` for a cgroup that no tick reads.
    pub(super) readings: Option<Box<Readings>>,
    /// Its threads, with run delay as the CPU source.
    pub(super) threads: ContainerThreads,
}

#[derive(Debug, Clone, Copy)]
struct KeptPressure {
    at: Instant,
    /// The node's pressure at that time.
    node: Option<Pressure>,
    pressure: Option<Pressure>,
}

impl CgroupState {
    /// Pressures of these resources; `None` if the cgroup was removed. Memory and I/O pressure are
    /// read only after the total of the node has changed: a task that waits in a cgroup is also
    /// counted in the node's pressure.
    pub(super) fn pressures(
        &mut self,
        files: &mut Files,
        dir: &CgroupDir,
        resources: &[Resource],
        node: &PressureReadings,
    ) -> Option<PressureReadings> {
        if dir.is_root_cgroup() {
            return Some(*node);
        }
        let mut readings = PressureReadings::default();
        if *node == PressureReadings::default() {
            // PSI is off on the whole node, so the files do not exist, or none could be read.
            return files.is_alive(dir).then_some(readings);
        }
        let mut now = (files.clock)().at;
        for &resource in resources {
            let of_node = *node.of(resource);
            let node = of_node.map(|reading| reading.value);
            let kept = match (self.pressures.of(resource), of_node) {
                (Some(kept), _) if is_fresh(kept.at, now) => *kept,
                (Some(kept), Some(of_node))
                    if resource != Resource::Cpu
                        && kept.pressure.is_some()
                        && kept.node == Some(of_node.value) =>
                {
                    KeptPressure { at: of_node.at, ..*kept }
                }
                _ => {
                    let read = dir.pressure(resource);
                    // If the directory still exists, PSI is off for this cgroup: `cgroup.pressure` is 0.
                    if read.as_ref().is_err_and(ReadError::is_vanished) && !files.is_alive(dir) {
                        return None;
                    }
                    let pressure = files.note(if_present(read)).flatten();
                    now = (files.clock)().at;
                    KeptPressure { at: now, node, pressure }
                }
            };
            *self.pressures.of_mut(resource) = Some(kept);
            *readings.of_mut(resource) = kept.pressure.map(|value| Reading { at: kept.at, value });
        }
        Some(readings)
    }

    /// Reads what a tick needs of this cgroup: its CPU pressure, if it is scored also its other pressures and its
    /// threads, and the files that the meters need. Returns whether it still exists. Its counters were 0 at the
    /// tick before if it was created since then.
    pub(super) fn tick(
        &mut self,
        files: &mut Files,
        dirs: &Dirs<'_>,
        is_scored: bool,
        node: &NodeReader,
        tick_before: Option<Moment>,
        now: Instant,
    ) -> bool {
        let dir = dirs.container;
        let resources: &[Resource] = if is_scored { &Resource::ALL } else { &[Resource::Cpu] };
        let Some(pressures) = self.pressures(files, dir, resources, &node.pressure) else {
            return false;
        };
        let readings = self.readings.get_or_insert_with(|| {
            // Before the wall clock was set back, cgroups were made in what is now the future.
            let (made_at, now) = (dir.cgroup.made_at_s, (files.clock)());
            let is_new = |before: &Moment| {
                made_at.is_some_and(|made_at| {
                    made_at > before.unix_ms / 1000 && made_at <= now.unix_ms / 1000
                })
            };
            tick_before.filter(is_new).map(|before| since(before.at)).unwrap_or_default()
        });
        for &resource in resources {
            readings.pressure.of_mut(resource).push(*pressures.of(resource));
        }
        // If its CPU pressure has not changed, none of its tasks waited.
        let may_wait = readings.pressure.cpu.moved();
        readings.threads =
            if is_scored { self.threads.read(may_wait, files) } else { Threads::NotRead };
        let has_read = readings.read(files, dirs, &node.readings, is_scored, now);
        // A missing file means that its controller is off, or that the cgroup was removed.
        !(is_scored && has_read) || files.is_alive(dir)
    }

    /// The labels of its series with this workload, which are rendered when they are needed.
    pub(super) fn labels(
        &mut self,
        workload: Option<&Arc<Workload>>,
    ) -> Arc<OnceLock<RenderedLabels>> {
        let (before, labels) = &mut self.labels;
        if before.as_ref().map(Arc::as_ptr) != workload.map(Arc::as_ptr) {
            (*before, *labels) = (workload.cloned(), Arc::default());
        }
        Arc::clone(labels)
    }

    /// Whether the cgroup has processes of its own.
    pub(super) fn has_tasks(&mut self, files: &mut Files, dir: &CgroupDir) -> bool {
        // A failed read says nothing: a cgroup with tasks would not be scored.
        if let Some(count) = files.note(dir.process_count()).flatten() {
            self.has_tasks = count > 0;
        }
        self.has_tasks
    }
}

/// Readings of counters that were 0 at this time.
fn since(at: Instant) -> Box<Readings> {
    let last = Some(Reading { at, value: Pressure { some_us: Some(0), full_us: Some(0) } });
    let container = CpuStat { usage_us: Some(0), ..CpuStat::default() };
    let counters = CpuCounters { container, vcpus_ran_ns: Some(0), ..CpuCounters::default() };
    Box::new(Readings {
        pressure: PerResource::by(|_| Window { before: None, last }),
        cpu: Window { before: None, last: Some(Reading { at, value: counters }) },
        ..Readings::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_kept_while_the_workload_is_the_same() {
        let (mut state, workload) = (CgroupState::default(), Arc::new(Workload::default()));
        let unlisted = state.labels(None);
        let listed = state.labels(Some(&workload));
        assert!(!Arc::ptr_eq(&unlisted, &listed));
        assert!(Arc::ptr_eq(&listed, &state.labels(Some(&workload))));
        // Another workload may have equal labels.
        assert!(!Arc::ptr_eq(&listed, &state.labels(Some(&Arc::new(Workload::default())))));
    }
}
