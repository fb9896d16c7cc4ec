//! Finds the processes of containers below the host's `/proc`, by the cgroup that
//! `/proc/PID/cgroup` names.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use super::node::NodeReader;
use super::population::Member;
use super::state::States;
use super::threads::{ContainerThreads, is_young};
use crate::kernel::cgroup_dir::CgroupId;
use crate::kernel::own_process::own_cgroup;
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::process_dir::TaskId;
use crate::waiting::Population;
use crate::waiting::files::Files;

/// How often all processes are listed; at every tick while a container is young.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct ProcessFinder {
    /// Processes that belong to no scored container; `true` if two scans have found so. A process
    /// that was just forked may not be in its cgroup yet, so one scan is not enough.
    others: HashMap<TaskId, bool>,
    scanned_at: Option<Instant>,
    /// Maximum number of handles that are kept open.
    handles: usize,
    /// The agent's own container, if it runs in one that has a cgroup namespace.
    own_container: Option<CgroupId>,
    /// Whether the tree is only a part of the host's.
    is_part: bool,
}

/// The paths and ids of the scored containers, by the names of their cgroups.
type Owners<'a> = HashMap<&'a OsStr, (&'a Path, CgroupId)>;

impl ProcessFinder {
    /// A finder that keeps at most this number of handles open.
    pub(super) fn new(handles: usize, is_part: bool) -> Self {
        let own_container = own_cgroup();
        Self { others: HashMap::new(), scanned_at: None, handles, own_container, is_part }
    }

    /// Updates the processes of the scored containers. Of a container without vCPUs, threads are kept
    /// only where the node has no CPU pressure.
    pub(super) fn follow(
        &mut self,
        node: &NodeReader,
        population: Population,
        members: &[Member<'_>],
        states: &mut States,
        files: &mut Files,
    ) {
        let now = (files.clock)().at;
        // Without pressure, threads show the wait of any container.
        let all_threads = !node.readings.reports.cpu;
        let may_be_vm = |member: &&Member<'_>| match population {
            Population::Vms => true,
            Population::Containers => all_threads || member.workload.is_none(),
            Population::Units => all_threads,
        };
        let containers: Vec<&Member<'_>> = members.iter().filter(may_be_vm).collect();
        // Threads that are not followed any more would be those of an earlier moment.
        let followed: HashSet<_> = containers.iter().map(|member| member.dir.cgroup.id).collect();
        for (_, state) in states.iter_mut().filter(|(id, _)| !followed.contains(id)) {
            state.threads = ContainerThreads::default();
        }
        // Since `kernel.task_delayacct` was switched off, threads show zeros.
        let shows_zeros = !node.proc.counts_run_delay();
        self.scanned_at = self.scanned_at.filter(|_| !shows_zeros);
        let age = |at| now.saturating_duration_since(at);
        let mut is_due = self.scanned_at.is_none_or(|at| age(at) >= SCAN_INTERVAL);
        for Member { dir, .. } in &containers {
            let threads = &mut states.entry(dir.cgroup.id).or_default().threads;
            if threads.since.is_none() {
                // A process that belonged to no container may belong to this one.
                self.others.clear();
            }
            is_due |= is_young(*threads.since.get_or_insert(now), now);
            is_due |= std::mem::take(&mut threads.ended);
            threads.hidden |= shows_zeros;
        }
        if shows_zeros || !is_due {
            return;
        }
        self.scanned_at = Some(now);
        let all_read = self.scan(&node.proc, &containers, states, files);
        let mut handles = self.handles;
        for Member { dir, .. } in &containers {
            let threads = &mut states.entry(dir.cgroup.id).or_default().threads;
            let listed = threads.list(all_threads, files, now);
            // A process that could not be read may be this container's QEMU, which the threads of
            // virt-launcher do not represent.
            let complete = threads.has_vcpus() || all_read && !threads.processes.is_empty();
            // The root cgroup does not say whether it has processes.
            let mut is_empty = || files.note(dir.populated()) == Some(Some(false));
            threads.hidden = !listed || !complete && !is_empty();
            if threads.handles() > handles {
                threads.hidden = true;
                threads.processes.clear();
            }
            handles -= threads.handles();
        }
    }

    /// Assigns processes to containers. Returns whether all processes could be read.
    fn scan(
        &mut self,
        proc: &ProcRoot,
        containers: &[&Member<'_>],
        states: &mut States,
        files: &mut Files,
    ) -> bool {
        let Some(ids) = files.note(proc.processes()) else { return false };
        let listed: HashSet<TaskId> = ids.iter().copied().collect();
        self.others.retain(|id, _| listed.contains(id));
        let cgroups = containers.iter().map(|member| &member.dir.cgroup);
        let owners: Owners<'_> = cgroups
            .filter_map(|cgroup| {
                let path = Path::new(cgroup.path.trim_start_matches('/'));
                Some((path.file_name()?, (path, cgroup.id)))
            })
            .collect();
        let own = self.own_container.filter(|own| owners.values().any(|(_, id)| id == own));
        let known = states.values().flat_map(|state| state.threads.processes.keys());
        let known: HashSet<TaskId> = known.copied().collect();
        let mut first_error = None;
        for id in ids {
            if known.contains(&id) || self.others.get(&id) == Some(&true) {
                continue;
            }
            let found = proc.process(id.number).and_then(|dir| {
                let path = dir.cgroup()?;
                let owner = path.and_then(|path| owner_of(&path, &owners, own, self.is_part));
                Ok((dir, owner))
            });
            match found {
                Ok((dir, Some(owner))) => {
                    states.entry(owner).or_default().threads.add(id, dir);
                }
                Ok((_, None)) => {
                    self.others.entry(id).and_modify(|settled| *settled = true).or_insert(false);
                }
                Err(error) if error.is_vanished() => {}
                // Only the first error is kept, since the cause is usually the same for all.
                Err(error) => _ = first_error.get_or_insert(error),
            }
        }
        let all_read = first_error.is_none();
        files.errors.extend(first_error);
        all_read
    }
}

/// The container of a process, by the path of its cgroup. A cgroup namespace hides the beginning of the path,
/// and a tree that is a part of the host's lacks it, so the ends of both paths are compared. The whole path
/// counts: a user can give a cgroup of his own the name of a container's. So does the outermost match, since
/// a container can create cgroups of any path below its own. Paths in the agent's own container (`own`) do
/// not contain its name.
fn owner_of(
    path: &[u8],
    owners: &Owners<'_>,
    own: Option<CgroupId>,
    is_part: bool,
) -> Option<CgroupId> {
    if own.is_some() && !path.starts_with(b"/..") {
        return own;
    }
    let mut visible = Path::new(OsStr::from_bytes(path)).components();
    while let Some(Component::RootDir | Component::ParentDir) = visible.clone().next() {
        visible.next();
    }
    let matches = visible.as_path().ancestors().filter_map(|above| {
        let (container, id) = owners.get(above.file_name()?)?;
        let is_it = container.ends_with(above) || is_part && above.ends_with(container);
        is_it.then_some(*id)
    });
    matches.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(path: &str, own: Option<CgroupId>, is_part: bool) -> Option<u64> {
        let containers = [("kubepods/pod/a.scope", 7), ("kubepods/other/b.scope", 8)];
        let owners = containers.map(|(path, id)| {
            let path = Path::new(path);
            (path.file_name().unwrap(), (path, CgroupId(id)))
        });
        owner_of(path.as_bytes(), &owners.into(), own, is_part).map(|id| id.0)
    }

    #[test]
    fn the_owner_is_the_outermost_container_or_the_agents_own() {
        let on_host = |path| owner(path, None, false);
        assert_eq!(on_host("/kubepods/pod/a.scope/kubepods/other/b.scope"), Some(7));
        assert_eq!((on_host("/"), on_host("/system.slice")), (None, None));
        // In the cgroup namespace of a container.
        let in_a = |path| owner(path, Some(CgroupId(7)), false);
        assert_eq!((in_a("/"), in_a("/b.scope")), (Some(7), Some(7)));
        assert_eq!(in_a("/../../other/b.scope/below"), Some(8));
        assert_eq!(in_a("/../../../system.slice"), None);
    }

    #[test]
    fn a_cgroup_elsewhere_of_the_same_name_is_not_the_container() {
        for mount in ["", "/..", "/../.."] {
            for elsewhere in ["user.slice/a.scope", "user.slice/kubepods/pod/a.scope"] {
                assert_eq!(owner(&format!("{mount}/{elsewhere}"), None, false), None);
            }
        }
        // Where the tree is a part of the host's, what is above it is unknown.
        assert_eq!(owner("/user.slice/a.scope", None, true), None);
        assert_eq!(owner("/machines/kubepods/pod/a.scope/below", None, true), Some(7));
    }
}
