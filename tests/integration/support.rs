//! What tests share: a running agent, a bare HTTP client, a cgroup of their own.

pub(crate) mod agent;
pub(crate) mod browser;
pub(crate) mod cadvisor;
pub(crate) mod cgroup;
pub(crate) mod cluster;
pub(crate) mod console;
pub(crate) mod cpu;
pub(crate) mod dashboard_queries;
pub(crate) mod descheduler;
pub(crate) mod exposition;
pub(crate) mod fake_node;
pub(crate) mod flag_rows;
pub(crate) mod folder;
pub(crate) mod full_exposition;
pub(crate) mod helm;
pub(crate) mod host_proc;
pub(crate) mod install_document;
pub(crate) mod kubevirt;
pub(crate) mod listed_nodes;
pub(crate) mod measured_vms;
pub(crate) mod node_exporter;
pub(crate) mod node_metadata;
pub(crate) mod packed_release;
pub(crate) mod project;
pub(crate) mod prometheus;
pub(crate) mod prometheus_operator;
pub(crate) mod proxy;
pub(crate) mod publisher;
pub(crate) mod real_node;
pub(crate) mod recorded_case;
pub(crate) mod replayed_node;
pub(crate) mod sampled_node;
pub(crate) mod short_node;
pub(crate) mod shown_node;
pub(crate) mod simulated_cluster;
pub(crate) mod staged_node;
pub(crate) mod stolen_time;
pub(crate) mod terminal;
pub(crate) mod tls;
pub(crate) mod virtual_machine;
pub(crate) mod written_files;
pub(crate) mod written_node;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Where `tests/run` keeps what it builds and downloads: `$XDG_CACHE_HOME/psi-agent`.
pub(crate) fn cache_dir() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|base| !base.is_empty());
    let base = base.map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache");
    base.unwrap_or_else(home).join("psi-agent")
}

/// What the `build` of a folder of tests made: it has the version of the module that it is made from.
pub(crate) fn built(name: &str, go_mod: &str, module: &str) -> PathBuf {
    let required = go_mod.split(&format!("{module} v")).nth(1);
    let version = required.and_then(|rest| rest.split_whitespace().next());
    let version = version.unwrap_or_else(|| panic!("no {module} in go.mod: {go_mod}"));
    cache_dir().join(format!("{name}-{version}"))
}

/// A file that docs/consumers tells users to copy.
pub(crate) fn snippet(name: &str) -> String {
    project::text(&format!("docs/consumers/snippets/{name}"))
}

/// Asks again and again until there is an answer; fails with `what` after `limit`.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The end of a program's log, for whoever reads why a test failed.
pub(crate) fn show_end_of_log(program: &str, log: &Path) {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let from = log.lines().count().saturating_sub(20);
    let last: Vec<&str> = log.lines().skip(from).collect();
    eprintln!("{program} said last:\n{}", last.join("\n"));
}

/// A port of loopback for a program that can't name the one it got. Each call answers another, and
/// none is of those that the kernel gives to connections (from 32768 on): such a port could be taken
/// before the program listens.
pub(crate) fn free_port() -> u16 {
    // Two runs of the tests at the same time use other thousands: each holds the first port of its own.
    static NEXT: LazyLock<(TcpListener, AtomicU16)> = LazyLock::new(|| {
        let mut thousands = (20..32).map(|thousand| thousand * 1_000);
        let claimed = thousands.find_map(|first| {
            let held = TcpListener::bind(("127.0.0.1", first)).ok()?;
            Some((held, AtomicU16::new(first + 1)))
        });
        claimed.expect("ports that no other run of the tests uses")
    });
    loop {
        let port = NEXT.1.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
