//! One process below a mounted `/proc`: its cgroup, its threads, their times.
//!
//! Directories of processes and threads are kept open. The kernel ties such a handle to the task
//! itself: when the task has ended, every read below it fails with ENOENT or ESRCH, even if its number
//! already belongs to another task. So a reused number is never mistaken for the old task.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::task_text::{
    TaskTimes, is_vcpu, parse_cgroup_path, parse_is_runnable, parse_task_schedstat,
};
use super::text::parse_u32;
use super::{ReadBuffer, ReadError, Situation};

/// A number below `/proc`, and the inode of its directory: where the inode is another one, so is the
/// task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId {
    /// Process or thread ID in the mount's PID namespace.
    pub number: u32,
    /// Inode of the directory.
    pub inode: u64,
}

/// A process, by an open handle of its directory.
#[derive(Debug)]
pub struct ProcessDir(TaskDir);

/// A thread, by an open handle of its directory.
#[derive(Debug)]
pub struct ThreadDir(TaskDir);

#[derive(Debug)]
struct TaskDir {
    handle: OwnedFd,
    path: PathBuf,
}

impl TaskDir {
    /// `path` is for errors.
    fn open(dir: impl AsFd, name: &str, path: PathBuf) -> Result<Self, ReadError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(dir, name, flags, Mode::empty()) {
            Ok(handle) => Ok(Self { handle, path }),
            Err(errno) => {
                Err(ReadError { path: path.display().to_string(), situation: errno.into() })
            }
        }
    }

    fn error(&self, file: &str, situation: Situation) -> ReadError {
        ReadError { path: self.path.join(file).display().to_string(), situation }
    }
}

impl ProcessDir {
    /// Opens the directory of a process below `proc`, whose path is for errors.
    pub(super) fn open(proc: impl AsFd, path: &Path, id: u32) -> Result<Self, ReadError> {
        let name = id.to_string();
        TaskDir::open(proc, &name, path.join(&name)).map(Self)
    }

    /// Its path in the hierarchy of cgroup v2, as far as the agent's own cgroup namespace shows
    /// it; `None` where it is in none.
    ///
    /// # Errors
    /// Anything, a process that ended included.
    pub fn cgroup<'a>(&self, buffer: &'a mut ReadBuffer) -> Result<Option<&'a [u8]>, ReadError> {
        let text = buffer.read_all(&self.0.handle, c"cgroup");
        let path = text.and_then(|text| Ok(parse_cgroup_path(text)?));
        path.map_err(|situation| self.0.error("cgroup", situation))
    }

    /// Its threads.
    ///
    /// # Errors
    /// Anything, a process that ended included.
    pub fn threads(&self) -> Result<Vec<TaskId>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Dir::openat(&self.0.handle, c"task", flags, Mode::empty())
            .and_then(|mut dir| task_ids(&mut dir))
            .map_err(|errno| self.0.error("task", errno.into()))
    }

    /// Opens the directory of one of its threads.
    ///
    /// # Errors
    /// Anything, a thread that ended included.
    pub fn thread(&self, id: u32) -> Result<ThreadDir, ReadError> {
        let name = format!("task/{id}");
        TaskDir::open(&self.0.handle, &name, self.0.path.join(&name)).map(ThreadDir)
    }
}

impl ThreadDir {
    /// Whether it runs a virtual CPU, by its name.
    ///
    /// # Errors
    /// Anything, a thread that ended included.
    pub fn is_vcpu(&self, buffer: &mut ReadBuffer) -> Result<bool, ReadError> {
        self.read(c"comm", buffer, |text| Ok(is_vcpu(text)))
    }

    /// Time run and run delay.
    ///
    /// # Errors
    /// Anything, a thread that ended included.
    pub fn times(&self, buffer: &mut ReadBuffer) -> Result<TaskTimes, ReadError> {
        self.read(c"schedstat", buffer, |text| Ok(parse_task_schedstat(text)?))
    }

    /// Whether it runs or waits for a CPU now.
    ///
    /// # Errors
    /// Anything, a thread that ended included.
    pub fn is_runnable(&self, buffer: &mut ReadBuffer) -> Result<bool, ReadError> {
        self.read(c"stat", buffer, |text| Ok(parse_is_runnable(text)?))
    }

    fn read<T>(
        &self,
        name: &CStr,
        buffer: &mut ReadBuffer,
        parse: impl FnOnce(&[u8]) -> Result<T, Situation>,
    ) -> Result<T, ReadError> {
        let value = buffer.read_once(&self.0.handle, name).and_then(parse);
        value.map_err(|situation| self.0.error(&name.to_string_lossy(), situation))
    }
}

/// The entries of a directory that are numbers: processes or threads.
pub(super) fn task_ids(dir: &mut Dir) -> nix::Result<Vec<TaskId>> {
    let mut ids = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let number = parse_u32(CStr::to_bytes(entry.file_name()));
        ids.extend(number.map(|number| TaskId { number, inode: entry.ino() }));
    }
    Ok(ids)
}
