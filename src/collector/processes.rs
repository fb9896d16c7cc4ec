//! Run delay of containers: their processes are found below the host's `/proc` by the cgroup that
//! `/proc/PID/cgroup` names, their threads are read at every tick.
//!
//! A container is *hidden*, and has no value, unless its threads could be read in full.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::state::CgroupState;
use crate::cgroup_path::{Place, PodLevel};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode, CgroupTree};
use crate::kernel::counters::parse_populated;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::process_dir::{ProcessDir, TaskId, ThreadDir};
use crate::kernel::task_text::TaskTimes;
use crate::kernel::{ReadBuffer, ReadError, ReadErrorKind};
use crate::sample::ThreadSample;

/// How often all processes are listed.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// The processes of so young a container are still starting, and its threads still get their names:
/// then every tick lists them.
const YOUNG: Duration = Duration::from_secs(60);

pub(super) type States = HashMap<CgroupId, CgroupState>;

/// Finds the processes of containers.
#[derive(Debug, Default)]
pub(super) struct ProcessFinder {
    /// Processes of no scored container. One that is seen for the first time may have been forked
    /// a moment ago and not be in its cgroup yet: only the second time settles it.
    others: HashMap<TaskId, bool>,
    scanned_at: Option<Instant>,
    /// Whether a known thread ended: others may have replaced it.
    thread_ended: bool,
    /// Handles that may be kept.
    handles: usize,
}

/// The processes of one container.
#[derive(Debug, Default)]
pub(super) struct ContainerProcesses {
    since: Option<Instant>,
    processes: HashMap<TaskId, Process>,
    hidden: bool,
}

#[derive(Debug)]
struct Process {
    dir: ProcessDir,
    threads: HashMap<TaskId, Thread>,
    since: Instant,
}

#[derive(Debug)]
struct Thread {
    is_vcpu: bool,
    /// `None` for a thread that is not read, beside vCPU threads.
    dir: Option<ThreadDir>,
    last: Option<TaskTimes>,
    was_runnable: bool,
}

/// A container with the name of its cgroup, by which processes find it.
struct Owner<'a> {
    name: &'a [u8],
    id: CgroupId,
}

impl ProcessFinder {
    /// One that may keep so many handles.
    pub(super) fn new(handles: usize) -> Self {
        Self { handles, ..Self::default() }
    }

    /// Follows the processes of the scored containers.
    pub(super) fn follow(
        &mut self,
        proc: &ProcRoot,
        containers: &[&CgroupNode],
        states: &mut States,
        (buffer, errors): (&mut ReadBuffer, &mut Vec<ReadError>),
        now: Instant,
    ) {
        let mut any_young = false;
        for node in containers {
            let container = &mut states.entry(node.cgroup.id).or_default().processes;
            if container.since.is_none() {
                // A process that belonged to no container may belong to this one.
                self.others.clear();
            }
            any_young |= is_young(*container.since.get_or_insert(now), now);
        }
        let age = self.scanned_at.map(|at| now.saturating_duration_since(at));
        let is_due = any_young || age.is_none_or(|age| age >= SCAN_INTERVAL);
        if !std::mem::take(&mut self.thread_ended) && !is_due {
            return;
        }
        self.scanned_at = Some(now);
        let all_read = self.scan(proc, containers, states, (buffer, errors), now);
        let mut handles = self.handles;
        for node in containers {
            let Some(state) = states.get_mut(&node.cgroup.id) else { continue };
            let processes = &mut state.processes;
            let listed = processes.list_threads(buffer, now, errors);
            // A process that could not be read may be this container's QEMU, for which the threads
            // of virt-launcher don't stand.
            let complete = processes.has_vcpus() || all_read && !processes.processes.is_empty();
            let fits = handles.checked_sub(processes.handles());
            handles = fits.unwrap_or(handles);
            processes.hidden = !listed || fits.is_none() || !complete && is_populated(node, buffer);
            if fits.is_none() {
                processes.processes.clear();
            }
        }
    }

    /// Assigns processes to containers; answers whether all of them could be read.
    fn scan(
        &mut self,
        proc: &ProcRoot,
        containers: &[&CgroupNode],
        states: &mut States,
        (buffer, errors): (&mut ReadBuffer, &mut Vec<ReadError>),
        now: Instant,
    ) -> bool {
        let ids = match proc.processes() {
            Ok(ids) => ids,
            Err(error) => {
                errors.push(error);
                return false;
            }
        };
        let listed: HashSet<TaskId> = ids.iter().copied().collect();
        self.others.retain(|id, _| listed.contains(id));
        let owners: HashMap<&[u8], CgroupId> =
            containers.iter().filter_map(|node| Owner::of(node)).map(|o| (o.name, o.id)).collect();
        let known: HashSet<TaskId> = containers
            .iter()
            .filter_map(|node| states.get(&node.cgroup.id))
            .flat_map(|state| state.processes.processes.keys().copied())
            .collect();
        let mut first_error = None;
        for id in ids {
            if known.contains(&id) || self.others.get(&id) == Some(&true) {
                continue;
            }
            let found = proc.process(id.number).and_then(|dir| {
                let owner = owner_of(dir.cgroup(buffer)?, &owners);
                Ok((dir, owner))
            });
            match found {
                Ok((dir, Some(owner))) => {
                    let process = Process { dir, threads: HashMap::new(), since: now };
                    let processes = &mut states.entry(owner).or_default().processes.processes;
                    processes.insert(id, process);
                }
                Ok((_, None)) => {
                    self.others.entry(id).and_modify(|settled| *settled = true).or_insert(false);
                }
                Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {}
                // The reason is usually the same for all of them.
                Err(error) => _ = first_error.get_or_insert(error),
            }
        }
        let all_read = first_error.is_none();
        errors.extend(first_error);
        all_read
    }

    /// The vCPU threads of a container, or all its threads where it has none; `None` where the
    /// container is hidden. `may_wait` is false where its CPU pressure proves that no task waited.
    pub(super) fn read(
        &mut self,
        container: &mut ContainerProcesses,
        may_wait: bool,
        (buffer, errors): (&mut ReadBuffer, &mut Vec<ReadError>),
    ) -> Option<Vec<ThreadSample>> {
        if container.hidden {
            return None;
        }
        let vcpus_only = container.has_vcpus();
        let (mut samples, mut failed) = (Vec::new(), None);
        for process in container.processes.values_mut() {
            process.threads.retain(|id, thread| {
                if vcpus_only && !thread.is_vcpu {
                    return true;
                }
                match thread.sample(id.number, may_wait, buffer) {
                    Ok(sample) => samples.extend(sample),
                    Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {
                        self.thread_ended = true;
                        return false;
                    }
                    Err(error) => _ = failed.get_or_insert(error),
                }
                true
            });
        }
        let complete = failed.is_none();
        errors.extend(failed);
        complete.then_some(samples)
    }
}

impl ContainerProcesses {
    /// Whether there are tasks whose threads could not be read.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden
    }

    fn has_vcpus(&self) -> bool {
        self.processes.values().flat_map(|process| process.threads.values()).any(|one| one.is_vcpu)
    }

    fn handles(&self) -> usize {
        let threads = self.processes.values().flat_map(|process| process.threads.values());
        self.processes.len() + threads.filter(|thread| thread.dir.is_some()).count()
    }

    /// Brings the threads of all processes up to date; answers whether all could be read.
    fn list_threads(
        &mut self,
        buffer: &mut ReadBuffer,
        now: Instant,
        errors: &mut Vec<ReadError>,
    ) -> bool {
        let mut all_read = true;
        self.processes.retain(|_, process| match process.list_threads(buffer, now, errors) {
            Ok(complete) => {
                all_read &= complete;
                true
            }
            Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => false,
            Err(error) => {
                errors.push(error);
                all_read = false;
                true
            }
        });
        if self.has_vcpus() {
            let threads = self.processes.values_mut().flat_map(|one| one.threads.values_mut());
            threads.filter(|thread| !thread.is_vcpu).for_each(|thread| thread.dir = None);
        }
        all_read
    }
}

impl Process {
    /// Answers whether all threads could be read.
    fn list_threads(
        &mut self,
        buffer: &mut ReadBuffer,
        now: Instant,
        errors: &mut Vec<ReadError>,
    ) -> Result<bool, ReadError> {
        // A thread is born with the name of its process.
        let names_settle = is_young(self.since, now);
        let mut before = std::mem::take(&mut self.threads);
        let mut complete = true;
        for id in self.dir.threads()? {
            let kept = before.remove(&id).filter(|thread| thread.is_vcpu || !names_settle);
            let thread = match kept {
                Some(thread) => Ok(thread),
                None => Thread::open(&self.dir, id, buffer),
            };
            match thread {
                Ok(thread) => _ = self.threads.insert(id, thread),
                Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {}
                Err(error) => {
                    errors.push(error);
                    complete = false;
                }
            }
        }
        Ok(complete)
    }
}

impl Thread {
    fn open(process: &ProcessDir, id: TaskId, buffer: &mut ReadBuffer) -> Result<Self, ReadError> {
        let dir = process.thread(id.number)?;
        let is_vcpu = dir.is_vcpu(buffer)?;
        Ok(Self { is_vcpu, dir: Some(dir), last: None, was_runnable: false })
    }

    fn sample(
        &mut self,
        id: u32,
        may_wait: bool,
        buffer: &mut ReadBuffer,
    ) -> Result<Option<ThreadSample>, ReadError> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let times = dir.times(buffer)?;
        // The kernel adds a delay when it ends: of a thread that never gets a CPU it adds nothing.
        let stands_still = self.last.replace(times) == Some(times);
        let runnable = stands_still && may_wait && dir.is_runnable(buffer)?;
        let starved = std::mem::replace(&mut self.was_runnable, runnable) && runnable;
        Ok(Some(ThreadSample { id, is_vcpu: self.is_vcpu, times, starved }))
    }
}

impl<'a> Owner<'a> {
    fn of(node: &'a CgroupNode) -> Option<Self> {
        let (_, name) = node.cgroup.path.rsplit_once('/')?;
        Some(Self { name: name.as_bytes(), id: node.cgroup.id })
    }
}

fn is_young(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < YOUNG
}

/// The container of a process, by the path of its cgroup. In a cgroup namespace the beginning of the
/// path is cut off, so that the container's own name has to do. The outermost counts: below its own
/// cgroup a container can make others by any name.
fn owner_of(path: Option<&[u8]>, owners: &HashMap<&[u8], CgroupId>) -> Option<CgroupId> {
    path?.split(|&byte| byte == b'/').find_map(|name| owners.get(name).copied())
}

/// Whether there are tasks in a cgroup or below it.
fn is_populated(node: &CgroupNode, buffer: &mut ReadBuffer) -> bool {
    let populated = node.dir.read(c"cgroup.events", buffer, parse_populated);
    populated.is_ok_and(|populated| populated == Some(true))
}

/// The threads of a node's containers at one look, for `check`.
#[derive(Debug)]
pub struct VisibleThreads {
    /// Containers.
    pub containers: usize,
    /// Containers whose threads could not be read in full.
    pub hidden: usize,
    /// Threads whose times could be read.
    pub threads: usize,
    /// The first error.
    pub error: Option<ReadError>,
}

/// Looks for the threads of all containers of a tree.
#[must_use]
pub fn visible_threads(proc: &ProcRoot, tree: &CgroupTree, now: Instant) -> VisibleThreads {
    let is_container = |node: &&CgroupNode| match &node.cgroup.place {
        Place::Pod(pod) => matches!(pod.level, PodLevel::Container(_)),
        Place::Root | Place::Host | Place::MountUnit => false,
    };
    let containers: Vec<&CgroupNode> = tree.nodes().filter(is_container).collect();
    let (mut finder, mut states) = (ProcessFinder::new(usize::MAX), States::new());
    let (mut buffer, mut errors) = (ReadBuffer::default(), Vec::new());
    finder.follow(proc, &containers, &mut states, (&mut buffer, &mut errors), now);
    let all = states.values_mut().map(|state| &mut state.processes);
    let read = |one| finder.read(one, false, (&mut buffer, &mut errors)).map_or(0, |all| all.len());
    let threads = all.map(read).sum();
    VisibleThreads {
        containers: containers.len(),
        hidden: states.values().filter(|state| state.processes.is_hidden()).count(),
        threads,
        error: errors.into_iter().next(),
    }
}
