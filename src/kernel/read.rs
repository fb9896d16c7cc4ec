//! Reads whole kernel files, and classifies errors.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Entry};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
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
pub(crate) fn if_present<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
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
            pub fn $method(&self) -> Result<Option<$value>, ReadError> {
                self.read($name, $parse)
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
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A parser of a file's bytes.
pub(super) trait Parse<T>: FnOnce(&[u8]) -> Result<T, ParseError> {}

impl<T, F: FnOnce(&[u8]) -> Result<T, ParseError>> Parse<T> for F {}

/// Reads and parses a short file, which the kernel returns whole in one `read`, such as a pressure file.
pub(super) fn read_once<T>(
    dir: impl AsFd,
    name: &CStr,
    parse: impl Parse<T>,
) -> Result<T, ReadErrorKind> {
    let mut text = [0; 1024];
    let length = nix::unistd::read(open_file(dir, name)?, &mut text)?;
    Ok(parse(text.get(..length).unwrap_or_default())?)
}

/// Reads and parses a file up to its end: `/proc` returns long files in several short reads.
pub(super) fn read_all<T>(
    dir: impl AsFd,
    name: &CStr,
    parse: impl Parse<T>,
) -> Result<T, ReadErrorKind> {
    let (file, mut text) = (File::from(open_file(dir, name)?), Vec::with_capacity(16 * 1024));
    let read = file.take(MAX_FILE_BYTES).read_to_end(&mut text);
    let length = read.map_err(|error| Errno::try_from(error).unwrap_or(Errno::EIO))?;
    if length as u64 == MAX_FILE_BYTES {
        return Err(ParseError("at most 16 MiB").into());
    }
    Ok(parse(&text)?)
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

/// An open directory whose files are read: a mounted `/proc`, a process, a thread.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) handle: OwnedFd,
    /// For errors.
    pub(super) path: PathBuf,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, ReadError> {
        Self::open_at(AT_FDCWD, path, path.to_owned())
    }

    pub(super) fn open_below(&self, name: &str) -> Result<Self, ReadError> {
        Self::open_at(&self.handle, name.as_ref(), self.path.join(name))
    }

    fn open_at(above: impl AsFd, name: &Path, path: PathBuf) -> Result<Self, ReadError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(above, name, flags, Mode::empty()) {
            Ok(handle) => Ok(Self { handle, path }),
            Err(errno) => Err(ReadError::new(&path, errno)),
        }
    }

    /// Reads and parses a file up to its end.
    pub(super) fn read<T>(&self, name: &CStr, parse: impl Parse<T>) -> Result<T, ReadError> {
        read_all(&self.handle, name, parse).map_err(|kind| self.error(name, kind))
    }

    /// As [`Directory::read`], for a file that the kernel returns whole in one `read`.
    pub(super) fn read_once<T>(&self, name: &CStr, parse: impl Parse<T>) -> Result<T, ReadError> {
        read_once(&self.handle, name, parse).map_err(|kind| self.error(name, kind))
    }

    /// Lists a directory below this one, and keeps a part of some of its entries.
    pub(super) fn list<T>(
        &self,
        name: &CStr,
        part: impl Fn(&Entry) -> Option<T>,
    ) -> Result<Vec<T>, ReadError> {
        list(&self.handle, name, part).map_err(|errno| self.error(name, errno.into()))
    }

    fn error(&self, name: &CStr, kind: ReadErrorKind) -> ReadError {
        ReadError::new(&self.path.join(&*name.to_string_lossy()), kind)
    }
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
        let endless = read_all(&dev, c"zero", |text| Ok(text.len()));
        assert_eq!(endless, Err(ParseError("at most 16 MiB").into()));
    }
}
