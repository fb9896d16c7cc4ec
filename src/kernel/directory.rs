//! An open directory whose files are read: a mounted `/proc`, a process, a thread, the cgroup root.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Entry;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;

use super::read::{ReadBuffer, ReadError, ReadErrorKind, list};
use super::text::ParseError;

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
    pub(super) fn read<'a, T>(
        &self,
        name: &CStr,
        buffer: &'a mut ReadBuffer,
        parse: impl FnOnce(&'a [u8]) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        let value = buffer.read_all(&self.handle, name).and_then(|text| Ok(parse(text)?));
        value.map_err(|kind| self.error(name, kind))
    }

    /// As [`Directory::read`], for a file that the kernel returns whole in one `read`.
    pub(super) fn read_once<T>(
        &self,
        name: &CStr,
        buffer: &mut ReadBuffer,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        let value = buffer.read_once(&self.handle, name).and_then(|text| Ok(parse(text)?));
        value.map_err(|kind| self.error(name, kind))
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
