//! The README's quick start on this host, with the output that it shows.

use std::process::Command;
use std::time::Duration;

use crate::support::agent::Agent;
use crate::support::cgroup::OwnCgroup;
use crate::support::console::shown_by;
use crate::support::wait_for;

/// Runs the program where `/sys/fs/cgroup` is cgroup v2 alone, as the README requires.
const ON_CGROUP_V2: &str =
    "umount -R -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec \"$0\" \"$@\"";

#[test]
#[ignore = "needs root, unshare and cgroup v2; takes 30 s: a score needs a history"]
fn the_quick_start_prints_what_the_readme_shows() {
    let shown = shown_by("README.md");
    let run = &shown[0];
    assert_eq!(run.command, "cargo run --release");
    // Something to score: a host without systemd has no units.
    let mut own = OwnCgroup::new("quick-start");
    own.make("unit");
    own.spawn("unit", "sleep 1000");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", ON_CGROUP_V2, crate::support::agent::BINARY]);
    let agent = Agent::start_by(command, &[]);
    // VMs of other tests may be what is scored first, and stop.
    let log = wait_for("the first score", Duration::from_secs(240), || {
        let log = agent.log();
        let at = log.find("Would publish")?;
        log[at..].find('\n').map(|end| log[..=at + end].to_owned())
    });
    // What else runs on this host decides the level.
    let log = ["medium", "high"]
        .iter()
        .fold(log, |log, level| log.replace(&format!("level=\"{level}\""), "level=\"low\""));
    let lines = log.lines().filter(|line| !line.contains("No contention"));
    run.check(&lines.map(|line| format!("{line}\n")).collect::<String>());
}
