//! Reads the node and its cgroups in two kinds of passes, which share one state for each cgroup: a
//! scoring pass (tick) reads what the score needs, and an export pass (scrape) what is exported.
//! `state.rs` has the rules that decide when a file is read again.

mod cpu;
mod export;
mod files;
mod node;
mod population;
mod processes;
mod stalls;
mod state;
mod threads;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Moment;
use crate::identity::matching::{Matching, PodMatch, match_pods};
use crate::identity::pod_index::PodIndex;
use crate::identity::selection::Selection;
use crate::kernel::cgroup_dir::{CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode, CgroupTree, Extent};
use crate::kernel::proc_root::ProcRoot;
use crate::sample::{
    CgroupSample, ContainerSample, CpuSource, CpuUse, Detail, Groups, NodeSample, OtherSample,
    PassReport, ScrapeSample, ThreadSample, TickSample,
};
use cpu::{Levels, read_cpu_use};
use export::read_stats;
use files::Files;
use node::NodeReader;
use population::{Container, Pods, scored_containers, workloads};
use processes::ProcessFinder;
use stalls::{MemoryNeeds, read_io_use, read_memory_use};
pub use state::MIN_PRESSURE_INTERVAL;
use state::States;

/// Maximum numbers of directory handles that are kept open.
#[derive(Debug, Clone, Copy, Default)]
pub struct Handles {
    /// Of cgroups; beyond that, files are opened by path.
    pub cgroups: usize,
    /// Of processes and threads; a container beyond that has no run delay.
    pub processes: usize,
}

/// Reads samples, and keeps what the next pass needs.
#[derive(Debug)]
pub struct Collector {
    node: NodeReader,
    tree: CgroupTree,
    states: States,
    files: Files,
    cpu_source: CpuSource,
    /// `None` unless run delay is the CPU source.
    processes: Option<ProcessFinder>,
    /// `None` on a node without cgroup v2.
    selection: Option<Selection>,
    groups: Groups,
    /// Whether the tree covers the whole node, as the counters in `/proc` do.
    is_whole_node: bool,
}

impl Collector {
    /// A collector that has read nothing yet. Without a selection, as on a node without cgroup v2,
    /// it reads only the node's own files.
    pub fn new(
        proc: ProcRoot,
        root: Arc<CgroupRoot>,
        selection: Option<Selection>,
        groups: Groups,
        cpu_source: CpuSource,
        handles: Handles,
    ) -> Self {
        let extent = match selection {
            None => Extent::Root,
            Some(Selection { everything: true, .. }) => Extent::Everything,
            Some(_) => Extent::Pods,
        };
        let by_run_delay = cpu_source == CpuSource::RunDelay;
        Self {
            node: NodeReader::new(proc),
            is_whole_node: !root.is_namespaced(),
            tree: CgroupTree::new(root, extent, handles.cgroups),
            states: States::new(),
            files: Files::default(),
            cpu_source,
            processes: by_run_delay.then(|| ProcessFinder::new(handles.processes)),
            selection,
            groups,
        }
    }

    /// The scoring pass. With `pods`, cgroups of pods are included once their pods are listed.
    pub fn tick(&mut self, moment: Moment, pods: Option<&PodIndex>) -> TickSample {
        let now = moment.at;
        self.follow_tree(now);
        let node = self.node.read(self.tree.root(), &mut self.files, moment);
        let (all_pods, needs) = self.node.memory(&self.tree, &mut self.files, &node, now);
        let (found, matching) = match_pods(pods, self.tree.nodes().map(|node| &node.cgroup.place));
        let disks = self.files.read_by(|buffer| self.node.proc.disks(buffer));
        let (mut containers, mut others, mut run_delay_ns, mut hidden) = (None, None, None, 0);
        if self.selection.is_some() && pods.is_none_or(PodIndex::is_listed) {
            let (by_uid, scored) = scored_containers(self.tree.nodes().zip(&found));
            if let Some(processes) = &mut self.processes {
                processes.follow(&self.node.proc, &scored, &mut self.states, &mut self.files, now);
            }
            let ids: HashSet<CgroupId> = scored.iter().map(|(node, _)| node.cgroup.id).collect();
            let mut pass = TickPass {
                files: &mut self.files,
                states: &mut self.states,
                cpu_source: self.cpu_source,
                node: &node,
                pods: &by_uid,
                needs,
                now,
                hidden: 0,
                any_waits: false,
            };
            containers = Some(scored.into_iter().filter_map(|one| pass.container(one)).collect());
            hidden = pass.hidden;
            if pass.any_waits && self.is_whole_node {
                let all = workloads(self.tree.nodes()).filter(|one| !ids.contains(&one.cgroup.id));
                others = Some(all.filter_map(|node| pass.other(node)).collect());
                run_delay_ns =
                    self.files.read_by(|buffer| self.node.proc.run_delay(buffer)).flatten();
            }
        }
        TickSample {
            moment,
            node,
            run_delay_ns,
            disks,
            pods: all_pods,
            cpu_source: self.cpu_source,
            containers,
            others,
            hidden_containers: hidden,
            report: self.report(&found, matching),
        }
    }

    /// The export pass.
    pub fn scrape(
        &mut self,
        moment: Moment,
        detail: Detail,
        pods: Option<&PodIndex>,
    ) -> ScrapeSample {
        self.follow_tree(moment.at);
        let node = self.node.read(self.tree.root(), &mut self.files, moment);
        let (found, matching) = match_pods(pods, self.tree.nodes().map(|node| &node.cgroup.place));
        let shown: HashSet<CgroupId> = match detail {
            Detail::Everything => workloads(self.tree.nodes()).map(|one| one.cgroup.id).collect(),
            Detail::Exported => HashSet::new(),
        };
        let (mut cgroups, mut beside) = (Vec::with_capacity(self.tree.len()), Vec::new());
        for (cgroup, found) in self.tree.nodes().zip(&found) {
            let in_scope = self.is_in_scope(cgroup, found);
            if *found == PodMatch::NotListed || !in_scope && !shown.contains(&cgroup.cgroup.id) {
                continue;
            }
            let (files, all) = (&mut self.files, &Resource::ALL);
            let state = self.states.entry(cgroup.cgroup.id).or_default();
            let Some(pressure) = state.pressures(files, cgroup, all, &node.pressure, moment.at)
            else {
                continue;
            };
            let stats = read_stats(files, state, &cgroup.dir, (self.groups, detail), moment.at);
            let workload = found.workload().cloned();
            let cgroup = Arc::clone(&cgroup.cgroup);
            let sample = CgroupSample { cgroup, workload, pressure, stats };
            if in_scope { &mut cgroups } else { &mut beside }.push(sample);
        }
        ScrapeSample {
            moment,
            detail,
            node,
            cgroups,
            beside,
            workloads: shown,
            cpu_source: self.cpu_source,
            report: self.report(&found, matching),
        }
    }

    fn is_in_scope(&self, node: &CgroupNode, found: &PodMatch) -> bool {
        self.selection.is_some_and(|selection| selection.includes(&node.cgroup.place, found))
    }

    fn follow_tree(&mut self, now: Instant) {
        if self.tree.follow(now) {
            self.node.read_device_names(&mut self.files);
            let alive: HashSet<CgroupId> = self.tree.nodes().map(|node| node.cgroup.id).collect();
            self.states.retain(|id, _| alive.contains(id));
        }
        self.files.errors.extend(self.tree.take_errors());
    }

    /// Ends a pass: returns its report, and removes the cgroups that no longer exist.
    fn report(&mut self, found: &[PodMatch], matching: Option<Matching>) -> PassReport {
        let cgroups = self.tree.nodes().zip(found);
        let in_scope = cgroups.filter(|(node, found)| self.is_in_scope(node, found)).count();
        for cgroup in std::mem::take(&mut self.files.gone) {
            self.tree.remove(&cgroup.path);
            self.states.remove(&cgroup.id);
        }
        PassReport {
            in_scope,
            errors: std::mem::take(&mut self.files.errors),
            dropped_io_rows: std::mem::take(&mut self.files.dropped_io_rows),
            tree: self.tree.health(),
            matching,
        }
    }
}

/// State that the readers of one tick share.
struct TickPass<'a> {
    files: &'a mut Files,
    states: &'a mut States,
    cpu_source: CpuSource,
    node: &'a NodeSample,
    pods: &'a Pods<'a>,
    needs: MemoryNeeds,
    now: Instant,
    /// Containers whose threads could not be read in full.
    hidden: usize,
    /// Whether a container waited for a CPU within the last minute.
    any_waits: bool,
}

impl TickPass<'_> {
    /// Reads a scored container; `None` if it was removed.
    fn container(&mut self, (node, workload): Container<'_>) -> Option<ContainerSample> {
        let (files, all) = (&mut *self.files, &Resource::ALL);
        let state = self.states.entry(node.cgroup.id).or_default();
        let pressure = state.pressures(files, node, all, &self.node.pressure, self.now)?;
        let dirs = Levels::new(node, self.pods);
        let stalled_us = pressure.pressures.cpu.and_then(|cpu| cpu.some_us);
        let threads = match self.cpu_source {
            CpuSource::RunDelay => {
                // If its CPU pressure has not changed, none of its tasks waited.
                let may_wait = stalled_us.is_none() || state.stalled_us != stalled_us;
                let threads = state.threads.read(may_wait, files);
                state.cpu_wait.advance(threads.as_deref().map(delay_us), self.now);
                threads
            }
            CpuSource::Psi => {
                state.cpu_wait.advance(stalled_us, pressure.at);
                None
            }
        };
        state.stalled_us = stalled_us;
        let cpu = read_cpu_use(files, state, dirs, self.cpu_source, self.now);
        let memory = read_memory_use(files, state, dirs, &pressure, self.needs);
        let io = read_io_use(files, state, dirs, &pressure, self.needs);
        // A missing file means that its controller is off, or that the cgroup was removed.
        if files.found_gone(node) {
            return None;
        }
        self.hidden += usize::from(state.threads.hidden);
        self.any_waits |= state.cpu_wait.waited_lately(self.now);
        let cgroup = Arc::clone(&node.cgroup);
        Some(ContainerSample { cgroup, workload, pressure, cpu, threads, memory, io })
    }

    /// Reads a workload that is not scored; `None` if it was removed.
    fn other(&mut self, node: &CgroupNode) -> Option<OtherSample> {
        let (id, files) = (node.cgroup.id, &mut *self.files);
        let state = self.states.entry(id).or_default();
        let pressure =
            state.pressures(files, node, &[Resource::Cpu], &self.node.pressure, self.now)?;
        let stalled_us = pressure.pressures.cpu.and_then(|cpu| cpu.some_us);
        let cpu = if state.cpu_wait.advance(stalled_us, pressure.at) {
            read_cpu_use(files, state, Levels::new(node, self.pods), CpuSource::Psi, self.now)
        } else {
            CpuUse::default()
        };
        Some(OtherSample { id, pressure, cpu })
    }
}

/// Run delay of all threads together, microseconds.
fn delay_us(threads: &[ThreadSample]) -> u64 {
    threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.times.delay_ns / 1000))
}
