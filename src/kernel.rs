//! Reads and parses kernel files: PSI, cgroup v2 and `/proc`. No other module opens them. Values
//! keep the kernel's names and units; a file that cannot be read gives a [`ReadError`].

pub mod cgroup_dir;
pub mod cgroup_tree;
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
pub mod task_text;
pub mod text;

pub use crate::client::resource;
pub(crate) use read::if_present;
pub use read::{ReadError, ReadErrorKind};

/// Size of a memory page, bytes.
pub use procfs::page_size;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes: Vec<u8>) {
            use {counters::*, io_stat::*, limits::*, mounts::*, node_text::*, pressure::*, task_text::*};
            _ = (parse_cpu_stat(&bytes), parse_populated(&bytes));
            _ = (parse_memory_stat(&bytes), parse_memory_events(&bytes), count_processes(&bytes));
            _ = (parse_number(&bytes), parse_limit(&bytes), parse_cpu_max(&bytes));
            _ = (parse_io_limited(&bytes), parse_cpu_set(&bytes), parse_io_stat(&bytes));
            _ = (parse_proc_stat(&bytes), parse_vmstat(&bytes), parse_meminfo(&bytes));
            _ = (parse_diskstats(&bytes), parse_cores(&bytes), parse_schedstat(&bytes), parse_swaps(&bytes));
            _ = (parse_pressure(&bytes), cgroup2_of(&bytes), parse_cgroup_path(&bytes));
            _ = (parse_task_schedstat(&bytes), parse_is_runnable(&bytes), counts_two_pids(&bytes), thread_kind(&bytes));
        }
    }
}
