//! Reads the files of one cgroup, relative to a kept handle of its directory: a new cgroup at the
//! same path is never mistaken for it. Files are opened for each reading, since an open pressure file
//! costs 4.9 KiB of kernel memory, and an open directory very little.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::dir::{Entry, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs, statfs};

use super::counters::{
    CpuStat, MemoryEvents, MemoryStat, count_processes, parse_cpu_stat, parse_memory_events,
    parse_memory_stat, parse_populated,
};
use super::io_stat::{IoCounters, parse_io_limited, parse_io_stat};
use super::limits::{CpuMax, CpuSet, parse_cpu_max, parse_cpu_set, parse_limit, parse_number};
use super::pressure::{Pressure, parse_pressure};
use super::read::{Parse, ReadError, ReadErrorKind, files, if_present, list, read_all, read_once};
use crate::cgroup_path::Place;
use crate::client::resource::PerResource;
pub use crate::client::resource::Resource;

/// The host's root cgroup.
const ROOT: CgroupId = CgroupId(1);

const PRESSURE: PerResource<&CStr> =
    PerResource { cpu: c"cpu.pressure", memory: c"memory.pressure", io: c"io.pressure" };

#[derive(Debug)]
pub struct CgroupRoot {
    pub path: PathBuf,
    handle: OwnedFd,
    /// Whether the file system is cgroup2, by its magic number.
    pub is_cgroup2: bool,
    /// `cgroup.controllers`; `None` where it can't be read.
    pub controllers: Option<Vec<String>>,
}

impl CgroupRoot {
    /// Opens `path`. It may be on any file system: copies of a node's files work too.
    pub fn open(path: &Path) -> Result<Arc<Self>, ReadError> {
        let named = |errno: Errno| ReadError::new(path, errno);
        // O_PATH would not check the permission to list the directory.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let handle = open(path, flags, Mode::empty()).map_err(named)?;
        let kind = fstatfs(&handle).map_err(named)?.filesystem_type();
        let is_cgroup2 = kind == CGROUP2_SUPER_MAGIC;
        let controllers = std::fs::read_to_string(path.join("cgroup.controllers"));
        let controllers =
            controllers.ok().map(|text| text.split_whitespace().map(str::to_owned).collect());
        Ok(Arc::new(Self { path: path.to_owned(), handle, is_cgroup2, controllers }))
    }

    /// Whether any cgroup can have this file. If the host has a controller in cgroup v1 or not at all,
    /// thousands of its files would be looked for in vain.
    fn may_have(&self, file: &CStr) -> bool {
        let Some(controllers) = &self.controllers else { return true };
        let file = file.to_string_lossy();
        let file = file.rsplit('/').next().unwrap_or_default();
        let controller = file.split('.').next().unwrap_or_default();
        controller == "cgroup"
            || file.starts_with("cpu.stat")
            || file.ends_with(".pressure")
            || controllers.iter().any(|one| one == controller)
    }

    /// Whether this is cgroup v2, or a directory with copies of the root cgroup's files.
    pub fn has_cgroup2_files(&self) -> bool {
        let has = |file| self.stat(file).is_ok();
        self.is_cgroup2 || has("cgroup.controllers") || has("cpu.pressure")
    }

    /// Whether cgroup v1 is mounted here or in a direct subdirectory.
    pub fn has_cgroup1(&self) -> bool {
        let is_cgroup1 = |path: &Path| {
            statfs(path).is_ok_and(|stat| stat.filesystem_type() == CGROUP_SUPER_MAGIC)
        };
        let below = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        is_cgroup1(&self.path) || below.map(|entry| entry.path()).any(|path| is_cgroup1(&path))
    }

    /// Whether this is a cgroup below the host's root: only the host's root cgroup has no
    /// `cgroup.events`.
    pub fn is_namespaced(&self) -> bool {
        self.stat("cgroup.events").is_ok()
    }

    pub fn full_path(&self, cgroup: &str) -> PathBuf {
        self.path.join(cgroup.trim_start_matches('/'))
    }

    pub(super) fn stat(&self, path: &str) -> Result<FileStat, Errno> {
        fstatat(&self.handle, relative(path), AtFlags::AT_SYMLINK_NOFOLLOW)
    }
}

/// `path` relative to the root cgroup: without its leading slash.
fn relative(path: &str) -> &str {
    match path.trim_start_matches('/') {
        "" => ".",
        relative => relative,
    }
}

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

#[derive(Debug)]
pub struct CgroupDir {
    root: Arc<CgroupRoot>,
    pub cgroup: Arc<Cgroup>,
    /// `None` where files are opened by path, to save the descriptor.
    handle: Option<OwnedFd>,
}

impl CgroupDir {
    /// Opens the cgroup at `path` (`/` for the root). Without `keep`, or where no descriptor is
    /// left, later files are opened by path.
    pub fn open(
        root: &Arc<CgroupRoot>,
        path: impl Into<Arc<str>>,
        keep: bool,
    ) -> Result<Self, ReadError> {
        let path = path.into();
        let named = |errno: Errno| ReadError::new(&root.full_path(&path), errno);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = match openat(&root.handle, relative(&path), flags, Mode::empty()) {
            Ok(handle) => Some(handle),
            Err(Errno::EMFILE | Errno::ENFILE) => None,
            Err(errno) => return Err(named(errno)),
        };
        let stat = opened.as_ref().map_or_else(|| root.stat(&path), fstat).map_err(named)?;
        // As in cAdvisor, the older of the modification times of the directory and its
        // `cgroup.events`.
        let events = root.stat(&format!("{path}/cgroup.events"));
        let modified = [Some(stat), events.ok()].into_iter().flatten().map(|stat| stat.st_mtime);
        let made_at_s = modified.filter_map(|time| u64::try_from(time).ok()).min();
        let cgroup = Arc::new(Cgroup::new(CgroupId(stat.st_ino), path, made_at_s));
        Ok(Self { root: Arc::clone(root), cgroup, handle: opened.filter(|_| keep) })
    }

    /// Whether this is the host's root cgroup, whose pressure files are those of the node.
    pub fn is_root_cgroup(&self) -> bool {
        self.root.is_cgroup2 && self.cgroup.id == ROOT
    }

    /// Status of the directory. A removed one is like an empty one.
    pub(super) fn stat(&self) -> Result<FileStat, Errno> {
        self.handle.as_ref().map_or_else(|| self.root.stat(&self.cgroup.path), fstat)
    }

    /// Whether this cgroup still exists at its path.
    pub fn is_alive(&self) -> bool {
        let stat = self.root.stat(&self.cgroup.path);
        stat.is_ok_and(|stat| CgroupId(stat.st_ino) == self.cgroup.id)
    }

    pub fn children(&self) -> Result<Vec<(CString, CgroupId)>, ReadError> {
        let child = |entry: &Entry| {
            let name = entry.file_name();
            let is_child =
                entry.file_type() == Some(Type::Directory) && name != c"." && name != c"..";
            is_child.then(|| (name.to_owned(), CgroupId(entry.ino())))
        };
        let mut children = self.at(c".", |base, name| list(base, name, child))?;
        // The listed inode equals that of stat() on cgroupfs, but not on every file system.
        if !self.root.is_cgroup2 {
            for (name, id) in &mut children {
                let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                *id = CgroupId(self.at(name, |base, path| fstatat(base, path, flags))?.st_ino);
            }
        }
        Ok(children)
    }

    /// Reads a pressure file. [`ReadErrorKind::Vanished`] means that the cgroup was removed or that
    /// `cgroup.pressure` disables PSI: [`CgroupDir::is_alive`] distinguishes them.
    pub fn pressure(&self, resource: Resource) -> Result<Pressure, ReadError> {
        self.at(PRESSURE.of(resource), |base, file| read_once(base, file, parse_pressure))
    }

    fn read<T>(&self, name: &CStr, parse: impl Parse<T>) -> Result<Option<T>, ReadError> {
        if !self.root.may_have(name) {
            return Ok(None);
        }
        // Unsupported: `cgroup.procs` of a threaded cgroup.
        if_present(self.at(name, |base, file| read_all(base, file, parse)))
    }

    /// Reads a file by an open directory and its path below that.
    fn at<T, E: Into<ReadErrorKind>>(
        &self,
        name: &CStr,
        read: impl FnOnce(BorrowedFd<'_>, &CStr) -> Result<T, E>,
    ) -> Result<T, ReadError> {
        let read = match &self.handle {
            Some(handle) => read(handle.as_fd(), name),
            None => {
                let whole = [relative(&self.cgroup.path).as_bytes(), b"/", name.to_bytes()];
                // A path listed by the kernel contains no NUL.
                let whole = CString::new(whole.concat()).unwrap_or_else(|_| c".".to_owned());
                read(self.root.handle.as_fd(), &whole)
            }
        };
        let path = || self.root.full_path(&self.cgroup.path).join(&*name.to_string_lossy());
        read.map_err(|why| ReadError::new(&path(), why))
    }
}

files! { CgroupDir:
    populated: bool = c"cgroup.events", parse_populated;
    process_count: u64 = c"cgroup.procs", count_processes;
    cpu_max: CpuMax = c"cpu.max", parse_cpu_max;
    cpu_stat: CpuStat = c"cpu.stat", parse_cpu_stat;
    cpu_stat_local: CpuStat = c"cpu.stat.local", parse_cpu_stat;
    /// Of the cgroup that crun makes in a container's, with the same limits.
    nested_cpu_stat: CpuStat = c"container/cpu.stat", parse_cpu_stat;
    cpu_weight: u64 = c"cpu.weight", parse_number;
    cpuset: CpuSet = c"cpuset.cpus.effective", parse_cpu_set;
    io_limited: bool = c"io.max", parse_io_limited;
    io_stat: Vec<IoCounters> = c"io.stat", parse_io_stat;
    /// Interrupt pressure; it needs CONFIG_IRQ_TIME_ACCOUNTING and Linux 6.1.
    irq_pressure: Pressure = c"irq.pressure", parse_pressure;
    memory_current: u64 = c"memory.current", parse_number;
    memory_events: MemoryEvents = c"memory.events", parse_memory_events;
    memory_events_local: MemoryEvents = c"memory.events.local", parse_memory_events;
    memory_max: Option<u64> = c"memory.max", parse_limit;
    memory_stat: MemoryStat = c"memory.stat", parse_memory_stat;
    memory_swap_current: u64 = c"memory.swap.current", parse_number;
    pids_current: u64 = c"pids.current", parse_number;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_file_is_read_by_its_method_and_an_absent_one_is_none() {
        let path = std::env::temp_dir().join(format!("psi-agent-files-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let root = CgroupRoot::open(&path).unwrap();
        let dir = CgroupDir::open(&root, "/", true).unwrap();
        assert_eq!((dir.cpu_max(), dir.io_stat()), (Ok(None), Ok(None)));
        for (name, text) in [
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cgroup.procs", "7\n8\n"),
            ("cpu.stat.local", ""),
            ("memory.max", "4096\n"),
            ("pids.current", "1\n"),
            ("memory.current", "-1\n"),
        ] {
            fs::write(path.join(name), text).unwrap();
        }
        assert_eq!(dir.populated(), Ok(Some(true)));
        assert_eq!(dir.process_count(), Ok(Some(2)));
        assert_eq!(dir.cpu_stat_local(), Ok(Some(CpuStat::default())));
        assert_eq!(dir.pids_current(), Ok(Some(1)));
        assert_eq!(dir.memory_max(), Ok(Some(Some(4096))));
        let error = dir.memory_current().unwrap_err().to_string();
        assert!(error.ends_with("memory.current: malformed: expected a number"), "{error}");
        // Files of a controller that the hierarchy does not have are not looked for.
        fs::write(path.join("cgroup.controllers"), "cpuset pids\n").unwrap();
        let root = CgroupRoot::open(&path).unwrap();
        let dir = CgroupDir::open(&root, "/", true).unwrap();
        assert_eq!((dir.memory_max(), dir.cpuset()), (Ok(None), Ok(None)));
        assert_eq!(dir.pids_current(), Ok(Some(1)));
        assert_eq!(dir.cpu_stat_local(), Ok(Some(CpuStat::default())));
        assert_eq!(dir.populated(), Ok(Some(true)));
        fs::remove_dir_all(&path).unwrap();
    }
}
