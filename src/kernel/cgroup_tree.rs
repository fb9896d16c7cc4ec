//! The current cgroups below one root, by path, each with a handle of its directory. Each pass compares
//! the link count of each directory outside containers with the one that it had when it was listed, and lists it
//! again only if they differ, and once a minute.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc::nlink_t;
use nix::sys::stat::FileStat;

pub use super::cgroup_dir::{Cgroup, CgroupId};
use super::cgroup_dir::{CgroupDir, CgroupRoot};
use super::read::ReadError;
use super::text::ParseError;
use crate::cgroup_path::{Place, PodLevel};

/// Interval at which containers are checked as well. Those that are read are found to be removed by
/// that, and what is below them is part of their pressure.
const RESCAN_EVERY: Duration = Duration::from_secs(60);

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
    /// Its link count when it was listed; 0 to list it again.
    links: nlink_t,
}

impl Node {
    /// Whether this is a container, or a cgroup below or beside one.
    fn is_in_pod(&self) -> bool {
        matches!(&self.dir.cgroup.place, Place::Pod(pod) if pod.level != PodLevel::Pod)
    }
}

#[derive(Debug)]
pub struct CgroupTree {
    root: Arc<CgroupRoot>,
    whole: bool,
    nodes: BTreeMap<Arc<str>, Node>,
    rescanned_at: Option<Instant>,
    /// Maximum number of kept directory handles; further cgroups are opened by path.
    handles: usize,
    errors: Vec<ReadError>,
}

impl CgroupTree {
    /// An empty tree, which keeps at most `handles` directory handles. [`CgroupTree::follow`] fills
    /// it: with all cgroups if it is `whole`, else without those that are below containers, or
    /// beside them in pods.
    pub fn new(root: Arc<CgroupRoot>, whole: bool, handles: usize) -> Self {
        let (nodes, errors) = (BTreeMap::new(), Vec::new());
        Self { root, whole, nodes, rescanned_at: None, handles, errors }
    }

    /// Updates the tree, and returns the errors. On cgroupfs the link count of a directory is the number of its
    /// children plus 2. Other file systems do not guarantee it, so their directories are always listed.
    pub fn follow(&mut self, now: Instant) -> Vec<ReadError> {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < RESCAN_EVERY;
        let checks_all = !self.rescanned_at.is_some_and(is_fresh);
        if checks_all {
            self.rescanned_at = Some(now);
        }
        let (mut gone, mut changed) = (Vec::new(), Vec::<Arc<str>>::new());
        for (path, node) in self.nodes.iter().filter(|(_, node)| checks_all || !node.is_in_pod()) {
            let exists = |stat: &FileStat| CgroupId(stat.st_ino) == node.dir.cgroup.id;
            // If one child was added and another one removed, the count is the same.
            let may_be_known = self.root.is_cgroup2 && !checks_all;
            let is_known = |stat: &FileStat| may_be_known && stat.st_nlink == node.links;
            // A handle costs half as much as a path. A removed directory has no children.
            let by_handle = (node.links > 2).then(|| node.dir.stat().ok()).flatten();
            if by_handle.is_some_and(|stat| exists(&stat) && is_known(&stat)) {
                continue;
            }
            match self.root.stat(path).ok().filter(exists) {
                None => gone.push(Arc::clone(path)),
                Some(stat) if is_known(&stat) || !self.has_children_of(node) => {}
                Some(_) => changed.push(Arc::clone(path)),
            }
        }
        for path in gone {
            self.remove(&path);
            // Another one may have taken its place.
            changed.push(parent_of(&path).into());
        }
        for path in changed {
            self.relist(&path);
        }
        // The first time, or after the root was replaced.
        if self.add("/".into()) {
            self.relist("/");
        }
        std::mem::take(&mut self.errors)
    }

    /// Whether the children of a cgroup belong to the tree.
    fn has_children_of(&self, node: &Node) -> bool {
        self.whole || !node.is_in_pod()
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
        let Some(node) = self.nodes.get(path).filter(|node| self.has_children_of(node)) else {
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
        let links = nlink_t::try_from(children.len() + 2).unwrap_or(0);
        let mut listed = BTreeMap::new();
        for (name, id) in children {
            match name.to_str() {
                Ok(name) => _ = listed.insert(join(path, name), id),
                // It cannot be the value of a label.
                Err(_) => {
                    let shown = self.root.full_path(&join(path, &name.to_string_lossy()));
                    self.errors.push(ReadError::new(&shown, ParseError("a name in UTF-8")));
                }
            }
        }
        if let Some(node) = self.nodes.get_mut(path) {
            node.links = links;
        }
        let below = join(path, "");
        let known = self.nodes.range::<str, _>((Bound::Excluded(&*below), Bound::Unbounded));
        let known = known.take_while(|(one, _)| one.starts_with(&*below));
        let is_gone = |one: &str, node: &Node| listed.get(one) != Some(&node.dir.cgroup.id);
        let gone = known.filter(|(one, node)| parent_of(one) == path && is_gone(one, node));
        for child in gone.map(|(one, _)| Arc::clone(one)).collect::<Vec<_>>() {
            self.remove(&child);
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
                self.nodes.insert(path, Node { dir, links: 0 });
                true
            }
            Err(error) => {
                if !error.is_vanished() {
                    self.errors.push(error);
                }
                self.list_again(parent_of(&path));
                false
            }
        }
    }

    /// Removes a cgroup that no longer exists, and its descendants.
    pub fn remove(&mut self, path: &str) {
        let below = join(path, "");
        self.nodes.retain(|one, _| **one != *path && !one.starts_with(&*below));
        // Another one may have taken its place.
        self.list_again(parent_of(path));
    }

    /// Lets the next pass list a cgroup's children.
    fn list_again(&mut self, path: &str) {
        if let Some(node) = self.nodes.get_mut(path) {
            node.links = 0;
        }
    }

    pub fn dirs(&self) -> impl Iterator<Item = &CgroupDir> + Clone {
        self.nodes.values().map(|node| &node.dir)
    }

    pub fn dir(&self, path: &str) -> Option<&CgroupDir> {
        self.nodes.get(path).map(|node| &node.dir)
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }
}

/// The parent's path; for the root, which has none, the empty one.
fn parent_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", "")) | None => "",
        Some(("", _)) => "/",
        Some((parent, _)) => parent,
    }
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
