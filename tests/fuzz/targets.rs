//! Fuzz targets: all parsers of kernel files and cgroup paths, and of what other programs send (in
//! `network/`). The environment variable `PSI_AGENT_FUZZ_TARGET` selects one; without it, the names
//! are printed. `run` builds this and runs all targets.
#![no_main]

mod connection;
mod network;

use std::hint::black_box;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use psi_agent::cgroup_path::Place;
use psi_agent::kernel::counters::{
    count_processes, parse_cpu_stat, parse_memory_events, parse_memory_stat, parse_populated,
};
use psi_agent::kernel::io_stat::{parse_io_limited, parse_io_stat};
use psi_agent::kernel::limits::{parse_cpu_max, parse_cpu_set, parse_limit, parse_number};
use psi_agent::kernel::mounts::{cgroup2_of, hiding_options};
use psi_agent::kernel::node_text::{
    parse_cores, parse_diskstats, parse_meminfo, parse_proc_stat, parse_schedstat, parse_vmstat,
};
use psi_agent::kernel::pressure::parse_pressure;
use psi_agent::kernel::task_text::{
    counts_two_pids, parse_cgroup_path, parse_is_runnable, parse_task_schedstat, selinux_type,
    thread_kind,
};
use psi_agent::serve::compression::accepts_gzip;

use crate::network::{requests, responses};

type Parse = fn(&[u8]);

/// An array of names and parsers, from `name: parser, …`. Results are ignored.
macro_rules! targets {
    ($($name:ident: $parse:expr,)*) => {
        [$((stringify!($name), (|bytes| _ = black_box($parse(bytes))) as Parse),)*]
    };
}

static TARGETS: [(&str, Parse); 38] = targets! {
    accepts_gzip: |bytes| accepts_gzip(&String::from_utf8_lossy(bytes)),
    authorization: requests::authorization,
    cgroup_path: |bytes| Place::of_path(&String::from_utf8_lossy(bytes)),
    cpu_count: parse_cpu_set,
    cpu_max: parse_cpu_max,
    cpu_stat: parse_cpu_stat,
    cpuinfo: parse_cores,
    diskstats: parse_diskstats,
    extender_arguments: requests::extender_arguments,
    host: requests::host,
    http_request: requests::http_request,
    io_max: parse_io_limited,
    io_stat: parse_io_stat,
    limit: parse_limit,
    list_items: responses::list_items,
    meminfo: parse_meminfo,
    memory_events: parse_memory_events,
    memory_stat: parse_memory_stat,
    mountinfo: |bytes| (cgroup2_of(bytes), hiding_options(bytes, Path::new("/host/proc"), &[7])),
    node: responses::node,
    node_annotations: responses::node_annotations,
    number: parse_number,
    pods: responses::pods,
    populated: parse_populated,
    pressure: parse_pressure,
    proc_stat: parse_proc_stat,
    process_cgroup: |bytes| parse_cgroup_path(bytes).map(drop),
    process_status: counts_two_pids,
    processes: count_processes,
    query_form: requests::query_form,
    reviews: responses::reviews,
    schedstat: parse_schedstat,
    selinux_context: selinux_type,
    snapshot: responses::snapshot,
    task_schedstat: parse_task_schedstat,
    task_stat: parse_is_runnable,
    thread_name: thread_kind,
    vmstat: parse_vmstat,
};

static CHOSEN: LazyLock<Parse> = LazyLock::new(|| {
    let name = std::env::var("PSI_AGENT_FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|(target, _)| *target == name) {
        Some((_, parse)) => *parse,
        None => {
            TARGETS.iter().for_each(|(target, _)| println!("{target}"));
            std::process::exit(if name.is_empty() { 0 } else { 64 });
        }
    }
});

fuzz_target!(init: { LazyLock::force(&CHOSEN); }, |bytes: &[u8]| CHOSEN(bytes));
