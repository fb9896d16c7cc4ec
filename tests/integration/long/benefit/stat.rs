//! `/proc/stat` of a node that takes turns on a CPU, as its agent reads it: one CPU, which only the node's own
//! VMs use.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::folder::Folder;

/// The agents' ticks are 50 times as long.
const INTERVAL: Duration = Duration::from_millis(100);
/// Clock ticks in a second.
const TICKS: f64 = 100.0;

/// Keeps the file of each node up to date, until it is dropped.
pub(super) struct Stat {
    is_over: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl Stat {
    /// For nodes with these cgroups; answers also the files.
    pub(super) fn start(folder: &Folder, cgroups: &[PathBuf]) -> (Self, Vec<PathBuf>) {
        let path = |node: usize| folder.join(format!("stat-{node}"));
        let paths: Vec<PathBuf> = (0..cgroups.len()).map(path).collect();
        let create = |path: &PathBuf| File::create(path).unwrap();
        let nodes: Vec<(File, PathBuf)> =
            paths.iter().map(create).zip(cgroups.iter().cloned()).collect();
        let (start, boot_time) = (Instant::now(), boot_time());
        let write = move || {
            let elapsed = start.elapsed().as_secs_f64();
            for (file, cgroup) in &nodes {
                let text = stat(elapsed, used(cgroup), &boot_time);
                file.write_all_at(text.as_bytes(), 0).unwrap();
            }
        };
        write();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let writer = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                write();
                thread::sleep(INTERVAL);
            }
        });
        (Self { is_over, writer: Some(writer) }, paths)
    }
}

impl Drop for Stat {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.writer.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "nobody wrote /proc/stat");
    }
}

/// The content, of the same length each time, so that it replaces the last one at once.
fn stat(elapsed: f64, used: f64, boot_time: &str) -> String {
    let busy = used.min(elapsed);
    let [busy, idle] = [busy, elapsed - busy].map(|seconds| (seconds * TICKS).round());
    let times = format!("{busy:020} 0 0 {idle:020} 0 0 0 0 0 0");
    format!("cpu  {times}\ncpu0 {times}\n{boot_time}\n")
}

/// CPU seconds that a cgroup has used.
fn used(cgroup: &Path) -> f64 {
    let stat = fs::read_to_string(cgroup.join("cpu.stat")).unwrap();
    let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
    usage.unwrap().parse::<f64>().unwrap() / 1e6
}

fn boot_time() -> String {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.lines().find(|line| line.starts_with("btime ")).unwrap().to_owned()
}
