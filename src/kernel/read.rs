//! Reads whole kernel files into one buffer, and classifies errors.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::dir::{Dir, Entry};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use strum::{IntoStaticStr, VariantNames};

use super::text::ParseError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {kind}")]
pub struct ReadError {
    pub path: String,
    pub kind: ReadErrorKind,
}

impl ReadError {
    pub(super) fn new(path: &Path, kind: impl Into<ReadErrorKind>) -> Self {
        Self { path: path.display().to_string(), kind: kind.into() }
    }

    /// Whether the file, cgroup, process or thread no longer exists.
    pub fn is_vanished(&self) -> bool {
        matches!(self.kind, ReadErrorKind::Vanished(_))
    }
}

/// `None` for a file that does not exist, or whose feature is disabled.
pub(super) fn if_present<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(ReadError {
            kind: ReadErrorKind::Vanished(_) | ReadErrorKind::Unsupported(_), ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Methods that read one file each, from `method: Value = name, parser;`, by the method `read` of the
/// type. The value is `None` where the file is absent: its controller or a feature of the kernel is
/// off, or the kernel is older.
macro_rules! files {
    ($Dir:ident: $($(#[$about:meta])* $method:ident: $value:ty = $name:literal, $parse:expr;)*) => {
        impl $Dir {
            $($(#[$about])*
            pub fn $method(&self, buffer: &mut ReadBuffer) -> Result<Option<$value>, ReadError> {
                self.read($name, buffer, $parse)
            })*
        }
    };
}
pub(super) use files;

/// Why a file could not be read. It is derived from errno: `std::io::ErrorKind` has no ENODEV. Its
/// name is the value of the label `kind` in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum ReadErrorKind {
    /// ENOENT, ENODEV or ESRCH: the file, its cgroup or its process no longer exists.
    #[error("not found ({0})")]
    Vanished(Errno),
    /// EOPNOTSUPP: the file exists, but the feature is disabled.
    #[error("not supported by this kernel ({0})")]
    Unsupported(Errno),
    #[error("permission denied ({0})")]
    Refused(Errno),
    #[error("{0}")]
    Malformed(#[from] ParseError),
    #[error("{0}")]
    Failed(Errno),
}

impl From<Errno> for ReadErrorKind {
    fn from(errno: Errno) -> Self {
        if [Errno::ENOENT, Errno::ENODEV, Errno::ESRCH].contains(&errno) {
            ReadErrorKind::Vanished(errno)
        } else if errno == Errno::EOPNOTSUPP {
            ReadErrorKind::Unsupported(errno)
        } else if [Errno::EACCES, Errno::EPERM].contains(&errno) {
            ReadErrorKind::Refused(errno)
        } else {
            ReadErrorKind::Failed(errno)
        }
    }
}

/// Largest file that is read. `/proc/schedstat` is the largest of them: 3 MiB on 1,024 CPUs with
/// five scheduling domains each. The bound ends the reading of an endless file, such as a device.
const MAX_FILE_BYTES: usize = 16 << 20;

/// A reused buffer for file contents. It grows to the largest file that was read.
#[derive(Debug)]
pub struct ReadBuffer(Vec<u8>);

impl Default for ReadBuffer {
    fn default() -> Self {
        Self(vec![0; 16 * 1024])
    }
}

impl ReadBuffer {
    /// Reads a file that the kernel returns whole in one `read`, such as a pressure file.
    pub(super) fn read_once(
        &mut self,
        dir: impl AsFd,
        name: &CStr,
    ) -> Result<&[u8], ReadErrorKind> {
        let file = open_file(dir, name)?;
        let length = nix::unistd::read(&file, &mut self.0)?;
        Ok(self.0.get(..length).unwrap_or_default())
    }

    /// Reads a file up to its end: `/proc` returns long files in several short reads.
    pub(super) fn read_all(&mut self, dir: impl AsFd, name: &CStr) -> Result<&[u8], ReadErrorKind> {
        let file = open_file(dir, name)?;
        let mut length = 0;
        loop {
            if length == self.0.len() {
                if length >= MAX_FILE_BYTES {
                    return Err(ParseError("at most 16 MiB").into());
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

/// Lists a directory, and keeps a part of some of its entries.
pub(super) fn list<T>(
    above: impl AsFd,
    name: &CStr,
    part: impl Fn(&Entry) -> Option<T>,
) -> Result<Vec<T>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut dir = Dir::openat(above, name, flags, Mode::empty())?;
    dir.iter().filter_map(|entry| entry.map(|entry| part(&entry)).transpose()).collect()
}

fn open_file(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, ReadErrorKind> {
    Ok(openat(dir, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_decides_the_kind() {
        for (errno, word) in [
            (Errno::ENOENT, "vanished"),
            (Errno::ENODEV, "vanished"),
            (Errno::ESRCH, "vanished"),
            (Errno::EOPNOTSUPP, "unsupported"),
            (Errno::EACCES, "refused"),
            (Errno::EPERM, "refused"),
            (Errno::EIO, "failed"),
        ] {
            assert_eq!(ReadErrorKind::from(errno).into_str(), word, "{errno}");
        }
    }

    #[test]
    fn an_endless_file_is_an_error() {
        let dev = nix::fcntl::open("/dev", OFlag::O_PATH, Mode::empty()).unwrap();
        let endless = ReadBuffer::default().read_all(&dev, c"zero").map(<[u8]>::len);
        assert_eq!(endless, Err(ParseError("at most 16 MiB").into()));
    }
}
