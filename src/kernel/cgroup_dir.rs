//! One cgroup's directory: a kept handle, and its files opened relative to it, so that two lives
//! of one path never mix. A kept directory costs the kernel next to nothing, a kept pressure
//! file more than a page: so files are opened anew at each reading.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs, statfs};

use super::pressure::{Pressure, parse_pressure};
use super::text::ParseError;
use super::{ReadBuffer, ReadError, ReadErrorKind};

/// The inode of the real root cgroup.
const ROOT_INODE: u64 = 1;

/// What a pressure file is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Block I/O.
    Io,
}

impl Resource {
    /// All three, in the order in which they are read.
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Io];

    /// The kernel's word, which is Prometheus' too.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Io => "io",
        }
    }

    pub(crate) fn cgroup_file(self) -> &'static CStr {
        match self {
            Resource::Cpu => c"cpu.pressure",
            Resource::Memory => c"memory.pressure",
            Resource::Io => c"io.pressure",
        }
    }
}

/// The top of a cgroup2 hierarchy.
#[derive(Debug)]
pub struct CgroupRoot {
    handle: OwnedFd,
    path: PathBuf,
    is_cgroup2: bool,
}

impl CgroupRoot {
    /// Opens `path`, whatever file system it is on: a replay of a node's files serves as well.
    ///
    /// # Errors
    /// The errno of opening it as a directory.
    pub fn open(path: &Path) -> Result<Arc<Self>, ReadError> {
        let named =
            |errno: Errno| ReadError { path: path.display().to_string(), kind: errno.into() };
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let handle = open(path, OFlag::O_PATH | flags, Mode::empty()).map_err(named)?;
        // O_PATH asks for no right to list: find out now that the directory can be read.
        open(path, OFlag::O_RDONLY | flags, Mode::empty()).map_err(named)?;
        let kind = fstatfs(&handle).map_err(named)?.filesystem_type();
        let is_cgroup2 = kind == CGROUP2_SUPER_MAGIC;
        Ok(Arc::new(Self { handle, path: path.to_owned(), is_cgroup2 }))
    }

    /// Whether the file system's magic number says cgroup2.
    #[must_use]
    pub fn is_cgroup2(&self) -> bool {
        self.is_cgroup2
    }

    /// Whether there is cgroup v2 to read: the file system says so, or there are the files of a
    /// root cgroup, which a copy has too.
    #[must_use]
    pub fn has_cgroup2_files(&self) -> bool {
        self.is_cgroup2
            || ["cgroup.controllers", "cpu.pressure"]
                .map(|file| self.stat(file))
                .iter()
                .any(Result::is_ok)
    }

    /// Whether hierarchies of cgroup v1 are mounted here, or right below.
    #[must_use]
    pub fn has_cgroup1(&self) -> bool {
        let is_cgroup1 = |path: &Path| {
            statfs(path).is_ok_and(|found| found.filesystem_type() == CGROUP_SUPER_MAGIC)
        };
        let below = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        is_cgroup1(&self.path) || below.map(|entry| entry.path()).any(|path| is_cgroup1(&path))
    }

    /// Whether this top is a cgroup below the host's root: only the real root has no
    /// `cgroup.events`.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.stat("cgroup.events").is_ok()
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or cgroup in the host's file system, for people.
    #[must_use]
    pub fn full_path(&self, cgroup: &str) -> PathBuf {
        self.path.join(cgroup.trim_start_matches('/'))
    }

    /// `path` counts from the root cgroup; `/` is the root itself.
    pub(crate) fn stat(&self, path: &str) -> Result<FileStat, Errno> {
        let relative = match path.trim_start_matches('/') {
            "" => ".",
            relative => relative,
        };
        fstatat(&self.handle, relative, AtFlags::AT_SYMLINK_NOFOLLOW)
    }
}

/// A cgroup's directory, at one moment of its life.
#[derive(Debug)]
pub struct CgroupDir {
    root: Arc<CgroupRoot>,
    path: Box<str>,
    inode: u64,
    /// `None` when no descriptor is to spare: then files are opened by path from the root.
    handle: Option<OwnedFd>,
}

impl CgroupDir {
    /// Opens the cgroup at `path` (`/` for the root), and keeps the handle if it may.
    ///
    /// # Errors
    /// The errno of opening it; running out of descriptors is none.
    pub fn open(root: &Arc<CgroupRoot>, path: &str, keep: bool) -> Result<Self, ReadError> {
        let named = |errno: Errno| ReadError {
            path: root.full_path(path).display().to_string(),
            kind: errno.into(),
        };
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let relative = match path.trim_start_matches('/') {
            "" => ".",
            relative => relative,
        };
        let opened = match openat(&root.handle, relative, flags, Mode::empty()) {
            Ok(handle) => Some(handle),
            Err(Errno::EMFILE | Errno::ENFILE) => None,
            Err(errno) => return Err(named(errno)),
        };
        let stat = match &opened {
            Some(handle) => nix::sys::stat::fstat(handle),
            None => root.stat(path),
        };
        let inode = stat.map_err(named)?.st_ino;
        let handle = opened.filter(|_| keep);
        Ok(Self { root: Arc::clone(root), path: path.into(), inode, handle })
    }

    /// The directory's inode: the identity of the cgroup, which a path is not.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether this is the real root cgroup, whose pressure files are the node's own.
    #[must_use]
    pub fn is_node(&self) -> bool {
        self.root.is_cgroup2 && self.inode == ROOT_INODE
    }

    /// Whether this very cgroup still stands at its path.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.root.stat(&self.path).is_ok_and(|stat| stat.st_ino == self.inode)
    }

    /// When the cgroup was made, seconds since the epoch: the older of its directory's and its
    /// `cgroup.events`' modification times, as cAdvisor has it.
    #[must_use]
    pub fn made_at_s(&self) -> Option<u64> {
        let of = |name: &str| {
            let path = format!("{}/{name}", self.path);
            self.root.stat(&path).ok().and_then(|stat| u64::try_from(stat.st_mtime).ok())
        };
        of("").into_iter().chain(of("cgroup.events")).min()
    }

    /// Names and inodes of the directories below.
    ///
    /// # Errors
    /// The errno that stopped the listing.
    pub fn children(&self) -> Result<Vec<(CString, u64)>, ReadError> {
        self.list().map_err(|errno| self.error(c".", errno.into()))
    }

    fn list(&self) -> Result<Vec<(CString, u64)>, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let (base, name) = self.locate(c".");
        let mut dir = Dir::openat(base, name.as_ref(), flags, Mode::empty())?;
        let mut children = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type() == Some(Type::Directory) && name != c"." && name != c".." {
                children.push((name.to_owned(), entry.ino()));
            }
        }
        // Only cgroupfs is known to list the inode that stat() tells.
        if !self.root.is_cgroup2 {
            for (name, inode) in &mut children {
                *inode = fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?.st_ino;
            }
        }
        Ok(children)
    }

    /// Reads one of the pressure files.
    ///
    /// # Errors
    /// [`ReadErrorKind::Vanished`] both for a cgroup that is gone and for one whose pressure is
    /// switched off by `cgroup.pressure`: [`CgroupDir::is_alive`] tells them apart.
    pub fn pressure(
        &self,
        resource: Resource,
        buffer: &mut ReadBuffer,
    ) -> Result<Pressure, ReadError> {
        let name = resource.cgroup_file();
        let (base, file) = self.locate(name);
        let mut text = buffer.read_once(base, &file);
        // ENODEV comes when the file went away between opening and reading: a new opening tells
        // whether it is there again. (The borrow of the failed reading ends with it.)
        if let Err(ReadErrorKind::Vanished(Errno::ENODEV)) = text {
            text = buffer.read_once(base, &file);
        }
        text.and_then(|text| Ok(parse_pressure(text)?)).map_err(|why| self.error(name, why))
    }

    /// Reads and parses any other file; `None` where the kernel has no such file here (the
    /// controller is off, the kernel is older, the root cgroup lacks it).
    ///
    /// # Errors
    /// Anything but absence.
    pub fn read<T>(
        &self,
        name: &CStr,
        buffer: &mut ReadBuffer,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Result<Option<T>, ReadError> {
        let (base, file) = self.locate(name);
        match buffer.read_all(base, &file) {
            Ok(text) => parse(text).map(Some).map_err(|why| self.error(name, why.into())),
            // EOPNOTSUPP is `cgroup.procs` of a threaded cgroup.
            Err(ReadErrorKind::Vanished(_) | ReadErrorKind::Unsupported(_)) => Ok(None),
            Err(why) => Err(self.error(name, why)),
        }
    }

    /// Where to open a file from: the kept handle, or the root with the whole path.
    fn locate<'a>(&'a self, name: &'a CStr) -> (BorrowedFd<'a>, std::borrow::Cow<'a, CStr>) {
        match &self.handle {
            Some(handle) => (handle.as_fd(), name.into()),
            None => {
                let path = self.path.trim_start_matches('/').as_bytes();
                let whole = [path, if path.is_empty() { b"" } else { b"/" }, name.to_bytes()];
                // A path that the kernel listed has no NUL; "." is the root if it ever had.
                let whole = CString::new(whole.concat()).unwrap_or_else(|_| c".".to_owned());
                (self.root.handle.as_fd(), whole.into())
            }
        }
    }

    fn error(&self, file: &CStr, kind: ReadErrorKind) -> ReadError {
        let path = self.root.full_path(&self.path).join(file.to_string_lossy().as_ref());
        ReadError { path: path.display().to_string(), kind }
    }
}
