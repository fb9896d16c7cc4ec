//! Files of a kernel, written as it writes them: for what no real one can be brought to here.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clock ticks a second, as `/proc/stat` counts them.
const TICKS: f64 = 100.0;

/// Writes again and again, until it is dropped.
pub(crate) struct Writer {
    ends: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Calls `write` at once, and then ten times a second, with the seconds since the first time.
    pub(crate) fn start(write: impl Fn(f64) + Send + 'static) -> Self {
        let start = Instant::now();
        write(0.0);
        let (ends, ended) = mpsc::channel::<()>();
        let again = Duration::from_millis(100);
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(again) == Err(RecvTimeoutError::Timeout) {
                write(start.elapsed().as_secs_f64());
            }
        });
        Self { ends: Some(ends), thread: Some(thread) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts a file there at once, so that nobody reads a half; made in `folder`, where nobody looks.
pub(crate) fn replace(folder: &Path, path: &Path, text: &str) {
    let new = folder.join(format!("new-{:?}", std::thread::current().id()));
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// `meminfo` and `vmstat` of a node that has most of its memory free.
pub(crate) fn write_memory(folder: &Path, proc: &Path) {
    let memory =
        "MemTotal:       16777216 kB\nMemFree:        15938355 kB\nMemAvailable:   15938355 kB\n";
    replace(folder, &proc.join("meminfo"), memory);
    replace(
        folder,
        &proc.join("vmstat"),
        "pgscan_kswapd 0\nallocstall_normal 0\nallocstall_movable 0\n",
    );
}

/// The same, and `stat`, of a node of four CPUs that has been `busy` for a share of these seconds.
pub(crate) fn write_node(folder: &Path, proc: &Path, busy: f64, seconds: f64) {
    let ticks = |share: f64| (seconds * TICKS * share).round();
    let of_cpu = |cpus: f64| {
        format!("{} 0 0 {} 0 0 0 0 0 0", ticks(busy * cpus), ticks((1.0 - busy) * cpus))
    };
    let each: String = (0..4).map(|cpu| format!("cpu{cpu} {}\n", of_cpu(1.0))).collect();
    replace(folder, &proc.join("stat"), &format!("cpu  {}\n{each}btime 1767225600\n", of_cpu(4.0)));
    write_memory(folder, proc);
}

/// A pressure file, after all its tasks have waited for so many seconds.
pub(crate) fn pressure(waited: f64) -> String {
    let total = Duration::from_secs_f64(waited).as_micros();
    ["some", "full"]
        .map(|what| format!("{what} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"))
        .concat()
}

/// CPU time and pressure of a cgroup, after these seconds of running and of being throttled; who is
/// throttled waits, with all of its tasks. It waits for nothing else.
pub(crate) fn write_cgroup(folder: &Path, cgroup: &Path, used: f64, throttled: f64) {
    let micros = |seconds: f64| Duration::from_secs_f64(seconds).as_micros();
    let (used, throttled_us) = (micros(used), micros(throttled));
    let stat = format!(
        "usage_usec {used}\nuser_usec {used}\nsystem_usec 0\nnr_periods 1\nnr_throttled 1\n\
         throttled_usec {throttled_us}\n"
    );
    replace(folder, &cgroup.join("cpu.stat"), &stat);
    for (resource, waited) in [("cpu", throttled), ("memory", 0.0), ("io", 0.0)] {
        replace(folder, &cgroup.join(format!("{resource}.pressure")), &pressure(waited));
    }
}
