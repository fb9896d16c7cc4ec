//! The threads in which VMs run their CPUs, found below the host's `/proc` now and then, and how
//! long they ran and waited, at every tick.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::cgroup_path::{Place, PodLevel};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode, CgroupTree};
use crate::kernel::counters::parse_populated;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::process_dir::{ProcessDir, Thread};
use crate::kernel::{ReadBuffer, ReadError, ReadErrorKind};
use crate::sample::ThreadTimes;

/// How often all processes are looked through, for those that nobody told of.
const SCAN_EVERY: Duration = Duration::from_secs(30);
/// For so long a container's processes may still begin: then every tick looks.
const YOUNG_FOR: Duration = Duration::from_secs(60);

/// Reads threads, and keeps the directories of their processes.
#[derive(Debug, Default)]
pub(super) struct ThreadReader {
    containers: HashMap<CgroupId, Container>,
    /// Processes that are in no container of ours, as seen by two scans: one that was forked just
    /// now is not yet where it belongs.
    others: HashMap<u32, bool>,
    scanned_at: Option<Instant>,
    /// Whether a thread was gone: others may have come.
    lost: bool,
    errors: Vec<ReadError>,
}

/// A container, and its processes by number.
#[derive(Debug)]
struct Container {
    since: Instant,
    processes: HashMap<u32, Process>,
    /// Whether there are tasks in it of which no process is seen.
    is_hidden: bool,
}

#[derive(Debug)]
struct Process {
    dir: ProcessDir,
    threads: Vec<(Thread, bool)>,
    since: Instant,
}

impl ThreadReader {
    /// Follows the processes of these containers.
    pub(super) fn follow(
        &mut self,
        proc: &ProcRoot,
        containers: &[&CgroupNode],
        buffer: &mut ReadBuffer,
        now: Instant,
    ) {
        let alive: HashSet<CgroupId> = containers.iter().map(|node| node.cgroup.id).collect();
        self.containers.retain(|id, _| alive.contains(id));
        for id in alive {
            self.containers.entry(id).or_insert_with(|| {
                // Whose processes were nobody's may be this one's.
                self.others.clear();
                Container { since: now, processes: HashMap::new(), is_hidden: false }
            });
        }
        let is_young = |since: Instant| now.saturating_duration_since(since) < YOUNG_FOR;
        let is_due =
            self.scanned_at.is_none_or(|at| now.saturating_duration_since(at) >= SCAN_EVERY)
                || self.containers.values().any(|container| is_young(container.since));
        if is_due || std::mem::take(&mut self.lost) {
            self.scanned_at = Some(now);
            self.scan(proc, containers, buffer, now);
        }
    }

    /// Times of a container's virtual CPUs, or of all its threads where it has none; `None` where
    /// they are not to be seen.
    pub(super) fn read(
        &mut self,
        id: CgroupId,
        buffer: &mut ReadBuffer,
    ) -> Option<Vec<ThreadTimes>> {
        let container = self.containers.get_mut(&id).filter(|container| !container.is_hidden)?;
        let all = || container.processes.values().flat_map(|process| &process.threads);
        let vcpus_only = all().any(|(_, is_vcpu)| *is_vcpu);
        let (mut times, mut failed) = (Vec::new(), None);
        for process in container.processes.values_mut() {
            process.threads.retain(|(thread, is_vcpu)| {
                if vcpus_only && !is_vcpu {
                    return true;
                }
                match process.dir.times(thread, buffer) {
                    Ok(read) => {
                        times.push(ThreadTimes { id: thread.id, times: read });
                        true
                    }
                    Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {
                        self.lost = true;
                        false
                    }
                    Err(error) => {
                        failed.get_or_insert(error);
                        true
                    }
                }
            });
        }
        if let Some(error) = failed {
            self.errors.push(error);
            return None;
        }
        Some(times)
    }

    /// Looks through all processes that are not known to be others'.
    fn scan(
        &mut self,
        proc: &ProcRoot,
        containers: &[&CgroupNode],
        buffer: &mut ReadBuffer,
        now: Instant,
    ) {
        let ids = match proc.processes() {
            Ok(ids) => ids,
            Err(error) => return self.errors.push(error),
        };
        let listed: HashSet<u32> = ids.iter().copied().collect();
        self.others.retain(|id, _| listed.contains(id));
        let known: HashSet<u32> =
            self.containers.values().flat_map(|one| one.processes.keys().copied()).collect();
        let names = containers.iter().filter_map(|node| {
            let (_, name) = node.cgroup.path.rsplit_once('/')?;
            Some((name.as_bytes(), node.cgroup.id))
        });
        let names: HashMap<&[u8], CgroupId> = names.collect();
        let mut failed = None;
        for id in ids.into_iter().filter(|id| !known.contains(id)) {
            if self.others.get(&id) == Some(&true) {
                continue;
            }
            let found = proc.process(id, true, buffer).and_then(|dir| {
                let owner = owner_of(dir.cgroup(buffer)?, &names);
                Ok((dir, owner))
            });
            match found {
                Ok((dir, Some(owner))) => {
                    let process = Process { dir, threads: Vec::new(), since: now };
                    let container = self.containers.get_mut(&owner);
                    container.map(|container| container.processes.insert(id, process));
                }
                Ok((_, None)) => {
                    self.others.entry(id).and_modify(|settled| *settled = true).or_insert(false);
                }
                Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {}
                // Who may not see one process may see none: once is enough.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.errors.extend(failed);
        for node in containers {
            if let Some(container) = self.containers.get_mut(&node.cgroup.id) {
                container.list_threads(buffer, now, &mut self.errors);
                container.is_hidden = container.processes.is_empty() && is_populated(node, buffer);
            }
        }
    }

    /// How many of the containers have tasks of which no process is seen.
    pub(super) fn hidden(&self) -> usize {
        self.containers.values().filter(|container| container.is_hidden).count()
    }

    /// What went wrong since the last call.
    pub(super) fn take_errors(&mut self) -> Vec<ReadError> {
        std::mem::take(&mut self.errors)
    }
}

impl Container {
    /// Brings the threads of its processes up to date.
    fn list_threads(&mut self, buffer: &mut ReadBuffer, now: Instant, errors: &mut Vec<ReadError>) {
        self.processes.retain(|_, process| match process.list_threads(buffer, now, errors) {
            Ok(()) => true,
            Err(error) => {
                note(error, errors);
                false
            }
        });
    }
}

impl Process {
    fn list_threads(
        &mut self,
        buffer: &mut ReadBuffer,
        now: Instant,
        errors: &mut Vec<ReadError>,
    ) -> Result<(), ReadError> {
        // A thread that begins has its process' name for a moment.
        let is_young = now.saturating_duration_since(self.since) < YOUNG_FOR;
        let known: HashMap<u32, bool> =
            self.threads.iter().map(|(thread, is_vcpu)| (thread.id, *is_vcpu)).collect();
        self.threads.clear();
        for thread in self.dir.threads(buffer)? {
            let before = known.get(&thread.id).copied().filter(|_| !is_young);
            let is_vcpu = before.map_or_else(|| self.dir.is_vcpu(&thread, buffer), Ok);
            match is_vcpu {
                Ok(is_vcpu) => self.threads.push((thread, is_vcpu)),
                Err(error) => note(error, errors),
            }
        }
        Ok(())
    }
}

/// Whose a process is, by the path of its cgroup: in a cgroup namespace its beginning is cut off, so
/// that a container's own name has to do. Runtimes make cgroups of their own below it.
fn owner_of(path: Option<&[u8]>, names: &HashMap<&[u8], CgroupId>) -> Option<CgroupId> {
    path?.rsplit(|&byte| byte == b'/').find_map(|name| names.get(name).copied())
}

/// Whether there are tasks in a cgroup or below it.
fn is_populated(node: &CgroupNode, buffer: &mut ReadBuffer) -> bool {
    let populated = node.dir.read(c"cgroup.events", buffer, parse_populated);
    populated.is_ok_and(|populated| populated == Some(true))
}

/// Whoever ended in the meantime is no error.
fn note(error: ReadError, errors: &mut Vec<ReadError>) {
    match error.kind {
        ReadErrorKind::Vanished(_) => {}
        ReadErrorKind::Unsupported(_)
        | ReadErrorKind::Refused(_)
        | ReadErrorKind::Malformed(_)
        | ReadErrorKind::Failed(_) => errors.push(error),
    }
}

/// What is to be seen of a node's containers at one look.
#[derive(Debug)]
pub struct SeenThreads {
    /// Containers.
    pub containers: usize,
    /// Those with tasks of which no process is to be seen.
    pub hidden: usize,
    /// Threads whose times read.
    pub threads: usize,
    /// What did not read first.
    pub error: Option<ReadError>,
}

/// Looks for the threads of all containers of a tree.
#[must_use]
pub fn see_threads(proc: &ProcRoot, tree: &CgroupTree, now: Instant) -> SeenThreads {
    let is_container = |node: &&CgroupNode| match &node.cgroup.place {
        Place::Pod(pod) => matches!(pod.level, PodLevel::Container(_)),
        Place::Root | Place::Host | Place::MountUnit => false,
    };
    let containers: Vec<&CgroupNode> = tree.nodes().filter(is_container).collect();
    let (mut reader, mut buffer) = (ThreadReader::default(), ReadBuffer::default());
    reader.follow(proc, &containers, &mut buffer, now);
    let read =
        |node: &&CgroupNode| reader.read(node.cgroup.id, &mut buffer).map_or(0, |all| all.len());
    let threads = containers.iter().map(read).sum();
    SeenThreads {
        containers: containers.len(),
        hidden: reader.hidden(),
        threads,
        error: reader.take_errors().into_iter().next(),
    }
}
