//! Reads and parses kernel files: PSI, cgroup v2 and `/proc`. No other module opens them.
//! Values keep the kernel's names and units; what cannot be read is a [`ReadError`].

pub mod cgroup_dir;
pub mod cgroup_tree;
pub mod cgroup_watch;
pub mod counters;
pub mod io_stat;
pub mod limits;
pub mod mounts;
pub mod node_text;
pub mod own_process;
pub mod pressure;
pub mod proc_root;
pub mod process_dir;
mod read;
pub mod resource;
pub mod task_text;
pub mod text;

pub use read::{ReadBuffer, ReadError, ReadErrorKind};

/// Size of a memory page, bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    procfs::page_size()
}
