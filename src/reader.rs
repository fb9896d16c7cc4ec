//! Makes samples: follows the tree, opens each cgroup's files, keeps what was read for a second.
//! In: open roots and a moment. Out: a [`Sample`]. The clock is the caller's.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cgroup_path::{Level, Place};
use crate::clock::Moment;
use crate::identity::Workload;
use crate::identity::pod_index::PodIndex;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupId, CgroupTree, Extent, Node};
use crate::kernel::io_stat::Device;
use crate::kernel::pressure::Pressure;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadBuffer, ReadError, Situation};
use crate::sample::{
    BystanderSample, CgroupSample, CpuSource, Depth, MemberSample, NodeSample, PressureReading,
    Pressures, Sample,
};
use attention::Attention;
use bystander::{BystanderReader, above_pods};
use cgroup::CgroupReader;
use cpu_use::CpuUseReader;
use matching::{Found, Matcher};
use member::MemberReader;
pub use selection::{Groups, Selection};
use stalls::{read_limit_hits, read_memory_of};
use threads::ThreadReader;
pub use threads::{SeenThreads, see_threads};
use tick::Tick;

mod attention;
mod bystander;
mod cgroup;
mod cpu_use;
mod matching;
mod member;
mod selection;
mod stalls;
mod threads;
mod tick;

/// Nobody reads a cgroup's pressure more often than this: each reading closes a window of the
/// kernel's, and windows of less than a busy jiffy per CPU count nothing.
pub const MIN_PRESSURE_INTERVAL: Duration = Duration::from_secs(1);

/// Reads samples.
#[derive(Debug)]
pub struct Reader {
    proc: ProcRoot,
    tree: CgroupTree,
    selection: Selection,
    /// Whether cgroups can be told at all.
    tells_cgroups: bool,
    cgroups: CgroupReader,
    attention: Attention,
    cpu_use: CpuUseReader,
    members: MemberReader,
    bystanders: BystanderReader,
    /// With the run delay as source of the score.
    threads: Option<ThreadReader>,
    ticked_at: Option<Instant>,
    /// Whether the tree is the whole node's, as the node's own counters are.
    whole_node: bool,
    node_reading: Option<PressureReading>,
    /// At the last tick: the node's memory pressure, and what all pods had then.
    all_pods: Option<(Option<Pressure>, AllPods)>,
    devices: Arc<BTreeMap<Device, String>>,
}

/// What all pods have together, by the cgroups in which they stand.
#[derive(Debug, Clone, Copy)]
struct AllPods {
    /// How often a limit of these cgroups made them reclaim.
    limit_hits: Option<u64>,
    /// Bytes.
    memory: Option<u64>,
}

impl Reader {
    /// A reader that has read nothing yet, and may keep so many directory handles. What the node
    /// tells as a whole counts where the tree is the `whole_node`'s.
    #[must_use]
    pub fn new(
        proc: ProcRoot,
        root: Arc<CgroupRoot>,
        whole_node: bool,
        selection: Selection,
        groups: Groups,
        handles: usize,
    ) -> Self {
        Self {
            proc,
            tree: CgroupTree::new(root, selection.extent(), handles),
            selection,
            tells_cgroups: true,
            cgroups: CgroupReader::new(groups),
            attention: Attention::default(),
            cpu_use: CpuUseReader::default(),
            members: MemberReader::default(),
            bystanders: BystanderReader::default(),
            threads: None,
            ticked_at: None,
            whole_node,
            node_reading: None,
            all_pods: None,
            devices: Arc::default(),
        }
    }

    /// The same with another source of how long containers waited for a CPU.
    #[must_use]
    pub fn with_cpu_source(self, source: CpuSource) -> Self {
        let threads = match source {
            CpuSource::Psi => None,
            CpuSource::RunDelay => Some(ThreadReader::default()),
        };
        Self { threads, ..self }
    }

    /// A reader of the node alone, where there are no cgroups of v2: what its pods do is not known,
    /// which is another thing than that they do nothing.
    #[must_use]
    pub fn of_node_alone(proc: ProcRoot, root: Arc<CgroupRoot>) -> Self {
        let tree = CgroupTree::new(Arc::clone(&root), Extent::Root, 0);
        let reader = Self::new(proc, root, true, Selection::NONE, Groups::default(), 0);
        Self { tree, tells_cgroups: false, ..reader }
    }

    /// Reads the node and its cgroups. Where `pods` are told, a pod's or container's cgroup is
    /// passed over until it is known whose it is.
    pub fn sample(&mut self, moment: Moment, depth: Depth, pods: Option<&PodIndex>) -> Sample {
        let mut errors = self.follow_tree(moment.at);
        let mut node = self.read_node(moment, depth, &mut errors);
        if depth == Depth::Score {
            let all_pods = self.all_pods(node.pressure.pressures.memory);
            (node.pods_limit_hits, node.pods_memory) = (all_pods.limit_hits, all_pods.memory);
        }
        let mut matched = Matcher::default();
        let found: Vec<Found> = self
            .tree
            .nodes()
            .map(|member| match pods {
                Some(pods) => matched.find(pods, &member.cgroup.place),
                None => Found::Nobody,
            })
            .collect();
        let matching = pods.map(|pods| matched.matching(pods));
        let users = match depth {
            Depth::Everything => bystander::users(self.tree.nodes()),
            Depth::Score | Depth::Exported => HashSet::new(),
        };
        let mut gone = Vec::new();
        let (in_scope, (cgroups, beside), (members, bystanders)) = match depth {
            Depth::Score => {
                let known = self.tells_cgroups && pods.is_none_or(PodIndex::is_listed);
                let scored = known.then(|| self.read_members(&found, &node, moment.at, &mut gone));
                let (members, bystanders) = scored.unzip();
                (self.count_in_scope(&found), Default::default(), (members, bystanders.flatten()))
            }
            Depth::Exported | Depth::Everything => {
                let how = (&node, moment.at, depth);
                let read = self.read_cgroups(&found, &users, how, &mut gone);
                (read.0.len(), read, (None, None))
            }
        };
        for path in &gone {
            self.tree.remove(path);
        }
        let (mut more, dropped_io_rows) = self.cgroups.take_problems();
        errors.append(&mut more);
        errors.extend(self.threads.iter_mut().flat_map(ThreadReader::take_errors));
        let tree = self.tree.health();
        Sample {
            moment,
            depth,
            node,
            cgroups,
            beside,
            users,
            in_scope,
            members,
            cpu_source: self.cpu_source(),
            hidden_members: self.threads.as_ref().map_or(0, ThreadReader::hidden),
            bystanders,
            errors,
            dropped_io_rows,
            tree,
            matching,
        }
    }

    /// What went wrong with it; what is gone is forgotten.
    fn follow_tree(&mut self, now: Instant) -> Vec<ReadError> {
        let rescanned = self.tree.follow(now);
        let mut errors = self.tree.take_errors();
        if rescanned {
            let names = self.proc.device_names(&mut self.cgroups.buffer);
            self.devices = Arc::new(note(names, &mut errors).unwrap_or_default());
            let alive = self.tree.nodes().map(|node| node.cgroup.id).collect();
            self.cgroups.forget_all_but(&alive);
        }
        errors
    }

    fn cpu_source(&self) -> CpuSource {
        if self.threads.is_some() { CpuSource::RunDelay } else { CpuSource::Psi }
    }

    /// Whether it is exported.
    fn is_in_scope(
        selection: Selection,
        (member, workload): (&Node, Option<&Arc<Workload>>),
    ) -> bool {
        selection.includes(&member.cgroup.place, workload.map(|workload| &**workload))
    }

    /// All but the cgroups of pods of which nobody told yet, and whose they are.
    fn known<'a>(
        tree: &'a CgroupTree,
        found: &'a [Found],
    ) -> impl Iterator<Item = (&'a Node, Option<&'a Arc<Workload>>)> {
        let known = tree.nodes().zip(found).filter(|(_, found)| **found != Found::NotYet);
        known.map(|(member, found)| (member, found.workload()))
    }

    fn count_in_scope(&self, found: &[Found]) -> usize {
        let known = Self::known(&self.tree, found);
        known.filter(|one| Self::is_in_scope(self.selection, *one)).count()
    }

    /// Cgroups in scope, and those of `users` that are not.
    fn read_cgroups(
        &mut self,
        found: &[Found],
        users: &HashSet<CgroupId>,
        (node, now, depth): (&NodeSample, Instant, Depth),
        gone: &mut Vec<Box<str>>,
    ) -> (Vec<CgroupSample>, Vec<CgroupSample>) {
        let (mut cgroups, mut beside) = (Vec::with_capacity(self.tree.len()), Vec::new());
        for (member, workload) in Self::known(&self.tree, found) {
            let in_scope = Self::is_in_scope(self.selection, (member, workload));
            if !in_scope && !users.contains(&member.cgroup.id) {
                continue;
            }
            let Some(sample) = self.cgroups.read(member, node, now, depth) else {
                gone.push(member.cgroup.path.clone());
                continue;
            };
            let sample = CgroupSample { workload: workload.cloned(), ..sample };
            if in_scope { &mut cgroups } else { &mut beside }.push(sample);
        }
        (cgroups, beside)
    }

    fn read_members(
        &mut self,
        found: &[Found],
        node: &NodeSample,
        now: Instant,
        gone: &mut Vec<Box<str>>,
    ) -> (Vec<MemberSample>, Option<Vec<BystanderSample>>) {
        let mut pods = HashMap::new();
        let mut containers = Vec::new();
        for (member, found) in self.tree.nodes().zip(found) {
            let Place::Pod(pod) = &member.cgroup.place else { continue };
            match pod.level {
                Level::Pod => {
                    pods.insert(&pod.uid, member);
                }
                Level::Container(_) if *found != Found::NotYet => {
                    containers.push((member, found.workload().cloned()));
                }
                Level::Container(_)
                | Level::Sandbox(_)
                | Level::Monitor
                | Level::Nested(_)
                | Level::Unknown => {}
            }
        }
        let members = member::population(containers);
        if let Some(threads) = &mut self.threads {
            let nodes: Vec<&Node> = members.iter().map(|(node, _)| *node).collect();
            threads.follow(&self.proc, &nodes, &mut self.cgroups.buffer, now);
        }
        let mut tick = Tick {
            reader: &mut self.cgroups,
            cpu_use: &mut self.cpu_use,
            threads: self.threads.as_mut(),
            pods: &pods,
            node,
            look: self.attention.look(node.run_delay_ns, self.members.somebody_waits(now), now),
            now,
            last: self.ticked_at.replace(now),
            gone,
        };
        let members = self.members.read(&mut tick, members);
        let bystanders = if node.run_delay_ns.is_some() {
            let ids = members.iter().map(|member| member.cgroup.id).collect();
            let others = bystander::bystanders(self.tree.nodes(), &ids);
            Some(self.bystanders.read(&mut tick, &others))
        } else {
            self.bystanders.forget();
            None
        };
        self.cpu_use.forget_others(now);
        (members, bystanders)
    }

    /// Of the cgroups in which all pods stand, at this memory pressure of the node: while it stands still,
    /// nobody waited for their limits.
    fn all_pods(&mut self, pressure: Option<Pressure>) -> AllPods {
        let all_pods = match self.all_pods {
            Some((before, all_pods)) if before == pressure => all_pods,
            _ => self.read_all_pods(),
        };
        self.all_pods = Some((pressure, all_pods));
        all_pods
    }

    fn read_all_pods(&mut self) -> AllPods {
        let above = above_pods(self.tree.nodes());
        let is_above =
            |node: &&Node| node.cgroup.place == Place::Host && above.contains(&*node.cgroup.path);
        let mut all_pods = AllPods { limit_hits: Some(0), memory: None };
        for Node { dir, .. } in self.tree.nodes().filter(is_above) {
            let hits = read_limit_hits(&mut self.cgroups, dir);
            all_pods.limit_hits =
                all_pods.limit_hits.zip(hits).map(|(sum, hits)| sum.saturating_add(hits));
            // The highest has what all below it have.
            all_pods.memory = all_pods.memory.max(read_memory_of(&mut self.cgroups, dir));
        }
        all_pods
    }

    fn read_node(
        &mut self,
        moment: Moment,
        depth: Depth,
        errors: &mut Vec<ReadError>,
    ) -> NodeSample {
        let buffer = &mut self.cgroups.buffer;
        let kept = self.node_reading.filter(|reading| is_fresh(reading.at, moment.at));
        let pressure = kept.unwrap_or_else(|| PressureReading {
            at: moment.at,
            pressures: read_node_pressures(&self.proc, self.tree.root(), buffer, errors),
        });
        self.node_reading = Some(pressure);
        // Only a score by pressure asks for it, and others on the host are none of this tree's.
        let wants_run_delay = depth == Depth::Score && self.whole_node && self.threads.is_none();
        let run_delay = wants_run_delay.then(|| note(self.proc.run_delay(buffer), errors));
        NodeSample {
            pressure,
            irq: note(self.proc.irq_pressure(buffer), errors).flatten(),
            cpu_times: note(self.proc.cpu_times(buffer), errors).flatten(),
            run_delay_ns: run_delay.flatten().flatten(),
            reclaim: note(self.proc.reclaim(buffer), errors).flatten(),
            pods_limit_hits: None,
            pods_memory: None,
            memory: note(self.proc.memory(buffer), errors).flatten(),
            disks: (depth == Depth::Score).then(|| note(self.proc.disks(buffer), errors)).flatten(),
            devices: Arc::clone(&self.devices),
        }
    }
}

/// The node's pressures from `/proc/pressure`, or from the root cgroup where that is refused.
fn read_node_pressures(
    proc: &ProcRoot,
    root: &Arc<CgroupRoot>,
    buffer: &mut ReadBuffer,
    errors: &mut Vec<ReadError>,
) -> Pressures {
    let mut pressures = Pressures::default();
    for resource in Resource::ALL {
        let read = match proc.pressure(resource, buffer) {
            Err(ReadError { situation: Situation::Refused(_), .. }) => {
                CgroupDir::open(root, "/", false).and_then(|dir| dir.pressure(resource, buffer))
            }
            read => read,
        };
        *pressures.slot(resource) = match read {
            // PSI is off on this node: absent, and no error at every reading.
            Err(ReadError {
                situation: Situation::Vanished(_) | Situation::Unsupported(_),
                ..
            }) => None,
            read => note(read, errors),
        };
    }
    pressures
}

fn is_fresh(read_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(read_at) < MIN_PRESSURE_INTERVAL
}

/// The value, or nothing with the error noted.
fn note<T>(result: Result<T, ReadError>, errors: &mut Vec<ReadError>) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}
