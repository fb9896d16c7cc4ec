//! inotify on cgroup directories, as hints: which directory's children changed. Events can be
//! late, doubled or lost, so a hint says "look there", never what is there. cgroupfs sends no
//! IN_DELETE_SELF or IN_IGNORED on rmdir: a watch must be removed by hand, or it stays for ever.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use nix::errno::Errno;

/// What the kernel told since it was last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Cgroups below which directories came or went.
    pub changed: BTreeSet<Box<str>>,
    /// The queue ran over: any cgroup may have changed.
    pub overflow: bool,
}

/// The watches of one tree.
#[derive(Debug)]
pub struct CgroupWatch {
    inotify: Inotify,
    paths: HashMap<WatchDescriptor, Box<str>>,
    buffer: Vec<u8>,
}

impl CgroupWatch {
    /// # Errors
    /// The errno of inotify_init1: EMFILE when `fs.inotify.max_user_instances` is used up.
    pub fn new() -> Result<Self, Errno> {
        let inotify = Inotify::init().map_err(errno)?;
        Ok(Self { inotify, paths: HashMap::new(), buffer: vec![0; 16 * 1024] })
    }

    /// Watches the children of the directory `full_path`, which hints will call `cgroup`.
    ///
    /// # Errors
    /// ENOSPC when `fs.inotify.max_user_watches` is used up, ENOENT when the directory is gone.
    pub fn add(&mut self, full_path: &Path, cgroup: &str) -> Result<WatchDescriptor, Errno> {
        // Control files are made and removed too when controllers are switched: ONLYDIR is about
        // the watched directory, so those events arrive and are passed over by their mask.
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::ONLYDIR
            | WatchMask::DONT_FOLLOW;
        let watch = self.watches().add(full_path, mask).map_err(errno)?;
        self.paths.insert(watch.clone(), cgroup.into());
        Ok(watch)
    }

    /// Ends a watch. That of a removed cgroup still has to be ended; kernels that end it by
    /// themselves answer EINVAL, which is as good.
    pub fn remove(&mut self, watch: WatchDescriptor) {
        self.paths.remove(&watch);
        let _ = self.watches().remove(watch);
    }

    /// How many directories are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether nothing is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Takes all that is queued, without waiting.
    ///
    /// # Errors
    /// The errno of reading the queue; hints read before it are lost, so rescan.
    pub fn take_hints(&mut self) -> Result<Hints, Errno> {
        let mut hints = Hints::default();
        loop {
            let events = match self.inotify.read_events(&mut self.buffer).map_err(errno) {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(hints),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            for event in events {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    hints.overflow = true;
                } else if event.mask.contains(EventMask::ISDIR)
                    && let Some(path) = self.paths.get(&event.wd)
                {
                    hints.changed.insert(path.clone());
                }
            }
        }
    }

    fn watches(&self) -> Watches {
        self.inotify.watches()
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}
