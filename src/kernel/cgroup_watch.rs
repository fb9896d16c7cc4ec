//! Watches cgroup directories by inotify. Events can be late, repeated or lost. So they only
//! indicate that a directory has to be listed again. cgroupfs sends no IN_DELETE_SELF or IN_IGNORED
//! on rmdir: a watch must be removed explicitly.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use nix::errno::Errno;

#[derive(Debug)]
pub struct CgroupWatch {
    inotify: Inotify,
    paths: HashMap<WatchDescriptor, Arc<str>>,
    buffer: Vec<u8>,
}

impl CgroupWatch {
    /// Fails with EMFILE when `fs.inotify.max_user_instances` is reached.
    pub fn new() -> Result<Self, Errno> {
        let inotify = Inotify::init().map_err(errno)?;
        Ok(Self { inotify, paths: HashMap::new(), buffer: vec![0; 16 * 1024] })
    }

    /// Watches the children of the directory `full_path`, named `cgroup` in hints. Fails with
    /// ENOSPC when `fs.inotify.max_user_watches` is reached, and with ENOENT when the directory was
    /// removed.
    pub fn add(&mut self, full_path: &Path, cgroup: Arc<str>) -> Result<WatchDescriptor, Errno> {
        // ONLYDIR applies to the watched path. Events of control files, which come and go with
        // controllers, arrive too: take_hints() ignores them.
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::ONLYDIR
            | WatchMask::DONT_FOLLOW;
        let watch = self.inotify.watches().add(full_path, mask).map_err(errno)?;
        self.paths.insert(watch.clone(), cgroup);
        Ok(watch)
    }

    /// Removes a watch. The error is ignored: EINVAL means that the kernel has removed it already.
    pub fn remove(&mut self, watch: WatchDescriptor) {
        self.paths.remove(&watch);
        let _ = self.inotify.watches().remove(watch);
    }

    /// The cgroups whose children may have changed; `None` after an overflow of the queue of events:
    /// any may have changed.
    pub fn take_hints(&mut self) -> Result<Option<BTreeSet<Arc<str>>>, Errno> {
        let mut changed = BTreeSet::new();
        loop {
            let events = match self.inotify.read_events(&mut self.buffer).map_err(errno) {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(Some(changed)),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            for event in events {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    // Later events are of no interest: all is checked after this.
                    return Ok(None);
                } else if event.mask.contains(EventMask::ISDIR)
                    && let Some(path) = self.paths.get(&event.wd)
                {
                    changed.insert(path.clone());
                }
            }
        }
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}
