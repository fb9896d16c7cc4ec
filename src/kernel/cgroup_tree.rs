//! The current cgroups below one root, by path, each with a handle of its directory. inotify reports
//! most changes at once; a rescan every minute finds the others.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inotify::WatchDescriptor;
use nix::errno::Errno;

use super::cgroup_dir::{CgroupDir, CgroupRoot};
use super::cgroup_watch::CgroupWatch;
use super::read::{ReadError, ReadErrorKind};
use super::text::ParseError;
use crate::cgroup_path::{Place, PodLevel};

/// Interval of rescans, which find changes that inotify missed.
const RESCAN_EVERY: Duration = Duration::from_secs(60);
/// Interval of rescans while some directories cannot be watched.
const RESCAN_UNWATCHED_EVERY: Duration = Duration::from_secs(5);

/// Identity of a cgroup: the inode of its directory. A path can be reused. Inode numbers of
/// cgroupfs are not: they have 64 bits and only increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupId(pub u64);

/// Properties of a cgroup that never change.
#[derive(Debug, PartialEq, Eq)]
pub struct Cgroup {
    pub id: CgroupId,
    /// Its path from the root of the hierarchy; `/` is the root. All holders of a path share it.
    pub path: Arc<str>,
    pub place: Place,
    /// When it was created, seconds since the epoch.
    pub made_at_s: Option<u64>,
}

impl Cgroup {
    #[must_use]
    pub fn new(id: CgroupId, path: impl Into<Arc<str>>, made_at_s: Option<u64>) -> Self {
        let path = path.into();
        Self { id, place: Place::of_path(&path), path, made_at_s }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All cgroups except mount units.
    Everything,
    /// Pods, containers and their ancestors; nothing below a container.
    Pods,
    Root,
}

impl Extent {
    fn includes(self, place: &Place) -> bool {
        match place {
            Place::MountUnit => false,
            Place::Root | Place::Host => true,
            Place::Pod(pod) => {
                self == Extent::Everything
                    || !matches!(
                        pod.level,
                        PodLevel::Nested(_) | PodLevel::Monitor | PodLevel::Unknown
                    )
            }
        }
    }

    fn descends(self, place: &Place) -> bool {
        if self == Extent::Root {
            return false;
        }
        match place {
            Place::Pod(pod) => self == Extent::Everything || pod.level == PodLevel::Pod,
            Place::Root | Place::Host | Place::MountUnit => true,
        }
    }
}

#[derive(Debug)]
pub struct CgroupNode {
    pub cgroup: Arc<Cgroup>,
    pub dir: CgroupDir,
    /// Whether its children belong to the tree.
    descends: bool,
    /// Number of children when it was last listed; `None` when it has to be listed again.
    subdirs: Option<usize>,
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
    extent: Extent,
    watch: Option<CgroupWatch>,
    nodes: BTreeMap<Arc<str>, CgroupNode>,
    rescanned_at: Option<Instant>,
    /// Maximum number of kept directory handles; further cgroups are opened by path.
    handles: usize,
    overflows: u64,
    errors: Vec<ReadError>,
}

impl CgroupTree {
    /// An empty tree, which keeps at most `handles` directory handles. [`CgroupTree::follow`] fills it.
    pub fn new(root: Arc<CgroupRoot>, extent: Extent, handles: usize) -> Self {
        let mut errors = Vec::new();
        let watch = CgroupWatch::new().map_err(|errno| errors.push(inotify_error(errno))).ok();
        Self {
            root,
            extent,
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
        let hints = match self.watch.as_mut().map(CgroupWatch::take_hints).transpose() {
            Ok(hints) => hints.unwrap_or_default(),
            Err(errno) => {
                self.errors.push(inotify_error(errno));
                return self.rescan(now);
            }
        };
        self.overflows += u64::from(hints.overflow);
        let blind = self.unwatched() > 0;
        let every = if blind { RESCAN_UNWATCHED_EVERY } else { RESCAN_EVERY };
        let fresh = |at: Instant| now.saturating_duration_since(at) < every;
        if hints.overflow || !self.rescanned_at.is_some_and(fresh) {
            return self.rescan(now);
        }
        for path in hints.changed {
            self.relist(&path);
        }
        false
    }

    /// Checks every cgroup, and lists those whose children may have changed.
    fn rescan(&mut self, now: Instant) -> bool {
        self.rescanned_at = Some(now);
        let mut relist = Vec::new();
        for path in self.nodes.keys().cloned().collect::<Vec<_>>() {
            // Removed with its parent earlier in this loop.
            let Some(node) = self.nodes.get_mut(&path) else { continue };
            match self.root.stat(&path) {
                Ok(stat) if stat.st_ino == node.dir.inode() => {
                    if node.descends && node.watch.is_none() {
                        let watch = self.watch.as_mut();
                        node.watch = watch_node(watch, &self.root, &path, &mut self.errors);
                    }
                    // On cgroupfs the link count is the number of children plus 2, so the directory
                    // need not be listed to detect a change. Other file systems do not guarantee
                    // it.
                    let links = usize::try_from(stat.st_nlink).ok();
                    let listed = node.subdirs.map(|subdirs| subdirs + 2);
                    let unchanged = self.root.is_cgroup2() && links.is_some() && links == listed;
                    if node.descends && !unchanged {
                        relist.push(path);
                    }
                }
                _ => relist.extend(self.remove(&path)),
            }
        }
        for path in relist {
            self.relist(&path);
        }
        // The first time, or after the root was replaced.
        if self.nodes.is_empty() {
            self.add("/".into());
        }
        true
    }

    /// Lists a cgroup's children, adds new ones and removes those that no longer exist.
    fn relist(&mut self, path: &str) {
        let Some(node) = self.nodes.get_mut(path) else {
            return;
        };
        let children = match node.dir.children() {
            Ok(children) => children,
            Err(error) => {
                if node.dir.is_alive() {
                    self.errors.push(error);
                } else {
                    self.remove(path);
                }
                return;
            }
        };
        let listed: BTreeMap<Arc<str>, u64> = self.child_paths(path, &children).collect();
        for known in self.children_of(path) {
            let inode = self.nodes.get(&known).map(|node| node.dir.inode());
            if inode != listed.get(&known).copied() {
                self.remove(&known);
            }
        }
        for child in listed.into_keys() {
            self.add(child);
        }
        if let Some(node) = self.nodes.get_mut(path) {
            node.subdirs = Some(children.len());
        }
    }

    /// Paths and inodes of the children of `path`. A name that is not UTF-8 cannot be a label value: it
    /// is skipped and reported.
    fn child_paths(
        &mut self,
        path: &str,
        children: &[(CString, u64)],
    ) -> impl Iterator<Item = (Arc<str>, u64)> {
        children.iter().filter_map(move |(name, inode)| {
            if let Ok(name) = name.to_str() {
                return Some((join(path, name), *inode));
            }
            let shown = self.root.full_path(&join(path, &name.to_string_lossy()));
            self.errors.push(ReadError::new(&shown, ParseError::of_file("a name in UTF-8")));
            None
        })
    }

    fn add(&mut self, path: Arc<str>) {
        let mut pending = vec![path];
        while let Some(path) = pending.pop() {
            let place = Place::of_path(&path);
            if !self.extent.includes(&place) || self.nodes.contains_key(&path) {
                continue;
            }
            let keep = self.nodes.len() < self.handles;
            let dir = match CgroupDir::open(&self.root, Arc::clone(&path), keep) {
                Ok(dir) => dir,
                Err(error) if error.is_vanished() => continue,
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            let descends = self.extent.descends(&place);
            let id = CgroupId(dir.inode());
            let cgroup = Arc::new(Cgroup::new(id, Arc::clone(&path), dir.made_at_s()));
            let mut node = CgroupNode { cgroup, dir, descends, subdirs: None, watch: None };
            if descends {
                // Watch before listing: a child created in between is reported twice, not missed.
                node.watch = watch_node(self.watch.as_mut(), &self.root, &path, &mut self.errors);
                match node.dir.children() {
                    Ok(children) => {
                        node.subdirs = Some(children.len());
                        pending.extend(self.child_paths(&path, &children).map(|(path, _)| path));
                    }
                    Err(error) if error.is_vanished() => {}
                    Err(error) => self.errors.push(error),
                }
            }
            self.nodes.insert(path, node);
        }
    }

    /// Removes a cgroup that no longer exists, and its descendants. Returns its parent, which has to
    /// be listed again: a new cgroup may have the same name.
    pub fn remove(&mut self, path: &str) -> Option<Arc<str>> {
        let mut gone = self.descendants_of(path);
        gone.push(path.into());
        for path in gone {
            let node = self.nodes.remove(&path);
            if let (Some(node), Some(watch)) = (node, self.watch.as_mut())
                && let Some(descriptor) = node.watch
            {
                watch.remove(descriptor);
            }
        }
        let (parent, _) = path.rsplit_once('/')?;
        let parent = if parent.is_empty() { "/" } else { parent };
        self.nodes.get_mut(parent)?.subdirs = None;
        Some(parent.into())
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

    pub fn nodes(&self) -> impl Iterator<Item = &CgroupNode> + Clone {
        self.nodes.values()
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn unwatched(&self) -> usize {
        self.nodes.values().filter(|node| node.descends && node.watch.is_none()).count()
    }

    pub fn health(&self) -> TreeHealth {
        TreeHealth {
            watches: self.watch.as_ref().map_or(0, CgroupWatch::count),
            unwatched: self.unwatched(),
            overflows: self.overflows,
        }
    }

    pub fn take_errors(&mut self) -> Vec<ReadError> {
        std::mem::take(&mut self.errors)
    }
}

/// Adds a watch. Returns `None` if that fails, and keeps the error unless the directory was
/// removed.
fn watch_node(
    watch: Option<&mut CgroupWatch>,
    root: &CgroupRoot,
    path: &Arc<str>,
    errors: &mut Vec<ReadError>,
) -> Option<WatchDescriptor> {
    match watch?.add(&root.full_path(path), Arc::clone(path)) {
        Ok(descriptor) => Some(descriptor),
        Err(errno) => {
            if errno != Errno::ENOENT && errno != Errno::ENODEV {
                errors.push(inotify_error(errno));
            }
            None
        }
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
