//! Keeps the errors of a pass for its report: a file that can't be read does not affect others.

use std::sync::Arc;

use super::series::Reading;
use crate::clock::Clock;
use crate::kernel::ReadError;
use crate::kernel::cgroup_dir::CgroupDir;
use crate::kernel::cgroup_tree::Cgroup;

/// Reads files in a pass, and collects errors for its report.
pub(crate) struct Files {
    pub(crate) clock: Clock,
    pub(crate) errors: Vec<ReadError>,
    /// Cgroups that no longer exist.
    pub(crate) gone: Vec<Arc<Cgroup>>,
}

impl Files {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, errors: Vec::new(), gone: Vec::new() }
    }

    /// Returns the value, or keeps the error for the report. Of a cgroup's file, the inner `None` means that it
    /// does not exist: its controller is off, or the cgroup was removed (see [`Files::is_alive`]).
    pub(crate) fn note<T>(&mut self, result: Result<T, ReadError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// Reads a file if it is wanted, and treats a missing file like an error.
    pub(crate) fn read_if<T>(
        &mut self,
        is_wanted: bool,
        read: impl FnOnce() -> Result<Option<T>, ReadError>,
    ) -> Option<T> {
        if is_wanted { self.note(read()).flatten() } else { None }
    }

    /// Adds the current time to what was just read, and treats a missing file like an error.
    pub(crate) fn dated<T>(&mut self, read: Result<Option<T>, ReadError>) -> Option<Reading<T>> {
        let value = self.note(read).flatten()?;
        Some(Reading { at: (self.clock)().at, value })
    }

    /// Whether a cgroup still exists. If not, it is added to `gone`.
    pub(crate) fn is_alive(&mut self, dir: &CgroupDir) -> bool {
        let is_alive = dir.is_alive();
        if !is_alive {
            self.gone.push(Arc::clone(&dir.cgroup));
        }
        is_alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;
    use crate::kernel::cgroup_dir::CgroupRoot;
    use crate::kernel::cgroup_tree::CgroupTree;
    use std::fs;

    #[test]
    fn a_file_is_missing_because_its_controller_is_off_or_the_cgroup_is_gone() {
        let path = std::env::temp_dir().join(format!("psi-agent-gone-{}", std::process::id()));
        fs::create_dir_all(path.join("pod")).unwrap();
        let root = CgroupRoot::open(&path).unwrap();
        let mut tree = CgroupTree::new(root, true, 9);
        tree.follow(now().at);
        let dir = tree.dirs().last().unwrap();
        let mut files = Files::new(Arc::new(now));
        assert_eq!(files.note(dir.io_stat()), Some(None));
        assert!(files.is_alive(dir) && files.gone.is_empty());
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(files.note(dir.io_stat()), Some(None));
        assert!(!files.is_alive(dir) && files.gone.len() == 1);
        assert!(files.errors.is_empty());
    }
}
