//! Reads the node and its cgroups in two passes over one state for each cgroup: a scoring pass (a
//! tick) reads what the score needs, an export pass (a scrape) what is exported. In: open roots, a
//! moment, pods. Out: a [`TickSample`] or a [`ScrapeSample`]. `state.rs` has the rules that decide
//! when a file is read again.

mod cpu;
mod export;
mod files;
mod matching;
mod node;
mod population;
mod processes;
mod selection;
mod stalls;
mod state;
mod threads;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Moment;
use crate::identity::pod_index::PodIndex;
use crate::kernel::cgroup_dir::{CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{Cgroup, CgroupId, CgroupNode, CgroupTree, Extent};
use crate::kernel::proc_root::ProcRoot;
use crate::sample::{
    CgroupSample, ContainerSample, CpuSource, CpuUse, Detail, Matching, NodeSample, OtherSample,
    PassReport, ScrapeSample, ThreadSample, TickSample,
};
use cpu::{Levels, read_cpu_use};
use export::read_stats;
use files::Files;
use matching::{Found, Matcher};
use node::NodeReader;
use population::{Container, Pods, other_workloads, pod_of, scored_containers, workloads};
use processes::{ProcessFinder, States};
pub use selection::{Groups, Selection};
use stalls::{MemoryNeeds, NodeMemoryHistory, read_io_use, read_memory_use};
pub use state::MIN_PRESSURE_INTERVAL;

/// Directory handles that may be kept.
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
    memory: NodeMemoryHistory,
    /// With run delay as the CPU source.
    processes: Option<ProcessFinder>,
    selection: Selection,
    groups: Groups,
    /// Whether there is cgroup v2 to read.
    has_cgroups: bool,
    /// Whether the tree is the whole node's, as the counters of `/proc` are.
    is_whole_node: bool,
}

impl Collector {
    /// One that has read nothing yet.
    #[must_use]
    pub fn new(
        proc: ProcRoot,
        root: Arc<CgroupRoot>,
        selection: Selection,
        groups: Groups,
        cpu_source: CpuSource,
        handles: Handles,
    ) -> Self {
        let is_whole_node = !root.is_namespaced();
        let processes = match cpu_source {
            CpuSource::Psi => None,
            CpuSource::RunDelay => Some(ProcessFinder::new(handles.processes)),
        };
        Self {
            node: NodeReader::new(proc),
            tree: CgroupTree::new(root, selection.extent(), handles.cgroups),
            states: States::new(),
            files: Files::default(),
            memory: NodeMemoryHistory::default(),
            processes,
            selection,
            groups,
            has_cgroups: true,
            is_whole_node,
        }
    }

    /// One for a node without cgroup v2, where nothing is known of pods.
    #[must_use]
    pub fn of_node_alone(proc: ProcRoot, root: Arc<CgroupRoot>, cpu_source: CpuSource) -> Self {
        let tree = CgroupTree::new(Arc::clone(&root), Extent::Root, 0);
        let (groups, handles) = (Groups::default(), Handles::default());
        let collector = Self::new(proc, root, Selection::NONE, groups, cpu_source, handles);
        Self { tree, has_cgroups: false, ..collector }
    }

    /// The scoring pass. With `pods`, a cgroup of a pod counts once its pod is known.
    pub fn tick(&mut self, moment: Moment, pods: Option<&PodIndex>) -> TickSample {
        let now = moment.at;
        self.follow_tree(now);
        let node = self.node.read(self.tree.root(), &mut self.files, moment);
        let waits = self.memory.moved(&node);
        let all_pods = self.node.all_pods(&self.tree, &mut self.files, waits);
        let refaults = self.memory.reclaimed_lately(&node, all_pods, now);
        let (found, matching) = match_pods(&self.tree, pods);
        let run_delay_ns = match self.cpu_source() {
            CpuSource::Psi if self.is_whole_node => self.node.run_delay(&mut self.files),
            CpuSource::Psi | CpuSource::RunDelay => None,
        };
        let disks = self.node.disks(&mut self.files);
        let mut gone = Vec::new();
        let (mut containers, mut others) = (None, None);
        if self.has_cgroups && pods.is_none_or(PodIndex::is_listed) {
            let (by_uid, scored) = scored_containers(self.tree.nodes().zip(&found));
            if let Some(processes) = &mut self.processes {
                let nodes: Vec<&CgroupNode> = scored.iter().map(|(node, _)| *node).collect();
                let files = (&mut self.files.buffer, &mut self.files.errors);
                processes.follow(&self.node.proc, &nodes, &mut self.states, files, now);
            }
            let mut pass = TickPass {
                files: &mut self.files,
                states: &mut self.states,
                processes: self.processes.as_mut(),
                node: &node,
                pods: &by_uid,
                needs: MemoryNeeds { waits, refaults },
                now,
                gone: &mut gone,
            };
            let ids: HashSet<CgroupId> = scored.iter().map(|(node, _)| node.cgroup.id).collect();
            let read: Vec<ContainerSample> =
                scored.into_iter().filter_map(|container| pass.container(container)).collect();
            if run_delay_ns.is_some() && pass.any_waits(&ids) {
                let all = other_workloads(self.tree.nodes(), &ids);
                others = Some(all.filter_map(|node| pass.other(node)).collect());
            }
            containers = Some(read);
        }
        let in_scope = self.count_in_scope(&found);
        let is_hidden = |container: &&ContainerSample| {
            let state = self.states.get(&container.cgroup.id);
            state.is_some_and(|state| state.threads.hidden)
        };
        let hidden_containers = containers.iter().flatten().filter(is_hidden).count();
        self.forget(&gone);
        TickSample {
            moment,
            node,
            run_delay_ns,
            disks,
            pods: all_pods,
            cpu_source: self.cpu_source(),
            containers,
            others,
            hidden_containers,
            report: self.report(in_scope, matching),
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
        let (found, matching) = match_pods(&self.tree, pods);
        let shown: HashSet<CgroupId> = match detail {
            Detail::Everything => workloads(self.tree.nodes()).map(|one| one.cgroup.id).collect(),
            Detail::Exported => HashSet::new(),
        };
        let (mut cgroups, mut beside) = (Vec::with_capacity(self.tree.len()), Vec::new());
        let mut gone = Vec::new();
        for (cgroup, found) in self.tree.nodes().zip(&found) {
            if *found == Found::NotYet {
                continue;
            }
            let workload = found.workload();
            let place = &cgroup.cgroup.place;
            let in_scope = self.selection.includes(place, workload.map(|workload| &**workload));
            if !in_scope && !shown.contains(&cgroup.cgroup.id) {
                continue;
            }
            let state = self.states.entry(cgroup.cgroup.id).or_default();
            let pressure = state.pressures(
                &mut self.files,
                &cgroup.dir,
                &Resource::ALL,
                &node.pressure,
                moment.at,
            );
            let Ok(pressure) = pressure else {
                gone.push(Arc::clone(&cgroup.cgroup));
                continue;
            };
            let stats = read_stats(&mut self.files, &cgroup.dir, self.groups, detail);
            let sample = CgroupSample {
                cgroup: Arc::clone(&cgroup.cgroup),
                workload: workload.cloned(),
                pressure,
                stats,
            };
            if in_scope { &mut cgroups } else { &mut beside }.push(sample);
        }
        self.forget(&gone);
        let report = self.report(cgroups.len(), matching);
        let cpu_source = self.cpu_source();
        ScrapeSample { moment, detail, node, cgroups, beside, workloads: shown, cpu_source, report }
    }

    fn count_in_scope(&self, found: &[Found]) -> usize {
        let is_in_scope = |(node, found): &(&CgroupNode, &Found)| {
            let workload = found.workload().map(|workload| &**workload);
            **found != Found::NotYet && self.selection.includes(&node.cgroup.place, workload)
        };
        self.tree.nodes().zip(found).filter(is_in_scope).count()
    }

    fn cpu_source(&self) -> CpuSource {
        if self.processes.is_some() { CpuSource::RunDelay } else { CpuSource::Psi }
    }

    fn follow_tree(&mut self, now: Instant) {
        if self.tree.follow(now) {
            self.node.read_device_names(&mut self.files);
            let alive: HashSet<CgroupId> = self.tree.nodes().map(|node| node.cgroup.id).collect();
            self.states.retain(|id, _| alive.contains(id));
        }
        self.files.errors.extend(self.tree.take_errors());
    }

    /// Forgets cgroups that were found gone while they were read.
    fn forget(&mut self, gone: &[Arc<Cgroup>]) {
        for cgroup in gone {
            self.tree.remove(&cgroup.path);
            self.states.remove(&cgroup.id);
        }
    }

    fn report(&mut self, in_scope: usize, matching: Option<Matching>) -> PassReport {
        PassReport {
            in_scope,
            errors: std::mem::take(&mut self.files.errors),
            dropped_io_rows: std::mem::take(&mut self.files.dropped_io_rows),
            tree: self.tree.health(),
            matching,
        }
    }
}

fn match_pods(tree: &CgroupTree, pods: Option<&PodIndex>) -> (Vec<Found>, Option<Matching>) {
    let mut matcher = Matcher::default();
    let found = tree.nodes().map(|node| match pods {
        Some(pods) => matcher.find(pods, &node.cgroup.place),
        None => Found::Unnamed,
    });
    let found = found.collect();
    (found, pods.map(|pods| matcher.matching(pods)))
}

/// What the readers of one tick share.
struct TickPass<'a> {
    files: &'a mut Files,
    states: &'a mut States,
    processes: Option<&'a mut ProcessFinder>,
    node: &'a NodeSample,
    pods: &'a Pods<'a>,
    needs: MemoryNeeds,
    now: Instant,
    /// Cgroups that were found gone.
    gone: &'a mut Vec<Arc<Cgroup>>,
}

impl TickPass<'_> {
    /// A scored container; `None` when it is gone.
    fn container(&mut self, (node, workload): Container<'_>) -> Option<ContainerSample> {
        let state = self.states.entry(node.cgroup.id).or_default();
        let resources = &Resource::ALL;
        let pressure =
            state.pressures(self.files, &node.dir, resources, &self.node.pressure, self.now);
        let Ok(pressure) = pressure else {
            self.gone.push(Arc::clone(&node.cgroup));
            return None;
        };
        let dirs =
            Levels { container: &node.dir, pod: pod_of(self.pods, node).map(|pod| &pod.dir) };
        let stalled_us = pressure.pressures.cpu.and_then(|cpu| cpu.some_us);
        let (threads, source) = match &mut self.processes {
            Some(processes) => {
                // While its pressure stands still, none of its tasks waited.
                let may_wait = stalled_us.is_none() || state.stalled_us != stalled_us;
                let files = (&mut self.files.buffer, &mut self.files.errors);
                let ended = &mut processes.thread_ended;
                let threads = state.threads.read(may_wait, files, ended);
                state.cpu_wait.advance(threads.as_deref().map(delay_us), self.now);
                (threads, CpuSource::RunDelay)
            }
            None => {
                state.cpu_wait.advance(stalled_us, pressure.at);
                (None, CpuSource::Psi)
            }
        };
        state.stalled_us = stalled_us;
        let cpu = read_cpu_use(self.files, state, dirs, source, self.now);
        let memory = read_memory_use(self.files, state, dirs, &pressure, self.needs);
        let io = read_io_use(self.files, state, dirs, &pressure, self.needs);
        // A file that is missing means that its controller is off, or that the cgroup is gone.
        if self.files.found_gone(&node.dir) {
            self.gone.push(Arc::clone(&node.cgroup));
            return None;
        }
        let cgroup = Arc::clone(&node.cgroup);
        Some(ContainerSample { cgroup, workload, pressure, cpu, threads, memory, io })
    }

    /// Whether one of these containers waited for a CPU of late.
    fn any_waits(&self, scored: &HashSet<CgroupId>) -> bool {
        let mut states = scored.iter().filter_map(|id| self.states.get(id));
        states.any(|state| state.cpu_wait.waited_lately(self.now))
    }

    /// A workload that is not scored; `None` when it is gone.
    fn other(&mut self, node: &CgroupNode) -> Option<OtherSample> {
        let id = node.cgroup.id;
        let state = self.states.entry(id).or_default();
        let resources = &[Resource::Cpu];
        let pressure =
            state.pressures(self.files, &node.dir, resources, &self.node.pressure, self.now);
        let Ok(pressure) = pressure else {
            self.gone.push(Arc::clone(&node.cgroup));
            return None;
        };
        let stalled_us = pressure.pressures.cpu.and_then(|cpu| cpu.some_us);
        let cpu = if state.cpu_wait.advance(stalled_us, pressure.at) {
            let pod = pod_of(self.pods, node).map(|pod| &pod.dir);
            let dirs = Levels { container: &node.dir, pod };
            read_cpu_use(self.files, state, dirs, CpuSource::Psi, self.now)
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
