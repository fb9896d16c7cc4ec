//! This host's `/proc` for measurements of cost. It has a total of waiting, which a kernel without
//! CONFIG_SCHEDSTATS does not tell: there the agent looks at nobody but VMs. And its pressure stands
//! still, as on a node that is short of neither memory nor disks, whatever else runs here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder that `--proc-root` names, removed at the end.
pub(crate) struct HostProc(pub(crate) PathBuf);

impl HostProc {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("{}-{name}-proc", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for file in ["stat", "vmstat", "meminfo", "diskstats", "self"] {
            symlink(Path::new("/proc").join(file), folder.join(file)).unwrap();
        }
        fs::create_dir_all(folder.join("pressure")).unwrap();
        for resource in ["cpu", "memory", "io"] {
            let now = fs::read(Path::new("/proc/pressure").join(resource)).unwrap();
            fs::write(folder.join("pressure").join(resource), now).unwrap();
        }
        let total = "version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 0 0\n";
        fs::write(folder.join("schedstat"), total).unwrap();
        Self(folder)
    }

    /// Shows a process in it.
    #[allow(dead_code, reason = "benches alone have threads looked at")]
    pub(crate) fn show(&self, process: u32) {
        let name = process.to_string();
        symlink(Path::new("/proc").join(&name), self.0.join(name)).unwrap();
    }
}

impl Drop for HostProc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
