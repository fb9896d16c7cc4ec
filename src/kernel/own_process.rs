//! The agent's own process: its resource usage, its groups, its limit of open files, and the name of its
//! host.

use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::ProcResult;
use procfs::process::{LimitValue, Process};

use super::cgroup_dir::{CgroupId, CgroupRoot};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnProcess {
    /// CPU time of all threads, seconds.
    pub cpu_seconds: f64,
    pub open_fds: u64,
    /// Limit of open file descriptors; `None` without a limit.
    pub max_fds: Option<u64>,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    /// Start time, seconds since the epoch.
    pub start_time_s: f64,
}

/// The host's name; in a pod without the host's network, the pod's.
pub fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok().map(|name| name.to_string_lossy().into_owned())
}

impl OwnProcess {
    pub fn read() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        let max_fds = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
            open_fds: u64::try_from(process.fd_count()?).unwrap_or(u64::MAX),
            max_fds,
            resident_bytes: stat.rss.saturating_mul(procfs::page_size()),
            virtual_bytes: stat.vsize,
            start_time_s: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
        })
    }
}

/// The groups by which the kernel grants access to files.
pub fn own_groups() -> Vec<u32> {
    let status = Process::myself().and_then(|process| process.status());
    status.map_or(vec![], |status| [status.groups, vec![status.fgid]].concat())
}

/// Descriptors reserved for connections and the file being read.
const RESERVED_DESCRIPTORS: u64 = 160;

/// Raises the soft limit of open files to the hard limit, and returns how many directory handles may
/// be kept open. The usual soft limit of 1024 is less than the number of cgroups of a busy node.
pub fn raise_open_file_limit() -> nix::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(usize::try_from(hard.saturating_sub(RESERVED_DESCRIPTORS)).unwrap_or(usize::MAX))
}

/// The cgroup at the top of `/sys/fs/cgroup`. In a container with a cgroup namespace it is the
/// container's own cgroup, whose name the namespace hides; on the host the root cgroup.
pub fn own_cgroup() -> Option<CgroupId> {
    let root = CgroupRoot::open(Path::new("/sys/fs/cgroup")).ok()?;
    let top = root.stat("/").ok()?;
    root.is_cgroup2.then_some(CgroupId(top.st_ino))
}
