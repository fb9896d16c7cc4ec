//! Reads the node and its cgroups in two kinds of passes, which share one state for each cgroup:
//!
//! - A tick every 5 s reads what the score needs. If a scored container waited within the last
//!   minute, this includes the CPU pressure of other workloads, and the node's run delay.
//! - A scrape on request reads what is exported of all cgroups in scope. For the page and `top` it
//!   also reads the other workloads. Requests within a second share one sample.
//!
//! Rates come from two ticks or from two scrapes, so a scrape never shortens a tick's window. Each
//! reading has its own time, since a pass over a busy node is slow. A file that is not read for a
//! while has no rate across that time.
//!
//! `waiting` has a meter for each kind of waiting: a formula over two readings, and the files that
//! it needs. `waiting/reader.rs` reads each file at most once:
//!
//! 1. Pressure of a cgroup: at most once a second, by either pass.
//! 2. Memory and I/O pressure of a cgroup: only after the node's own total increased.
//! 3. `cpu.stat` and `io.stat`, which cost many times as much as a pressure file: at each tick of a
//!    container that waited for that resource within the last minute.
//! 4. CPU limits and weight, and by pressure `cpu.stat` of a container that does not wait: every 30 s.
//! 5. Memory and I/O limits, and counters of their effects: after the container's own pressure
//!    increased.

mod export;
mod node;
mod population;
mod processes;
mod state;
mod threads;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{Clock, Moment};
use crate::identity::matching::{Matching, PodMatch, match_pods};
use crate::identity::pod_index::PodIndex;
use crate::identity::selection::Selection;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupId, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::CgroupTree;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::resource::PerResource;
use crate::sample::{
    CgroupSample, Detail, FamilyGroup, NodeRates, PassReport, Scored, ScrapeSample, Tick,
};
use crate::waiting::files::Files;
use crate::waiting::node::NodeReadings;
use crate::waiting::readings::{Readings, Threads};
use crate::waiting::series::{PressureReadings, Window, lately};
use crate::waiting::{CpuSource, Measurement, Population, pressure_scale};
use export::read_stats;
pub use node::MIN_PRESSURE_INTERVAL;
use node::NodeReader;
use population::{Kind, Member, Selector, Workloads, workloads};
use processes::ProcessFinder;
use state::States;

/// Longest time between two scrapes of everything for which rates are computed. Rates of a longer one would be
/// out of date.
const MAX_SCRAPE_WINDOW: Duration = Duration::from_secs(120);

/// What a collector reads.
#[derive(Debug)]
pub struct Sources {
    pub proc: ProcRoot,
    pub root: Arc<CgroupRoot>,
    /// The cgroups that are exported; `None` on a node without cgroup v2, of which only the node's
    /// own files are read.
    pub selection: Option<Selection>,
    pub groups: Vec<FamilyGroup>,
    pub cpu_source: CpuSource,
    /// Maximum number of kept handles of cgroups; beyond that, files are opened by path.
    pub cgroup_handles: usize,
    /// Maximum number of kept handles of processes and threads; a container beyond that has no run
    /// delay.
    pub task_handles: usize,
}

/// Reads samples, and keeps what the next pass needs.
pub struct Collector {
    node: NodeReader,
    tree: CgroupTree,
    states: States,
    files: Files,
    selector: Selector,
    ticked_at: Option<Moment>,
    /// When the last scrape of everything began, and what it read of the node and of each cgroup.
    shown: Option<(Instant, NodeReadings, HashMap<CgroupId, PressureReadings>)>,
    cpu_source: CpuSource,
    /// `None` unless run delay is the source of CPU wait time.
    processes: Option<ProcessFinder>,
    selection: Option<Selection>,
    groups: Vec<FamilyGroup>,
    /// Whether the tree covers the whole node, as the counters in `/proc` do.
    is_whole_node: bool,
}

impl Collector {
    /// A collector that has read nothing yet.
    pub fn new(sources: Sources, clock: Clock) -> Self {
        let Sources { proc, root, selection, groups, cpu_source, .. } = sources;
        let whole = selection.is_some_and(|selection| selection.everything);
        let is_part = root.is_namespaced();
        let finder = || ProcessFinder::new(sources.task_handles, is_part);
        Self {
            node: NodeReader { proc, pressure: <_>::default(), readings: <_>::default() },
            is_whole_node: !is_part,
            tree: CgroupTree::new(root, whole, sources.cgroup_handles),
            states: States::new(),
            files: Files::new(clock),
            selector: Selector::default(),
            ticked_at: None,
            shown: None,
            cpu_source,
            processes: (cpu_source == CpuSource::RunDelay).then(finder),
            selection,
            groups,
        }
    }

    /// The scoring pass. With `pods`, cgroups of pods are included once their pods are listed.
    pub fn tick(&mut self, pods: Option<&PodIndex>) -> Tick {
        let mut moment = (self.files.clock)();
        self.follow_tree(moment.at);
        // A cgroup that nothing had looked up for long is dated by that, and must not be new at the next tick.
        moment.unix_ms = (self.files.clock)().unix_ms;
        let before = self.ticked_at.replace(moment);
        self.node.read(&self.tree, &mut self.files);
        let (found, matching) = match_pods(pods, self.tree.dirs().map(|dir| &dir.cgroup.place));
        // Where no cgroup is one of a container, the containers are elsewhere, and not calm.
        let is_container =
            |one: &PodMatch| one.workload().is_some_and(|workload| !workload.container.is_empty());
        let is_found = |pods: &PodIndex| !pods.has_containers() || found.iter().any(is_container);
        let is_known =
            self.selection.is_some() && pods.is_none_or(|pods| pods.is_listed() && is_found(pods));
        let scored = is_known.then(|| self.measure_workloads(pods, &found, before)).flatten();
        Tick {
            moment,
            window: before.map(|before| moment.at.saturating_duration_since(before.at)),
            cpu_source: self.cpu_source,
            node: NodeRates::of(&self.node.readings),
            scored,
            report: self.end_pass(moment.at, &found, matching),
        }
    }

    /// Measures the scored workloads and, while one of them waits, the demand of all others. `None` if all
    /// VMs have left, until others are scored: nothing is not calm.
    fn measure_workloads(
        &mut self,
        pods: Option<&PodIndex>,
        found: &[PodMatch],
        tick_before: Option<Moment>,
    ) -> Option<Scored> {
        let (files, states, node) = (&mut self.files, &mut self.states, &self.node);
        let now = (files.clock)().at;
        let is_stale = pods.is_some_and(|pods| pods.is_stale(now));
        let mut workloads = Workloads::of(&self.tree, found, is_stale, |dir| {
            states.entry(dir.cgroup.id).or_default().has_tasks(files, dir)
        });
        let population = self.selector.select(workloads.population(pods.is_some()), now);
        let mut members = workloads.take(population);
        if population == Population::Vms && members.is_empty() {
            return None;
        }
        if let Some(processes) = &mut self.processes {
            processes.follow(node, population, &members, states, files);
        }
        members.retain(|member| {
            let state = states.entry(member.dir.cgroup.id).or_default();
            state.tick(files, &workloads.dirs(member.dir), true, node, tick_before, now)
        });
        let mut waits = members.iter().filter_map(|member| readings(states, member.dir));
        let reads_others = self.is_whole_node && waits.any(|one| lately(one.cpu_waited_at, now));
        let mut others = Vec::new();
        if reads_others {
            others = workloads.others(&members);
            others.retain(|dir| {
                let state = states.entry(dir.cgroup.id).or_default();
                state.tick(files, &workloads.dirs(dir), false, node, tick_before, now)
            });
        }
        let run_delay = reads_others.then(|| files.dated(self.node.proc.run_delay())).flatten();
        self.node.readings.run_delay.push(run_delay);
        Some(measure(population, &members, &others, &self.node.readings, states))
    }

    /// The export pass.
    pub fn scrape(&mut self, detail: Detail, pods: Option<&PodIndex>) -> ScrapeSample {
        let moment = (self.files.clock)();
        self.follow_tree(moment.at);
        let is_shown = detail == Detail::Everything;
        let age = |at: Instant| moment.at.saturating_duration_since(at);
        let is_recent = |at| is_shown && age(at) <= MAX_SCRAPE_WINDOW;
        let earlier = self.shown.take_if(|(at, ..)| is_recent(*at));
        let window = earlier.as_ref().map(|(at, ..)| age(*at));
        let (mut node, before) = earlier.map(|(_, node, all)| (node, all)).unwrap_or_default();
        let has_io = self.groups.contains(&FamilyGroup::Io);
        self.node.sample(&self.tree, &mut self.files, has_io, &mut node);
        let (found, matching) = match_pods(pods, self.tree.dirs().map(|dir| &dir.cgroup.place));
        let shown: HashSet<CgroupId> = match detail {
            Detail::Everything => workloads(self.tree.dirs()).map(|dir| dir.cgroup.id).collect(),
            Detail::Exported => HashSet::new(),
        };
        let (mut cgroups, mut beside) = (Vec::with_capacity(self.tree.count()), Vec::new());
        for (dir, found) in self.tree.dirs().zip(&found) {
            let in_scope = self.is_in_scope(dir, found);
            if *found == PodMatch::NotListed || !in_scope && !shown.contains(&dir.cgroup.id) {
                continue;
            }
            let (files, all) = (&mut self.files, &Resource::ALL);
            let state = self.states.entry(dir.cgroup.id).or_default();
            let Some(pressure) = state.pressures(files, dir, all, &self.node.pressure) else {
                continue;
            };
            let before = before.get(&dir.cgroup.id).copied().unwrap_or_default();
            let rates = PerResource::by(|resource| {
                Window { before: *before.of(resource), last: *pressure.of(resource) }.shares()
            });
            let stats = read_stats(files, dir, &self.groups, detail);
            let workload = found.workload().cloned();
            let (cgroup, labels) = (Arc::clone(&dir.cgroup), state.labels(workload.as_ref()));
            let sample = CgroupSample { cgroup, workload, labels, pressure, rates, stats };
            if in_scope { &mut cgroups } else { &mut beside }.push(sample);
        }
        if is_shown {
            let pressures = cgroups.iter().chain(&beside).map(|one| (one.cgroup.id, one.pressure));
            self.shown = Some((moment.at, node.clone(), pressures.collect()));
        }
        ScrapeSample {
            moment,
            detail,
            window,
            node,
            cgroups,
            beside,
            workloads: shown,
            report: self.end_pass(moment.at, &found, matching),
        }
    }

    fn is_in_scope(&self, dir: &CgroupDir, found: &PodMatch) -> bool {
        self.selection.is_some_and(|selection| selection.includes(&dir.cgroup.place, found))
    }

    fn follow_tree(&mut self, now: Instant) {
        if self.selection.is_some() {
            self.files.errors.extend(self.tree.follow(now));
        }
    }

    /// Ends the pass that began at this time: removes the cgroups that no longer exist, and returns its report.
    fn end_pass(
        &mut self,
        began_at: Instant,
        found: &[PodMatch],
        matching: Option<Matching>,
    ) -> PassReport {
        let cgroups = self.tree.dirs().zip(found);
        let in_scope = cgroups.clone().filter(|(dir, found)| self.is_in_scope(dir, found)).count();
        // One that was read and is not listed any more is not read again: a container that restarted.
        let unlisted = cgroups.filter(|(_, found)| **found == PodMatch::NotListed);
        for (dir, _) in unlisted.filter(|(dir, _)| self.states.contains_key(&dir.cgroup.id)) {
            self.files.is_alive(dir);
        }
        for cgroup in std::mem::take(&mut self.files.gone) {
            self.tree.remove(&cgroup.path);
        }
        let known: HashSet<CgroupId> = self.tree.dirs().map(|dir| dir.cgroup.id).collect();
        self.states.retain(|id, _| known.contains(id));
        let took = (self.files.clock)().at.saturating_duration_since(began_at);
        PassReport { took, in_scope, errors: std::mem::take(&mut self.files.errors), matching }
    }
}

/// What ticks have read of a cgroup.
fn readings<'s>(states: &'s States, dir: &CgroupDir) -> Option<&'s Readings> {
    states.get(&dir.cgroup.id)?.readings.as_deref()
}

/// Computes a tick from its readings. While no scored workload waits, `others` is empty.
fn measure(
    population: Population,
    members: &[Member<'_>],
    others: &[&CgroupDir],
    node: &NodeReadings,
    states: &States,
) -> Scored {
    let scored = members.iter().filter_map(|one| Some((one, readings(states, one.dir)?)));
    let others = others.iter().filter_map(|dir| Some((dir, readings(states, dir)?)));
    let of_scored = scored.clone().map(|(_, readings)| readings);
    let of_others = others.clone().map(|(_, readings)| readings);
    let scale = pressure_scale(of_scored.clone().chain(of_others), node);
    let measurements = scored.filter_map(|(Member { kind, dir, workload }, readings)| {
        let measured = Measurement::of(&dir.cgroup, workload.clone(), readings, node, scale);
        if *kind == Kind::Unlisted { measured.hidden() } else { Some(measured) }
    });
    let others =
        others.map(|(dir, readings)| Measurement::of(&dir.cgroup, None, readings, node, scale));
    Scored {
        population,
        measurements: measurements.collect(),
        others: others.collect(),
        hidden_threads: of_scored.filter(|one| one.threads == Threads::Hidden).count(),
    }
}
