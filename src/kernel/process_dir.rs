//! One process below a mounted `/proc`: its cgroup, its threads, their times.
//!
//! Directories of processes and threads are kept open. The kernel ties such a handle to the task,
//! not to its number. After the task has ended, every read below it fails with ENOENT or ESRCH
//! ([`ReadErrorKind::Vanished`]), even if another task has the same number by then.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::read::{ReadBuffer, ReadError, ReadErrorKind};
use super::task_text::{
    TaskTimes, is_vcpu, parse_cgroup_path, parse_is_runnable, parse_task_schedstat,
};
use super::text::parse_u32;

/// Identity of a process or thread: its number below `/proc`, and the inode of its directory. The
/// same number with another inode is another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId {
    /// Process or thread ID in the mount's PID namespace.
    pub number: u32,
    pub inode: u64,
}

#[derive(Debug)]
pub struct ProcessDir(TaskDir);

#[derive(Debug)]
pub struct ThreadDir(TaskDir);

#[derive(Debug)]
struct TaskDir {
    handle: OwnedFd,
    path: PathBuf,
}

impl TaskDir {
    fn open(dir: impl AsFd, name: &str, path: PathBuf) -> Result<Self, ReadError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(dir, name, flags, Mode::empty()) {
            Ok(handle) => Ok(Self { handle, path }),
            Err(errno) => Err(ReadError::new(&path, errno)),
        }
    }

    fn error(&self, file: &str, kind: ReadErrorKind) -> ReadError {
        ReadError::new(&self.path.join(file), kind)
    }
}

impl ProcessDir {
    /// Opens the directory of a process below `proc`, whose path is for errors.
    pub(super) fn open(proc: impl AsFd, path: &Path, id: u32) -> Result<Self, ReadError> {
        let name = id.to_string();
        TaskDir::open(proc, &name, path.join(&name)).map(Self)
    }

    /// Path of its cgroup (v2), as shown in the agent's own cgroup namespace; `None` without cgroup
    /// v2.
    pub fn cgroup<'a>(&self, buffer: &'a mut ReadBuffer) -> Result<Option<&'a [u8]>, ReadError> {
        let text = buffer.read_all(&self.0.handle, c"cgroup");
        let path = text.and_then(|text| Ok(parse_cgroup_path(text)?));
        path.map_err(|kind| self.0.error("cgroup", kind))
    }

    pub fn threads(&self) -> Result<Vec<TaskId>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Dir::openat(&self.0.handle, c"task", flags, Mode::empty())
            .and_then(|mut dir| task_ids(&mut dir))
            .map_err(|errno| self.0.error("task", errno.into()))
    }

    pub fn thread(&self, id: u32) -> Result<ThreadDir, ReadError> {
        let name = format!("task/{id}");
        TaskDir::open(&self.0.handle, &name, self.0.path.join(&name)).map(ThreadDir)
    }
}

impl ThreadDir {
    /// Whether it is a vCPU thread, by its name.
    pub fn is_vcpu(&self, buffer: &mut ReadBuffer) -> Result<bool, ReadError> {
        self.read(c"comm", buffer, |text| Ok(is_vcpu(text)))
    }

    pub fn times(&self, buffer: &mut ReadBuffer) -> Result<TaskTimes, ReadError> {
        self.read(c"schedstat", buffer, |text| Ok(parse_task_schedstat(text)?))
    }

    /// Whether it runs or waits for a CPU now.
    pub fn is_runnable(&self, buffer: &mut ReadBuffer) -> Result<bool, ReadError> {
        self.read(c"stat", buffer, |text| Ok(parse_is_runnable(text)?))
    }

    fn read<T>(
        &self,
        name: &CStr,
        buffer: &mut ReadBuffer,
        parse: impl FnOnce(&[u8]) -> Result<T, ReadErrorKind>,
    ) -> Result<T, ReadError> {
        let value = buffer.read_once(&self.0.handle, name).and_then(parse);
        value.map_err(|kind| self.0.error(&name.to_string_lossy(), kind))
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

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::open;
    use std::process::{Command, Stdio};

    fn open_process(id: u32) -> ProcessDir {
        let path = Path::new("/proc");
        let proc = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        ProcessDir::open(proc, path, id).unwrap()
    }

    #[test]
    fn kept_handles_of_a_process_and_its_thread_fail_after_its_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = open_process(child.id());
        let mut buffer = ReadBuffer::default();
        let id = process.threads().unwrap().remove(0);
        assert_eq!(id.number, child.id());
        let thread = process.thread(id.number).unwrap();
        assert!(thread.times(&mut buffer).is_ok() && !thread.is_vcpu(&mut buffer).unwrap());
        assert!(thread.is_runnable(&mut buffer).is_ok());
        assert_eq!(process.threads(), Ok(vec![id]), "the inode is that of the kept handle");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(thread.times(&mut buffer).unwrap_err().is_vanished());
        assert!(process.threads().unwrap_err().is_vanished());
        assert!(process.cgroup(&mut buffer).unwrap_err().is_vanished());
    }
}
