//! Which cgroups there are now. In: directories below one root. Out: a table by path of kept
//! handles, each with the identity that its inode gives. Hints of inotify say where to look at
//! once; a rescan every minute decides.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inotify::WatchDescriptor;
use nix::errno::Errno;

use super::cgroup_dir::{CgroupDir, CgroupRoot};
use super::cgroup_watch::CgroupWatch;
use super::text::malformed_file;
use super::{ReadError, ReadErrorKind};
use crate::cgroup_path::{Place, PodLevel};

/// How long a lost hint can go unnoticed.
const RESCAN_EVERY: Duration = Duration::from_secs(60);
/// The same, while some directories cannot be watched.
const RESCAN_UNWATCHED_EVERY: Duration = Duration::from_secs(5);

/// A cgroup's identity across samples: its directory's inode. A path can be used again, an inode
/// of cgroupfs is not (its numbers are 64 bits wide and count up).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupId(pub u64);

/// What is known of a cgroup for as long as it lives.
#[derive(Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its identity.
    pub id: CgroupId,
    /// Its path from the root of the hierarchy, as the host sees it; `/` is the root.
    pub path: Box<str>,
    /// What the path says.
    pub place: Place,
    /// When it was made, seconds since the epoch.
    pub made_at_s: Option<u64>,
}

/// Which part of the tree is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every cgroup but mount units.
    Everything,
    /// Pods and containers, and the way down to them; nothing below a container.
    Pods,
    /// The root alone.
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

/// A cgroup with its open directory.
#[derive(Debug)]
pub struct CgroupNode {
    /// Who it is.
    pub cgroup: Arc<Cgroup>,
    /// Its directory.
    pub dir: CgroupDir,
    /// Whether the tree goes on below it.
    descends: bool,
    /// Directories below it when it was last listed; `None` when it has to be listed again.
    subdirs: Option<usize>,
    watch: Option<WatchDescriptor>,
}

/// The tree's own state, for health metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeHealth {
    /// Directories watched.
    pub watches: usize,
    /// Directories that could not be watched.
    pub unwatched: usize,
    /// Times that inotify's queue ran over.
    pub overflows: u64,
}

/// The tree.
#[derive(Debug)]
pub struct CgroupTree {
    root: Arc<CgroupRoot>,
    extent: Extent,
    watch: Option<CgroupWatch>,
    nodes: BTreeMap<Box<str>, CgroupNode>,
    rescanned_at: Option<Instant>,
    /// How many directory handles may be kept; the rest is opened by path.
    handles: usize,
    overflows: u64,
    errors: Vec<ReadError>,
}

impl CgroupTree {
    /// An empty tree that may keep so many directory handles; [`CgroupTree::follow`] fills it.
    #[must_use]
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

    /// The top of the tree.
    #[must_use]
    pub fn root(&self) -> &Arc<CgroupRoot> {
        &self.root
    }

    /// Brings the tree up to date: what inotify hinted at, or all of it when that is due. Answers
    /// whether it was all of it.
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

    /// Looks at every cgroup that is known, and lists those whose children may have changed.
    fn rescan(&mut self, now: Instant) -> bool {
        self.rescanned_at = Some(now);
        let mut relist = Vec::new();
        for path in self.nodes.keys().cloned().collect::<Vec<_>>() {
            // Gone with its parent, earlier in this very loop.
            let Some(node) = self.nodes.get_mut(&path) else { continue };
            match self.root.stat(&path) {
                Ok(stat) if stat.st_ino == node.dir.inode() => {
                    if node.descends && node.watch.is_none() {
                        let watch = self.watch.as_mut();
                        node.watch = watch_node(watch, &self.root, &path, &mut self.errors);
                    }
                    // On cgroupfs a directory has two links and one for each directory below it,
                    // which saves listing it. Other file systems need not keep that rule.
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
        // At the first time, or when the root itself was replaced.
        if self.nodes.is_empty() {
            self.add("/".into());
        }
        true
    }

    /// Lists a cgroup's children; adds those that are new and removes those that are not there.
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
        let listed: BTreeMap<Box<str>, u64> = self.child_paths(path, &children).collect();
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

    /// Paths and inodes of what was listed below `path`. A name that is no UTF-8 cannot be a label
    /// value: it is reported and passed over.
    fn child_paths(
        &mut self,
        path: &str,
        children: &[(CString, u64)],
    ) -> impl Iterator<Item = (Box<str>, u64)> {
        children.iter().filter_map(move |(name, inode)| {
            if let Ok(name) = name.to_str() {
                return Some((join(path, name), *inode));
            }
            let shown = self.root.full_path(&join(path, &name.to_string_lossy()));
            let kind = malformed_file("a name in UTF-8").into();
            self.errors.push(ReadError { path: shown.display().to_string(), kind });
            None
        })
    }

    /// Adds a cgroup and all below it, where it is not known yet.
    fn add(&mut self, path: Box<str>) {
        let mut pending = vec![path];
        while let Some(path) = pending.pop() {
            let place = Place::of_path(&path);
            if !self.extent.includes(&place) || self.nodes.contains_key(&path) {
                continue;
            }
            let keep = self.nodes.len() < self.handles;
            let dir = match CgroupDir::open(&self.root, &path, keep) {
                Ok(dir) => dir,
                Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => continue,
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            let descends = self.extent.descends(&place);
            let id = CgroupId(dir.inode());
            let made_at_s = dir.made_at_s();
            let cgroup = Arc::new(Cgroup { id, path: path.clone(), place, made_at_s });
            let mut node = CgroupNode { cgroup, dir, descends, subdirs: None, watch: None };
            if descends {
                // Watch, then list: a child made in between is seen twice, never missed.
                node.watch = watch_node(self.watch.as_mut(), &self.root, &path, &mut self.errors);
                match node.dir.children() {
                    Ok(children) => {
                        node.subdirs = Some(children.len());
                        pending.extend(self.child_paths(&path, &children).map(|(path, _)| path));
                    }
                    Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {}
                    Err(error) => self.errors.push(error),
                }
            }
            self.nodes.insert(path, node);
        }
    }

    /// Takes out a cgroup that was found gone, and all below it. Answers its parent, which is to
    /// be listed again: where one went another may have come.
    pub fn remove(&mut self, path: &str) -> Option<Box<str>> {
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

    fn descendants_of(&self, path: &str) -> Vec<Box<str>> {
        let below = join(path, "");
        let range = (Bound::Excluded(&below), Bound::Unbounded);
        let paths = self.nodes.range::<Box<str>, _>(range).map(|(path, _)| path);
        paths.take_while(|path| path.starts_with(&*below)).cloned().collect()
    }

    fn children_of(&self, path: &str) -> Vec<Box<str>> {
        let below = join(path, "");
        let mut paths = self.descendants_of(path);
        paths.retain(|path| path.strip_prefix(&*below).is_some_and(|name| !name.contains('/')));
        paths
    }

    /// All cgroups, by path.
    pub fn nodes(&self) -> impl Iterator<Item = &CgroupNode> + Clone {
        self.nodes.values()
    }

    /// How many cgroups are followed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether not even the root was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn unwatched(&self) -> usize {
        self.nodes.values().filter(|node| node.descends && node.watch.is_none()).count()
    }

    /// Its own state.
    #[must_use]
    pub fn health(&self) -> TreeHealth {
        TreeHealth {
            watches: self.watch.as_ref().map_or(0, CgroupWatch::len),
            unwatched: self.unwatched(),
            overflows: self.overflows,
        }
    }

    /// What went wrong since the last call.
    pub fn take_errors(&mut self) -> Vec<ReadError> {
        std::mem::take(&mut self.errors)
    }
}

/// A watch, or `None` with the reason noted; a directory that is gone needs none.
fn watch_node(
    watch: Option<&mut CgroupWatch>,
    root: &CgroupRoot,
    path: &str,
    errors: &mut Vec<ReadError>,
) -> Option<WatchDescriptor> {
    match watch?.add(&root.full_path(path), path) {
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
    let remedy = if errno == Errno::ENOSPC {
        "inotify (raise fs.inotify.max_user_watches; rescanning every 5 s)"
    } else if errno == Errno::EMFILE {
        "inotify (raise fs.inotify.max_user_instances; rescanning every 5 s)"
    } else {
        "inotify"
    };
    ReadError { path: remedy.into(), kind: ReadErrorKind::Failed(errno) }
}

fn join(path: &str, name: &str) -> Box<str> {
    let base = path.trim_end_matches('/');
    format!("{base}/{name}").into()
}
