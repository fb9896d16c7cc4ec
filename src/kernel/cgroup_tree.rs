//! The current cgroups below one root, by path, each with a handle of its directory. inotify reports
//! most changes at once; a rescan every minute finds the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inotify::WatchDescriptor;
use nix::errno::Errno;

pub use super::cgroup_dir::{Cgroup, CgroupId};
use super::cgroup_dir::{CgroupDir, CgroupRoot};
use super::cgroup_watch::CgroupWatch;
use super::read::{ReadError, ReadErrorKind};
use super::text::ParseError;
use crate::cgroup_path::{Place, PodLevel};

/// Interval of rescans, which find changes that inotify missed.
const RESCAN_EVERY: Duration = Duration::from_secs(60);
/// Interval of rescans while some directories cannot be watched.
const RESCAN_UNWATCHED_EVERY: Duration = Duration::from_secs(5);

/// Whether a cgroup belongs to a tree. Mount units never do, since they have no processes. Of pods,
/// only a whole tree has others than their containers.
fn is_included(whole: bool, path: &str, place: &Place) -> bool {
    match place {
        Place::Root => true,
        Place::Host => !path.ends_with(".mount"),
        Place::Pod(pod) => whole || matches!(pod.level, PodLevel::Pod | PodLevel::Container(_)),
    }
}

#[derive(Debug)]
struct Node {
    dir: CgroupDir,
    /// Whether its children belong to the tree.
    descends: bool,
    watch: Option<WatchDescriptor>,
}

/// State of the tree, for the agent's own metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeHealth {
    pub watches: usize,
    pub unwatched: usize,
    pub overflows: u64,
}

#[derive(Debug)]
pub struct CgroupTree {
    root: Arc<CgroupRoot>,
    whole: bool,
    watch: Option<CgroupWatch>,
    nodes: BTreeMap<Arc<str>, Node>,
    rescanned_at: Option<Instant>,
    /// Maximum number of kept directory handles; further cgroups are opened by path.
    handles: usize,
    overflows: u64,
    errors: Vec<ReadError>,
}

impl CgroupTree {
    /// An empty tree, which keeps at most `handles` directory handles. [`CgroupTree::follow`] fills
    /// it: with all cgroups if it is `whole`, else without those that are below containers, or
    /// beside them in pods.
    pub fn new(root: Arc<CgroupRoot>, whole: bool, handles: usize) -> Self {
        let mut errors = Vec::new();
        let watch = CgroupWatch::new().map_err(|errno| errors.push(inotify_error(errno))).ok();
        Self {
            root,
            whole,
            watch,
            nodes: BTreeMap::new(),
            rescanned_at: None,
            handles,
            overflows: 0,
            errors,
        }
    }

    pub fn root(&self) -> &Arc<CgroupRoot> {
        &self.root
    }

    /// Updates the tree: the directories that inotify reported, or all of it when a rescan is due.
    /// Returns whether it was a rescan.
    pub fn follow(&mut self, now: Instant) -> bool {
        let hints = self.watch.as_mut().map_or(Ok(Some(BTreeSet::new())), CgroupWatch::take_hints);
        self.overflows += u64::from(hints == Ok(None));
        let changed = hints.unwrap_or_else(|errno| {
            self.errors.push(inotify_error(errno));
            None
        });
        let every = if self.unwatched() > 0 { RESCAN_UNWATCHED_EVERY } else { RESCAN_EVERY };
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < every;
        match changed {
            Some(changed) if self.rescanned_at.is_some_and(is_fresh) => {
                changed.iter().for_each(|path| self.relist(path));
                false
            }
            _ => {
                self.rescanned_at = Some(now);
                self.rescan();
                true
            }
        }
    }

    /// Checks every cgroup, and lists those whose children may have changed.
    fn rescan(&mut self) {
        // Children first: after one is removed, its parent has another number of children.
        for path in self.nodes.keys().rev().cloned().collect::<Vec<_>>() {
            let id = self.nodes.get(&path).map(|node| node.dir.cgroup.id);
            match self.root.stat(&path) {
                Ok(stat) if Some(CgroupId(stat.st_ino)) == id => {
                    // On cgroupfs the link count is the number of children plus 2, so the directory
                    // need not be listed to detect a change. Other file systems do not guarantee it.
                    let links = usize::try_from(stat.st_nlink);
                    let is_same = links == Ok(self.children_of(&path).len() + 2);
                    if self.root.is_cgroup2 && is_same {
                        self.watch(&path);
                    } else {
                        self.relist(&path);
                    }
                }
                _ => self.remove(&path),
            }
        }
        // The first time, or after the root was replaced.
        if self.add("/".into()) {
            self.relist("/");
        }
    }

    /// Lists a cgroup's children, adds new ones with their descendants, and removes those that no
    /// longer exist.
    fn relist(&mut self, path: &str) {
        let mut pending = self.list(path);
        while let Some(path) = pending.pop() {
            if self.add(Arc::clone(&path)) {
                pending.extend(self.list(&path));
            }
        }
    }

    /// The children of a cgroup, of which those that no longer exist are removed from the tree.
    fn list(&mut self, path: &str) -> Vec<Arc<str>> {
        // Watch before listing: a child created in between is reported twice, not missed.
        self.watch(path);
        let Some(node) = self.nodes.get(path).filter(|node| node.descends) else {
            return Vec::new();
        };
        let children = match node.dir.children() {
            Ok(children) => children,
            Err(error) => {
                if node.dir.is_alive() {
                    self.errors.push(error);
                } else {
                    self.remove(path);
                }
                return Vec::new();
            }
        };
        let mut listed = BTreeMap::new();
        for (name, id) in children {
            match name.to_str() {
                Ok(name) => _ = listed.insert(join(path, name), id),
                // It cannot be the value of a label.
                Err(_) => {
                    let shown = self.root.full_path(&join(path, &name.to_string_lossy()));
                    self.errors
                        .push(ReadError::new(&shown, ParseError::of_file("a name in UTF-8")));
                }
            }
        }
        for child in self.children_of(path) {
            let id = self.nodes.get(&child).map(|node| node.dir.cgroup.id);
            if id != listed.get(&child).copied() {
                self.remove(&child);
            }
        }
        listed.into_keys().collect()
    }

    /// Adds a cgroup, unless it is in the tree or does not belong there. Returns whether it was added.
    fn add(&mut self, path: Arc<str>) -> bool {
        let place = Place::of_path(&path);
        if !is_included(self.whole, &path, &place) || self.nodes.contains_key(&path) {
            return false;
        }
        let keep = self.nodes.len() < self.handles;
        match CgroupDir::open(&self.root, Arc::clone(&path), keep) {
            Ok(dir) => {
                let is_container = matches!(place, Place::Pod(pod) if pod.level != PodLevel::Pod);
                let descends = self.whole || !is_container;
                self.nodes.insert(path, Node { dir, descends, watch: None });
                return true;
            }
            Err(error) if error.is_vanished() => {}
            Err(error) => self.errors.push(error),
        }
        false
    }

    /// Watches a cgroup whose children belong to the tree, unless it is watched.
    fn watch(&mut self, path: &str) {
        let Some((watch, node)) = self.watch.as_mut().zip(self.nodes.get_mut(path)) else { return };
        if !node.descends || node.watch.is_some() {
            return;
        }
        match watch.add(&self.root.full_path(path), Arc::clone(&node.dir.cgroup.path)) {
            Ok(descriptor) => node.watch = Some(descriptor),
            // It was removed.
            Err(Errno::ENOENT | Errno::ENODEV) => {}
            Err(errno) => self.errors.push(inotify_error(errno)),
        }
    }

    /// Removes a cgroup that no longer exists, and its descendants.
    pub fn remove(&mut self, path: &str) {
        for path in self.descendants_of(path).into_iter().chain([path.into()]) {
            let descriptor = self.nodes.remove(&path).and_then(|node| node.watch);
            if let Some((watch, descriptor)) = self.watch.as_mut().zip(descriptor) {
                watch.remove(descriptor);
            }
        }
    }

    fn descendants_of(&self, path: &str) -> Vec<Arc<str>> {
        let below = join(path, "");
        let range = (Bound::Excluded(&below), Bound::Unbounded);
        let paths = self.nodes.range::<Arc<str>, _>(range).map(|(path, _)| path);
        paths.take_while(|path| path.starts_with(&*below)).cloned().collect()
    }

    fn children_of(&self, path: &str) -> Vec<Arc<str>> {
        let below = join(path, "");
        let mut paths = self.descendants_of(path);
        paths.retain(|path| path.strip_prefix(&*below).is_some_and(|name| !name.contains('/')));
        paths
    }

    pub fn dirs(&self) -> impl Iterator<Item = &CgroupDir> + Clone {
        self.nodes.values().map(|node| &node.dir)
    }

    /// The root cgroup; `None` before the tree is followed.
    pub fn root_dir(&self) -> Option<&CgroupDir> {
        self.nodes.get("/").map(|node| &node.dir)
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    fn unwatched(&self) -> usize {
        self.nodes.values().filter(|node| node.descends && node.watch.is_none()).count()
    }

    pub fn health(&self) -> TreeHealth {
        TreeHealth {
            watches: self.nodes.values().filter(|node| node.watch.is_some()).count(),
            unwatched: self.unwatched(),
            overflows: self.overflows,
        }
    }

    pub fn take_errors(&mut self) -> Vec<ReadError> {
        std::mem::take(&mut self.errors)
    }
}

fn inotify_error(errno: Errno) -> ReadError {
    let path = if errno == Errno::ENOSPC {
        "inotify (raise fs.inotify.max_user_watches; rescanning every 5 s)"
    } else if errno == Errno::EMFILE {
        "inotify (raise fs.inotify.max_user_instances; rescanning every 5 s)"
    } else {
        "inotify"
    };
    ReadError { path: path.into(), kind: ReadErrorKind::Failed(errno) }
}

fn join(path: &str, name: &str) -> Arc<str> {
    let base = path.trim_end_matches('/');
    format!("{base}/{name}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_no_mount_units_and_of_pods_only_containers_unless_it_is_whole() {
        let cid = "0".repeat(64);
        let pod = "/kubepods/pod1234abcd";
        for (path, expected) in [
            ("/", [true, true]),
            ("/system.slice/ssh.service", [true, true]),
            ("/system.slice/run-rootfs.mount", [false, false]),
            (pod, [true, true]),
            (&format!("{pod}/{cid}"), [true, true]),
            (&format!("{pod}/{cid}/nested"), [false, true]),
            (&format!("{pod}/crio-conmon-{cid}"), [false, true]),
        ] {
            let place = Place::of_path(path);
            let found = [false, true].map(|whole| is_included(whole, path, &place));
            assert_eq!(found, expected, "{path}");
        }
    }
}
