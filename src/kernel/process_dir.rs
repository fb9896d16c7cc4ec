//! One process below a mounted `/proc`: its cgroup, its threads, their times.
//!
//! Directories of processes and threads are kept open. The kernel ties such a handle to the task,
//! not to its number. After the task has ended, every read below it fails with ENOENT or ESRCH
//! ([`ReadError::is_vanished`]), even if another task has the same number by then.

use nix::dir::Entry;

use super::read::{Directory, ReadError};
use super::task_text::{
    TaskTimes, ThreadKind, parse_cgroup_path, parse_is_runnable, parse_task_schedstat, thread_kind,
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

impl TaskId {
    /// `None` for an entry that is not a number.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let number = parse_u32(entry.file_name().to_bytes())?;
        Some(Self { number, inode: entry.ino() })
    }
}

/// A process or a thread: both have these files.
#[derive(Debug)]
pub struct TaskDir(pub(super) Directory);

impl TaskDir {
    /// Path of its cgroup (v2), as shown in the agent's own cgroup namespace; `None` without cgroup
    /// v2.
    pub fn cgroup(&self) -> Result<Option<Vec<u8>>, ReadError> {
        self.0.read(c"cgroup", |text| Ok(parse_cgroup_path(text)?.map(<[u8]>::to_vec)))
    }

    /// The threads of a process.
    pub fn threads(&self) -> Result<Vec<TaskId>, ReadError> {
        self.0.list(c"task", TaskId::of)
    }

    pub fn thread(&self, id: u32) -> Result<Self, ReadError> {
        self.0.open_below(&format!("task/{id}")).map(Self)
    }

    /// What this thread does, by its name.
    pub fn kind(&self) -> Result<ThreadKind, ReadError> {
        self.0.read_once(c"comm", |text| Ok(thread_kind(text)))
    }

    /// Times of this thread alone.
    pub fn times(&self) -> Result<TaskTimes, ReadError> {
        self.0.read_once(c"schedstat", parse_task_schedstat)
    }

    /// Whether it runs or waits for a CPU now.
    pub fn is_runnable(&self) -> Result<bool, ReadError> {
        self.0.read_once(c"stat", parse_is_runnable)
    }
}

#[cfg(test)]
mod tests {
    use super::super::proc_root::ProcRoot;
    use super::*;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn kept_handles_of_a_process_and_its_thread_fail_after_its_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = ProcRoot::open(Path::new("/proc")).unwrap().process(child.id()).unwrap();
        let id = process.threads().unwrap().remove(0);
        assert_eq!(id.number, child.id());
        let thread = process.thread(id.number).unwrap();
        assert!(thread.times().is_ok() && thread.kind() == Ok(ThreadKind::Other));
        assert!(thread.is_runnable().is_ok());
        assert_eq!(process.threads(), Ok(vec![id]), "the inode is that of the kept handle");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(thread.times().unwrap_err().is_vanished());
        assert!(process.threads().unwrap_err().is_vanished());
        assert!(process.cgroup().unwrap_err().is_vanished());
    }
}
