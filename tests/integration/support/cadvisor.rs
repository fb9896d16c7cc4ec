//! A cAdvisor that is built as the kubelet builds it in, on the host's cgroup2 tree.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::agent::Agent;

/// Builds it where it is missing, and starts it for the root cgroup and those below `prefix`. `CADVISOR_RELEASE` in
/// the environment names an older one.
pub(crate) fn start_cadvisor(prefix: &str) -> Agent {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cadvisor/build");
    let release = env::var("CADVISOR_RELEASE").ok();
    let build = Command::new(script).args(release).stderr(Stdio::inherit()).output().unwrap();
    assert!(build.status.success(), "{script} failed");
    let program = String::from_utf8(build.stdout).unwrap();
    let mut child = in_own_mounts()
        .args([program.trim(), "--prefix", prefix])
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    assert!(!address.is_empty(), "cAdvisor ended before it served");
    Agent::other(child, address.trim().to_owned())
}

/// Runs what is added with the cgroup2 tree where cAdvisor insists on it. The mount namespace ends
/// with the process, and the host's mounts stay as they are.
pub(crate) fn in_own_mounts() -> Command {
    let script = "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command
}
