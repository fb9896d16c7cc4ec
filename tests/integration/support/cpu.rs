//! A CPU that tests keep busy. Tests of all processes and of all checkouts on this machine agree on it
//! by a lock on a file: one that measures has the CPU to itself, and the others share it.

use std::fs::{self, File};

/// The last CPU that tests may run on, until it is dropped: the others are left to agents and servers.
pub(crate) struct BusyCpu {
    number: usize,
    _lock: File,
}

impl BusyCpu {
    /// Waits until no other test uses it. For tests that measure.
    #[allow(dead_code, reason = "not every crate that includes this file measures")]
    pub(crate) fn take() -> Self {
        Self::lock(File::lock)
    }

    /// Waits until no other test measures. For tests that only need tasks that wait for each other:
    /// others on the same CPU make them wait longer.
    #[allow(dead_code, reason = "not every crate that includes this file shares a CPU")]
    pub(crate) fn share() -> Self {
        Self::lock(File::lock_shared)
    }

    fn lock(by: impl FnOnce(&File) -> std::io::Result<()>) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let number = allowed.unwrap().trim().rsplit([',', '-']).next().unwrap().parse().unwrap();
        let path = std::env::temp_dir().join(format!("psi-agent-test-cpu-{number}.lock"));
        let lock = File::options().create(true).append(true).open(path).unwrap();
        by(&lock).unwrap();
        Self { number, _lock: lock }
    }

    /// The shell command of a loop that wants this CPU all the time.
    pub(crate) fn spin(&self) -> String {
        self.spin_by("")
    }

    /// The same with a command in front, such as `nice -n 19`.
    pub(crate) fn spin_by(&self, launcher: &str) -> String {
        format!("taskset -c {} {launcher} sh -c 'while :; do :; done'", self.number)
    }
}
