//! Reads the files of cgroups into one buffer. A file that can't be read costs itself: its error
//! is kept for the report of the pass.

use std::ffi::CStr;

use crate::kernel::cgroup_dir::{CgroupDir, Resource};
use crate::kernel::io_stat::{IoCounters, parse_io_stat};
use crate::kernel::pressure::Pressure;
use crate::kernel::text::ParseError;
use crate::kernel::{ReadBuffer, ReadError, ReadErrorKind};

/// The reading side of a pass.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) buffer: ReadBuffer,
    pub(super) errors: Vec<ReadError>,
    pub(super) dropped_io_rows: u64,
    /// Whether a file was missing since the last call of [`Files::found_gone`].
    missing: bool,
}

/// The cgroup was removed.
#[derive(Debug)]
pub(super) struct Gone;

impl Files {
    /// The value; an error is kept.
    pub(super) fn note<T>(&mut self, result: Result<T, ReadError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// A file of a cgroup. The outer `None` is an error, the inner one that there is no such file:
    /// its controller is off, or the cgroup is gone, see [`Files::found_gone`].
    pub(super) fn read<T>(
        &mut self,
        dir: &CgroupDir,
        name: &CStr,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Option<Option<T>> {
        let read = dir.read(name, &mut self.buffer, parse);
        self.missing |= matches!(read, Ok(None));
        self.note(read)
    }

    /// A file whose absence and errors mean the same to the caller.
    pub(super) fn read_value<T>(
        &mut self,
        dir: &CgroupDir,
        name: &CStr,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Option<T> {
        self.read(dir, name, parse).flatten()
    }

    /// `io.stat` by device; `None`s as of [`Files::read`].
    pub(super) fn read_io_stat(&mut self, dir: &CgroupDir) -> Option<Option<Vec<IoCounters>>> {
        let stat = self.read(dir, c"io.stat", |text| Ok(parse_io_stat(text)))?;
        self.dropped_io_rows += stat.as_ref().map_or(0, |stat| stat.dropped_rows);
        Some(stat.map(|stat| stat.devices))
    }

    /// A pressure file; `None` where PSI is off for this cgroup or by error.
    pub(super) fn pressure(
        &mut self,
        dir: &CgroupDir,
        resource: Resource,
    ) -> Result<Option<Pressure>, Gone> {
        match dir.pressure(resource, &mut self.buffer) {
            Ok(pressure) => Ok(Some(pressure)),
            // With its directory still there, `cgroup.pressure` is 0.
            Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) if dir.is_alive() => Ok(None),
            Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => Err(Gone),
            Err(ReadError { kind: ReadErrorKind::Unsupported(_), .. }) => Ok(None),
            Err(error) => {
                self.errors.push(error);
                Ok(None)
            }
        }
    }

    /// Whether a file was missing since the last call because this cgroup was removed.
    pub(super) fn found_gone(&mut self, dir: &CgroupDir) -> bool {
        std::mem::take(&mut self.missing) && !dir.is_alive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cgroup_dir::CgroupRoot;
    use std::fs;

    #[test]
    fn a_file_is_missing_because_its_controller_is_off_or_the_cgroup_is_gone() {
        let path = std::env::temp_dir().join(format!("psi-agent-gone-{}", std::process::id()));
        fs::create_dir_all(path.join("pod")).unwrap();
        let root = CgroupRoot::open(&path).unwrap();
        let dir = CgroupDir::open(&root, "/pod", true).unwrap();
        let mut files = Files::default();
        assert_eq!(files.read_io_stat(&dir), Some(None));
        assert!(!files.found_gone(&dir));
        fs::remove_dir_all(&path).unwrap();
        assert!(!files.found_gone(&dir), "no file was missing since");
        assert_eq!(files.read_io_stat(&dir), Some(None));
        assert!(files.found_gone(&dir));
        assert!(files.errors.is_empty());
    }
}
