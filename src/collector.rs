//! Reads the node and its cgroups in two kinds of passes, which share one state for each cgroup: a
//! scoring pass (tick) reads what the score needs, and an export pass (scrape) what is exported.

mod export;
mod node;
mod population;
mod processes;
mod state;
mod threads;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::cgroup_path::Place;
use crate::clock::{Clock, Moment};
use crate::identity::Workload;
use crate::identity::matching::{Matching, PodMatch, match_pods};
use crate::identity::pod_index::PodIndex;
use crate::identity::selection::Selection;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupId, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::CgroupTree;
use crate::kernel::proc_root::ProcRoot;
use crate::sample::{
    CgroupSample, Detail, Groups, NodeRates, PassReport, Scored, ScrapeSample, Tick,
};
use crate::waiting::files::Files;
use crate::waiting::reader::Dirs;
use crate::waiting::readings::Threads;
use crate::waiting::{CpuSource, Measurement, Population, pressure_scale};
use export::read_stats;
use node::NodeReader;
use population::{Member, Pods, Selector, Workloads, workloads};
use processes::ProcessFinder;
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

/// What a collector reads.
#[derive(Debug)]
pub struct Sources {
    pub proc: ProcRoot,
    pub root: Arc<CgroupRoot>,
    /// The cgroups that are exported; `None` on a node without cgroup v2, of which only the node's
    /// own files are read.
    pub selection: Option<Selection>,
    pub groups: Groups,
    pub cpu_source: CpuSource,
    /// Whether the kernel counts run delay. If not, it is unknown for all VMs.
    pub counts_run_delay: bool,
    pub handles: Handles,
}

/// Reads samples, and keeps what the next pass needs.
pub struct Collector {
    node: NodeReader,
    tree: CgroupTree,
    states: States,
    files: Files,
    selector: Selector,
    ticked_at: Option<Moment>,
    cpu_source: CpuSource,
    counts_run_delay: bool,
    processes: ProcessFinder,
    selection: Option<Selection>,
    groups: Groups,
    /// Whether the tree covers the whole node, as the counters in `/proc` do.
    is_whole_node: bool,
}

impl Collector {
    /// A collector that has read nothing yet.
    pub fn new(sources: Sources, clock: Clock) -> Self {
        let Sources { proc, root, selection, groups, cpu_source, counts_run_delay, handles } =
            sources;
        let whole = selection.is_some_and(|selection| selection.everything);
        Self {
            node: NodeReader::new(proc),
            is_whole_node: !root.is_namespaced(),
            tree: CgroupTree::new(root, whole, handles.cgroups),
            states: States::new(),
            files: Files::new(clock),
            selector: Selector::default(),
            ticked_at: None,
            cpu_source,
            counts_run_delay,
            processes: ProcessFinder::new(handles.processes),
            selection,
            groups,
        }
    }

    /// The scoring pass. With `pods`, cgroups of pods are included once their pods are listed.
    pub fn tick(&mut self, pods: Option<&PodIndex>) -> Tick {
        let moment = self.files.clock.now();
        let before = self.ticked_at.replace(moment);
        self.follow_tree(moment.at);
        self.node.read(&self.tree, &mut self.files);
        let (found, matching) = match_pods(pods, self.tree.dirs().map(|dir| &dir.cgroup.place));
        let is_known = self.selection.is_some() && pods.is_none_or(PodIndex::is_listed);
        let (mut scored, mut others) = (None, Vec::new());
        if is_known {
            let (population, demands) = self.score_and_others(pods.is_some(), &found, before);
            (scored, others) = (Some(population), demands);
        }
        Tick {
            moment,
            window: before.map(|before| moment.at.saturating_duration_since(before.at)),
            took: self.files.clock.now().at.saturating_duration_since(moment.at),
            cpu_source: self.cpu_source,
            node: NodeRates::of(&self.node.readings),
            scored,
            others,
            report: self.end_pass(&found, matching),
        }
    }

    /// Measures the scored workloads and, while one of them waits, the demand of all others.
    fn score_and_others(
        &mut self,
        in_cluster: bool,
        found: &[PodMatch],
        tick_before: Option<Moment>,
    ) -> (Scored, Vec<Measurement>) {
        let (tree, files, states) = (&self.tree, &mut self.files, &mut self.states);
        let now = files.clock.now().at;
        let mut all = Workloads::of(tree.dirs().zip(found), |dir| {
            states.entry(dir.cgroup.id).or_default().has_tasks(files, dir)
        });
        let population = self.selector.select(all.population(in_cluster), now);
        let (mut members, beside) = all.members(population);
        if self.cpu_source == CpuSource::RunDelay && self.counts_run_delay {
            // Without pressure, threads show the wait of any container.
            let all_threads = self.node.readings.pressure.cpu.last().is_none();
            let may_be_vm = |member: &&Member<'_>| match population {
                Population::Vms => true,
                Population::Containers => all_threads || member.workload.is_none(),
                Population::Units => all_threads,
            };
            let vms: Vec<&Member<'_>> = members.iter().filter(may_be_vm).collect();
            self.processes.follow(&self.node.proc, &vms, all_threads, states, files);
        }
        let mut pass = TickPass {
            files,
            states,
            node: &self.node,
            pods: &all.pods,
            hides_threads: self.cpu_source == CpuSource::RunDelay && !self.counts_run_delay,
            tick_before,
            now,
        };
        members.retain(|member| pass.read_scored(member.dir));
        let waits = members.iter().any(|member| pass.waited_lately(member.dir));
        let reads_others = waits && self.is_whole_node;
        let mut others: Vec<&CgroupDir> = Vec::new();
        if reads_others {
            if all.pods.is_empty() {
                others.extend(beside.iter().map(|member| member.dir));
            } else {
                let scored: HashSet<CgroupId> =
                    members.iter().map(|member| member.dir.cgroup.id).collect();
                others
                    .extend(workloads(tree.dirs()).filter(|dir| !scored.contains(&dir.cgroup.id)));
            }
            others.retain(|dir| pass.read_other(dir));
        }
        self.node.read_run_delay(reads_others, &mut self.files);
        let (node, states) = (&self.node.readings, &self.states);
        let readings = |dir: &CgroupDir| states.get(&dir.cgroup.id)?.readings.as_deref();
        let both = members.iter().map(|member| member.dir).chain(others.iter().copied());
        let scale = pressure_scale(reads_others.then(|| both.filter_map(readings)), node);
        let hidden = members.iter().filter_map(|member| readings(member.dir));
        let hidden_threads = hidden.filter(|found| found.threads == Threads::Hidden).count();
        let measurement = |dir: &CgroupDir, workload: Option<Arc<Workload>>| {
            Some(Measurement::of(&dir.cgroup, workload, readings(dir)?, node, scale))
        };
        let scored =
            members.iter().filter_map(|member| measurement(member.dir, member.workload.clone()));
        let measurements = scored.collect();
        let others = others.into_iter().filter_map(|other| measurement(other, None)).collect();
        (Scored { population, measurements, hidden_threads }, others)
    }

    /// The export pass.
    pub fn scrape(&mut self, detail: Detail, pods: Option<&PodIndex>) -> ScrapeSample {
        let moment = self.files.clock.now();
        self.follow_tree(moment.at);
        let node = self.node.sample(&self.tree, &mut self.files);
        let (found, matching) = match_pods(pods, self.tree.dirs().map(|dir| &dir.cgroup.place));
        let shown: HashSet<CgroupId> = match detail {
            Detail::Everything => workloads(self.tree.dirs()).map(|dir| dir.cgroup.id).collect(),
            Detail::Exported => HashSet::new(),
        };
        let (mut cgroups, mut beside) = (Vec::with_capacity(self.tree.len()), Vec::new());
        for (dir, found) in self.tree.dirs().zip(&found) {
            let in_scope = self.is_in_scope(dir, found);
            if *found == PodMatch::NotListed || !in_scope && !shown.contains(&dir.cgroup.id) {
                continue;
            }
            let (files, all) = (&mut self.files, &Resource::ALL);
            let state = self.states.entry(dir.cgroup.id).or_default();
            let Some(pressure) = state.pressures(files, dir, all, &node.pressure) else {
                continue;
            };
            let stats = read_stats(files, state, dir, (self.groups, detail));
            let workload = found.workload().cloned();
            let cgroup = Arc::clone(&dir.cgroup);
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
            report: self.end_pass(&found, matching),
        }
    }

    fn is_in_scope(&self, dir: &CgroupDir, found: &PodMatch) -> bool {
        self.selection.is_some_and(|selection| selection.includes(&dir.cgroup.place, found))
    }

    fn follow_tree(&mut self, now: Instant) {
        if self.selection.is_some() && self.tree.follow(now) {
            self.node.read_device_names(&mut self.files);
            let alive: HashSet<CgroupId> = self.tree.dirs().map(|dir| dir.cgroup.id).collect();
            self.states.retain(|id, _| alive.contains(id));
        }
        self.files.errors.extend(self.tree.take_errors());
    }

    /// Ends a pass: removes the cgroups that no longer exist, and returns its report.
    fn end_pass(&mut self, found: &[PodMatch], matching: Option<Matching>) -> PassReport {
        let cgroups = self.tree.dirs().zip(found);
        let in_scope = cgroups.filter(|(dir, found)| self.is_in_scope(dir, found)).count();
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
    node: &'a NodeReader,
    pods: &'a Pods<'a>,
    /// Whether run delay is the CPU source, and the kernel does not count it.
    hides_threads: bool,
    /// When the tick before began.
    tick_before: Option<Moment>,
    now: Instant,
}

impl<'a> TickPass<'a> {
    /// Reads a scored container; `false` if it was removed.
    fn read_scored(&mut self, dir: &CgroupDir) -> bool {
        let (dirs, files) = (self.dirs(dir), &mut *self.files);
        let state = self.states.entry(dir.cgroup.id).or_default();
        let Some((readings, threads)) =
            state.read_pressure(files, dir, &Resource::ALL, &self.node.pressure, self.tick_before)
        else {
            return false;
        };
        // If its CPU pressure has not changed, none of its tasks waited.
        let may_wait = readings.pressure.cpu.moved();
        readings.threads = match self.hides_threads {
            true => Threads::Hidden,
            false => threads.read(may_wait, files),
        };
        readings.read_scored(files, dirs, &self.node.readings, self.now);
        // A missing file means that its controller is off, or that the cgroup was removed.
        !files.found_gone(dir)
    }

    /// Reads a workload that is not scored; `false` if it was removed.
    fn read_other(&mut self, dir: &CgroupDir) -> bool {
        let (dirs, files) = (self.dirs(dir), &mut *self.files);
        let state = self.states.entry(dir.cgroup.id).or_default();
        let (cpu, pressure) = (&[Resource::Cpu], &self.node.pressure);
        let state = state.read_pressure(files, dir, cpu, pressure, self.tick_before);
        state.map(|(readings, _)| readings.read_other(files, dirs, self.now)).is_some()
    }

    /// The directories of a container and of its pod.
    fn dirs<'n>(&self, dir: &'n CgroupDir) -> Dirs<'n>
    where
        'a: 'n,
    {
        let uid = if let Place::Pod(place) = &dir.cgroup.place { Some(&*place.uid) } else { None };
        let pod = uid.and_then(|uid| self.pods.get(uid)).copied();
        Dirs { container: dir, pod }
    }

    fn waited_lately(&self, dir: &CgroupDir) -> bool {
        let state = self.states.get(&dir.cgroup.id);
        state
            .and_then(|state| state.readings.as_deref())
            .is_some_and(|readings| readings.waited_lately(self.now))
    }
}
