//! One process below a mounted `/proc`: in which cgroup it is, its threads, and their times. Its
//! directory is kept open: a number that is used again is another process.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::task_text::{TaskTimes, is_vcpu, parse_cgroup_path, parse_task_schedstat};
use super::text::parse_u32;
use super::{ReadBuffer, ReadError, ReadErrorKind};

/// A process, by an open handle of its directory.
#[derive(Debug)]
pub struct ProcessDir {
    handle: OwnedFd,
    path: PathBuf,
}

/// A thread of a process: the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its number in the mount's namespace.
    pub id: u32,
    schedstat: CString,
}

impl ProcessDir {
    /// Opens the directory of a process below `proc`, whose path is for errors.
    pub(super) fn open(proc: impl AsFd, path: &Path, id: u32) -> Result<Self, ReadError> {
        let name = id.to_string();
        let path = path.join(&name);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(proc, name.as_str(), flags, Mode::empty()) {
            Ok(handle) => Ok(Self { handle, path }),
            Err(errno) => Err(ReadError { path: path.display().to_string(), kind: errno.into() }),
        }
    }

    /// Its path in the hierarchy of cgroup v2, as far as this process' own cgroup namespace shows
    /// it; `None` where it is in none.
    ///
    /// # Errors
    /// Anything, a process that ended included.
    pub fn cgroup<'a>(&self, buffer: &'a mut ReadBuffer) -> Result<Option<&'a [u8]>, ReadError> {
        let text = buffer.read_all(&self.handle, c"cgroup");
        let path = text.and_then(|text| Ok(parse_cgroup_path(text)?));
        path.map_err(|kind| self.error("cgroup", kind))
    }

    /// Its threads.
    ///
    /// # Errors
    /// Anything, a process that ended included.
    pub fn threads(&self) -> Result<Vec<Thread>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let listed = Dir::openat(&self.handle, c"task", flags, Mode::empty())
            .and_then(|mut dir| numbers(&mut dir))
            .map_err(|errno| self.error("task", errno.into()))?;
        Ok(listed.into_iter().filter_map(Thread::new).collect())
    }

    /// Whether a thread runs a virtual CPU, by its name.
    ///
    /// # Errors
    /// Anything, a thread that ended included.
    pub fn is_vcpu(&self, thread: &Thread, buffer: &mut ReadBuffer) -> Result<bool, ReadError> {
        let file = format!("task/{}/comm", thread.id);
        let name = CString::new(file.as_str()).unwrap_or_default();
        let comm = buffer.read_once(&self.handle, &name).map(is_vcpu);
        comm.map_err(|kind| self.error(&file, kind))
    }

    /// How long a thread ran and waited.
    ///
    /// # Errors
    /// Anything, a thread that ended included.
    pub fn times(&self, thread: &Thread, buffer: &mut ReadBuffer) -> Result<TaskTimes, ReadError> {
        let text = buffer.read_once(&self.handle, &thread.schedstat);
        let times = text.and_then(|text| Ok(parse_task_schedstat(text)?));
        times.map_err(|kind| self.error(&thread.schedstat.to_string_lossy(), kind))
    }

    fn error(&self, file: &str, kind: ReadErrorKind) -> ReadError {
        ReadError { path: self.path.join(file).display().to_string(), kind }
    }
}

impl Thread {
    fn new(id: u32) -> Option<Self> {
        let schedstat = CString::new(format!("task/{id}/schedstat")).ok()?;
        Some(Self { id, schedstat })
    }
}

/// The entries of a directory that are numbers: processes or threads.
pub(super) fn numbers(dir: &mut Dir) -> nix::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in dir.iter() {
        numbers.extend(parse_u32(CStr::to_bytes(entry?.file_name())));
    }
    Ok(numbers)
}
