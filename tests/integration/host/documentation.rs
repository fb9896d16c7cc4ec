//! The README's quick start on this host, with the output that it shows.

use std::process::Command;

use crate::support::agent::Agent;
use crate::support::console::shown_by;
use crate::support::wait_for;

/// Runs the program where `/sys/fs/cgroup` is cgroup v2 alone, as the README requires.
const ON_CGROUP_V2: &str =
    "umount -R -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec \"$0\" \"$@\"";

#[test]
#[ignore = "needs root, unshare, curl and cgroup v2"]
fn the_quick_start_prints_what_the_readme_shows() {
    let shown = shown_by("README.md");
    let [run, metrics, _, _, _] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(run.command, "cargo run --release");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", ON_CGROUP_V2, crate::support::agent::BINARY]);
    let agent = Agent::start_by(command, &[]);
    let log = wait_for("the first sample", std::time::Duration::from_secs(60), || {
        let log = agent.log();
        log.contains("pressure=").then_some(log)
    });
    run.check(&log);
    let curl = metrics.command.replace("127.0.0.1:9942", &agent.address);
    assert_ne!(curl, metrics.command);
    let output = Command::new("bash").args(["-c", &curl]).output().unwrap();
    assert!(output.status.success(), "{curl}: {output:?}");
    metrics.check(&String::from_utf8(output.stdout).unwrap());
}
