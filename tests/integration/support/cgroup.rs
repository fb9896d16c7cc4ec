//! A cgroup of the test's own below the host's cgroup2 root, removed with all below it at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The host's cgroup2 mount.
pub(crate) fn cgroup2_mount() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let mount = mount.expect("this test needs a cgroup2 mount");
    mount.split(' ').nth(1).unwrap().into()
}

/// A cgroup and what is below it.
pub(crate) struct OwnCgroup {
    pub(crate) path: PathBuf,
    /// Its path from the root of the hierarchy, as the label `id` has it.
    pub(crate) id: String,
    children: Vec<Child>,
}

impl OwnCgroup {
    pub(crate) fn new(name: &str) -> Self {
        let id = format!("/psi-agent-test-{}-{name}", std::process::id());
        let path = cgroup2_mount().join(&id[1..]);
        fs::create_dir(&path).unwrap_or_else(|error| {
            panic!("this test needs to make cgroups (root): {}: {error}", path.display())
        });
        Self { path, id, children: Vec::new() }
    }

    /// Makes a cgroup below, with those in between.
    pub(crate) fn make(&self, below: &str) -> PathBuf {
        let path = self.path.join(below.trim_start_matches('/'));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Starts a shell command within the cgroup `below` (`""` for this one itself).
    pub(crate) fn spawn(&mut self, below: &str, command: &str) -> u32 {
        let procs = self.path.join(below).join("cgroup.procs");
        let script = format!("echo 0 > {} && exec {command}", procs.display());
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// Ends one that was started.
    pub(crate) fn kill(&mut self, pid: u32) {
        let at = self.children.iter().position(|child| child.id() == pid);
        let mut child = self.children.swap_remove(at.expect("started here"));
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Ends all that was started.
    pub(crate) fn kill_all(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Removes a cgroup below, and those below it.
    pub(crate) fn remove(&self, below: &str) {
        remove_tree(&self.path.join(below.trim_start_matches('/')));
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        self.kill_all();
        // Processes that these started.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        remove_tree(&self.path);
    }
}

/// rmdir from the leaves up; a process that was just killed keeps its cgroup busy for a moment.
fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    for _ in 0..100 {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => return,
        }
    }
}
