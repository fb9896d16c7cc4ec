//! The only room that opens files. In: the kernel's pressure, cgroup and node files. Out: values
//! with the kernel's own words for names, or a [`ReadError`] that names the kind.

pub mod cgroup_dir;
pub mod cgroup_tree;
pub mod cgroup_watch;
pub mod counters;
pub mod io_stat;
pub mod limits;
pub mod mounts;
pub mod node_text;
pub mod own_process;
pub mod pressure;
pub mod proc_root;
pub mod process_dir;
pub mod task_text;
pub mod text;

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use text::{ParseError, malformed_file};

/// Bytes in a page of memory, in which the kernel counts here and there.
#[must_use]
pub fn page_bytes() -> u64 {
    procfs::page_size()
}

/// A file that could not be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {kind}")]
pub struct ReadError {
    /// The file, from the root of the file system.
    pub path: String,
    /// What happened.
    pub kind: ReadErrorKind,
}

/// What stands between us and a value. Told by errno, never by `ErrorKind`: ENODEV has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadErrorKind {
    /// ENOENT, ENODEV or ESRCH: the file, or the cgroup or process that it is about, is no more.
    #[error("gone ({0})")]
    Vanished(Errno),
    /// EOPNOTSUPP: the kernel knows the file, but the feature is switched off.
    #[error("switched off in this kernel ({0})")]
    Unsupported(Errno),
    /// EACCES or EPERM.
    #[error("permission denied ({0})")]
    Refused(Errno),
    /// The content is not what the kernel documents.
    #[error("{0}")]
    Malformed(#[from] ParseError),
    /// Any other errno.
    #[error("{}", .0.desc())]
    Failed(Errno),
}

impl ReadErrorKind {
    /// A closed set of words, for metric labels.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ReadErrorKind::Vanished(_) => "vanished",
            ReadErrorKind::Unsupported(_) => "unsupported",
            ReadErrorKind::Refused(_) => "refused",
            ReadErrorKind::Malformed(_) => "malformed",
            ReadErrorKind::Failed(_) => "failed",
        }
    }

    /// All that [`ReadErrorKind::word`] can say.
    pub const WORDS: [&'static str; 5] =
        ["vanished", "unsupported", "refused", "malformed", "failed"];
}

impl From<Errno> for ReadErrorKind {
    fn from(errno: Errno) -> Self {
        if errno == Errno::ENOENT || errno == Errno::ENODEV || errno == Errno::ESRCH {
            ReadErrorKind::Vanished(errno)
        } else if errno == Errno::EOPNOTSUPP {
            ReadErrorKind::Unsupported(errno)
        } else if errno == Errno::EACCES || errno == Errno::EPERM {
            ReadErrorKind::Refused(errno)
        } else {
            ReadErrorKind::Failed(errno)
        }
    }
}

/// Kernel files are small; one that is larger than this is something else.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Where files are read into: one for the whole life of a reader.
#[derive(Debug)]
pub struct ReadBuffer(Vec<u8>);

impl Default for ReadBuffer {
    fn default() -> Self {
        Self(vec![0; 16 * 1024])
    }
}

impl ReadBuffer {
    /// A file that the kernel gives whole in one read: the pressure files, below 200 bytes.
    pub(crate) fn read_once(
        &mut self,
        dir: impl AsFd,
        name: &CStr,
    ) -> Result<&[u8], ReadErrorKind> {
        let file = open_file(dir, name)?;
        let length = nix::unistd::read(&file, &mut self.0)?;
        Ok(self.0.get(..length).unwrap_or_default())
    }

    /// A file of any length; a short read is not its end.
    pub(crate) fn read_all(&mut self, dir: impl AsFd, name: &CStr) -> Result<&[u8], ReadErrorKind> {
        let file = open_file(dir, name)?;
        let mut length = 0;
        loop {
            if length == self.0.len() {
                if length >= MAX_FILE_BYTES {
                    return Err(malformed_file("at most 1 MiB").into());
                }
                self.0.resize(length * 2, 0);
            }
            let free = self.0.get_mut(length..).unwrap_or_default();
            match nix::unistd::read(&file, free) {
                Ok(0) => return Ok(self.0.get(..length).unwrap_or_default()),
                Ok(read) => length += read,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn open_file(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, ReadErrorKind> {
    Ok(openat(dir, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_decides_the_situation() {
        for (errno, word) in [
            (Errno::ENOENT, "vanished"),
            (Errno::ENODEV, "vanished"),
            (Errno::ESRCH, "vanished"),
            (Errno::EOPNOTSUPP, "unsupported"),
            (Errno::EACCES, "refused"),
            (Errno::EPERM, "refused"),
            (Errno::EIO, "failed"),
        ] {
            assert_eq!(ReadErrorKind::from(errno).word(), word, "{errno}");
        }
    }

    #[test]
    fn an_endless_file_is_refused_and_a_long_one_is_read_whole() {
        let dev = nix::fcntl::open("/dev", OFlag::O_PATH, Mode::empty()).unwrap();
        let endless = ReadBuffer::default().read_all(&dev, c"zero").map(<[u8]>::len);
        assert_eq!(endless, Err(malformed_file("at most 1 MiB").into()));

        let path = std::env::temp_dir().join(format!("psi-agent-long-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("file"), vec![b'x'; 100_000]).unwrap();
        let dir = nix::fcntl::open(&path, OFlag::O_PATH, Mode::empty()).unwrap();
        assert_eq!(ReadBuffer::default().read_all(&dir, c"file").map(<[u8]>::len), Ok(100_000));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
