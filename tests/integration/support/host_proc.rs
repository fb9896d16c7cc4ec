//! This host's `/proc` with a total of waiting, which a kernel without CONFIG_SCHEDSTATS does not
//! tell: there the agent looks at nobody but VMs, and costs less than on most nodes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder that `--proc-root` names, removed at the end.
pub(crate) struct HostProc(pub(crate) PathBuf);

impl HostProc {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("{}-{name}-proc", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for file in ["pressure", "stat", "vmstat", "meminfo", "diskstats", "self"] {
            symlink(Path::new("/proc").join(file), folder.join(file)).unwrap();
        }
        // One that stands still: nobody else begins to wait.
        let total = "version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 0 0\n";
        fs::write(folder.join("schedstat"), total).unwrap();
        Self(folder)
    }
}

impl Drop for HostProc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
