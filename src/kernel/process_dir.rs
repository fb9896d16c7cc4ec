//! One process in a mounted `/proc`: its cgroup, its threads and their times. After the end of the
//! process or thread, reads fail with [`ReadErrorKind::Vanished`].
//!
//! A PID and a TID can be reused. What the kernel guarantees:
//! - A kept handle of `/proc/PID` stays with its process. After its end every access through the
//!   handle fails with ESRCH, even while another process has the PID.
//! - A TID below a kept handle is looked up among the threads of that process. It can be reused only
//!   by a later thread of the same process; a process of that number is not found there.
//! - PID or TID and start time together identify a process or thread. When a thread other than the
//!   first calls `execve`, it takes over PID and start time, but not the times of the first.
//!
//! So a reused PID needs attention only where the directory is opened by path, and a reused TID
//! everywhere: see [`TaskTimes::is_same_thread`].

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::read::{ReadBuffer, ReadError, ReadErrorKind};
use super::task_text::{
    TaskTimes, is_vcpu, parse_cgroup_path, parse_start_time, parse_task_schedstat,
};
use super::text::{ParseError, parse_u32};

/// A process: by an open handle of its directory, or by path and start time.
#[derive(Debug)]
pub struct ProcessDir {
    /// The process's directory; `/proc` itself where files are opened by path.
    base: Arc<OwnedFd>,
    /// What file names begin with below `base`: empty, or `PID/`.
    prefix: String,
    /// Start time when it was opened, where files are opened by path.
    start_time: Option<u64>,
    /// The path of `base`.
    path: PathBuf,
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its TID in the PID namespace of the mount.
    pub id: u32,
    schedstat: CString,
}

impl ProcessDir {
    /// Opens the directory of a process below `proc`, which is at `path`. Without `keep`, or where
    /// no descriptor is left, later files are opened by path.
    pub(super) fn open(
        proc: &Arc<OwnedFd>,
        path: &Path,
        id: u32,
        keep: bool,
        buffer: &mut ReadBuffer,
    ) -> Result<Self, ReadError> {
        let name = id.to_string();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let handle = if keep {
            openat(proc, name.as_str(), flags, Mode::empty())
        } else {
            Err(Errno::EMFILE)
        };
        match handle {
            Ok(handle) => {
                let (base, path) = (Arc::new(handle), path.join(name));
                Ok(Self { base, prefix: String::new(), start_time: None, path })
            }
            Err(Errno::EMFILE | Errno::ENFILE) => {
                let (base, path) = (Arc::clone(proc), path.to_owned());
                let mut dir = Self { base, prefix: name + "/", start_time: None, path };
                dir.start_time = Some(dir.start_time(buffer)?);
                Ok(dir)
            }
            Err(errno) => Err(ReadError::new(&path.join(name), errno)),
        }
    }

    /// Whether this holds a descriptor.
    pub fn is_kept(&self) -> bool {
        self.prefix.is_empty()
    }

    /// When the process that has the PID now started, in clock ticks since boot.
    pub fn start_time(&self, buffer: &mut ReadBuffer) -> Result<u64, ReadError> {
        self.read(&self.file("stat"), buffer, parse_start_time)
    }

    /// When the thread that has the TID now started, in clock ticks since boot.
    pub fn thread_start_time(
        &self,
        thread: &Thread,
        buffer: &mut ReadBuffer,
    ) -> Result<u64, ReadError> {
        self.read(&self.file(&format!("task/{}/stat", thread.id)), buffer, parse_start_time)
    }

    /// Its cgroup v2 path as this process's own cgroup namespace shows it; `None` without one.
    pub fn cgroup<'a>(&self, buffer: &'a mut ReadBuffer) -> Result<Option<&'a [u8]>, ReadError> {
        let name = self.file("cgroup");
        let text = buffer.read_all(&self.base, &name);
        text.and_then(|text| Ok(parse_cgroup_path(text)?)).map_err(|kind| self.error(&name, kind))
    }

    /// Its threads. Another process with its PID is an error, too.
    pub fn threads(&self, buffer: &mut ReadBuffer) -> Result<Vec<Thread>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let name = self.file("task");
        let listed = Dir::openat(&self.base, name.as_c_str(), flags, Mode::empty())
            .and_then(|mut dir| numeric_entries(&mut dir))
            .map_err(|errno| self.error(&name, errno))?;
        if self.start_time.is_some() && self.start_time != Some(self.start_time(buffer)?) {
            return Err(self.error(&name, Errno::ESRCH));
        }
        let thread = |id| Thread { id, schedstat: self.file(&format!("task/{id}/schedstat")) };
        Ok(listed.into_iter().map(thread).collect())
    }

    /// Whether a thread runs a vCPU, by its name.
    pub fn is_vcpu(&self, thread: &Thread, buffer: &mut ReadBuffer) -> Result<bool, ReadError> {
        let name = self.file(&format!("task/{}/comm", thread.id));
        self.read(&name, buffer, |comm| Ok(is_vcpu(comm)))
    }

    /// CPU times of the thread that has the TID now.
    pub fn times(&self, thread: &Thread, buffer: &mut ReadBuffer) -> Result<TaskTimes, ReadError> {
        self.read(&thread.schedstat, buffer, parse_task_schedstat)
    }

    fn read<T>(
        &self,
        file: &CStr,
        buffer: &mut ReadBuffer,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        let value = buffer.read_once(&self.base, file).and_then(|text| Ok(parse(text)?));
        value.map_err(|kind| self.error(file, kind))
    }

    fn file(&self, name: &str) -> CString {
        // Neither numbers nor fixed names contain a NUL.
        CString::new(format!("{}{name}", self.prefix)).unwrap_or_default()
    }

    fn error(&self, file: &CStr, kind: impl Into<ReadErrorKind>) -> ReadError {
        ReadError::new(&self.path.join(&*file.to_string_lossy()), kind)
    }
}

/// The entries of a directory that are numbers: PIDs or TIDs.
pub(super) fn numeric_entries(dir: &mut Dir) -> nix::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in dir.iter() {
        numbers.extend(parse_u32(CStr::to_bytes(entry?.file_name())));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::{Command, Stdio};

    struct FakeProc(PathBuf);

    impl FakeProc {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// A process with one thread; in the place of one that had its PID before.
        fn start(&self, pid: u32, start_time: u64) {
            let process = self.0.join(pid.to_string());
            let _ = fs::remove_dir_all(&process);
            let task = process.join(format!("task/{pid}"));
            fs::create_dir_all(&task).unwrap();
            let stat = format!("{pid} (a b) S {}{start_time} 0\n", "0 ".repeat(18));
            fs::write(process.join("stat"), &stat).unwrap();
            fs::write(task.join("stat"), &stat).unwrap();
            fs::write(task.join("schedstat"), "70 30 5\n").unwrap();
        }
    }

    fn open(proc: &Path, pid: u32, keep: bool) -> ProcessDir {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let handle = Arc::new(nix::fcntl::open(proc, flags, Mode::empty()).unwrap());
        ProcessDir::open(&handle, proc, pid, keep, &mut ReadBuffer::default()).unwrap()
    }

    impl Drop for FakeProc {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_process_is_read_the_same_with_and_without_a_kept_handle() {
        let proc = FakeProc::new("same");
        proc.start(7, 4711);
        let mut buffer = ReadBuffer::default();
        for keep in [true, false] {
            let dir = open(&proc.0, 7, keep);
            assert_eq!(dir.is_kept(), keep);
            assert_eq!(dir.start_time(&mut buffer), Ok(4711));
            let threads = dir.threads(&mut buffer).unwrap();
            assert_eq!(threads.iter().map(|thread| thread.id).collect::<Vec<_>>(), [7]);
            let times = dir.times(&threads[0], &mut buffer);
            assert_eq!(times, Ok(TaskTimes { run_ns: 70, delay_ns: 30 }));
            assert_eq!(dir.thread_start_time(&threads[0], &mut buffer), Ok(4711));
        }
    }

    #[test]
    fn a_reused_pid_is_noticed_with_and_without_a_kept_handle() {
        let proc = FakeProc::new("reused");
        let mut buffer = ReadBuffer::default();
        for keep in [true, false] {
            proc.start(7, 4711);
            let dir = open(&proc.0, 7, keep);
            proc.start(7, 4712);
            let error = dir.threads(&mut buffer).unwrap_err();
            assert!(error.is_vanished(), "kept: {keep}");
            assert_eq!(error.path, proc.0.join("7/task").display().to_string());
        }
    }

    #[test]
    fn a_kept_handle_of_a_real_process_fails_after_its_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let proc = Path::new("/proc");
        let dir = open(proc, child.id(), true);
        let mut buffer = ReadBuffer::default();
        let started = open(proc, std::process::id(), true).start_time(&mut buffer).unwrap();
        assert!(dir.start_time(&mut buffer).unwrap() >= started);
        let thread = dir.threads(&mut buffer).unwrap().remove(0);
        assert!(dir.times(&thread, &mut buffer).is_ok());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(dir.times(&thread, &mut buffer).unwrap_err().is_vanished());
        assert!(dir.start_time(&mut buffer).unwrap_err().is_vanished());
        assert!(dir.threads(&mut buffer).unwrap_err().is_vanished());
    }
}
