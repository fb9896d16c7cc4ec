//! Run delay of this host's own processes, read by the agent.

use std::process::Command;
use std::time::Duration;

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);

/// Two containers that wait for one CPU, one beside the other.
fn two_that_wait(name: &str, cpu: &BusyCpu) -> OwnCgroup {
    let mut own = OwnCgroup::new(name);
    for pod in 1..=2 {
        let container = format!("kubepods/pod{pod}/{pod:064}");
        own.make(&container);
        own.spawn(&container, &cpu.spin());
    }
    own
}

fn check(own: &OwnCgroup, launcher: &[&str]) -> (bool, String) {
    let root = own.path.to_str().unwrap();
    let agent = ["check", "--cpu-source", "run-delay", "--cgroup-root", root];
    let line = [launcher, &[BINARY], &agent].concat();
    let output = Command::new(line[0]).args(&line[1..]).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
#[ignore = "needs root and a cgroup2 mount"]
fn run_delay_is_read_where_the_hosts_processes_are_visible() {
    let cpu = BusyCpu::share();
    let own = two_that_wait("run-delay", &cpu);
    let root = own.path.to_str().unwrap();
    let flags = ["--cpu-source", "run-delay", "--cgroup-root", root, "--families", "pressure"];
    let agent = Agent::start(&flags);
    let snapshot = wait_for("half of what both want is waited for", MINUTE, || {
        let snapshot: serde_json::Value =
            serde_json::from_str(&agent.get("/snapshot.json")).unwrap();
        let latest = snapshot["node"]["latest"]["cpu"].as_f64()?;
        (latest > 0.3).then_some(snapshot)
    });
    assert_eq!(snapshot["basis"], "run-delay/6");
    let (passes, text) = check(&own, &[]);
    assert!(
        passes && text.contains("run delay: the host's processes are visible in /proc"),
        "{text}"
    );

    // In a process namespace of its own, with a `/proc` of its own, no other is to be seen.
    let alone = ["unshare", "--pid", "--fork", "--mount-proc"];
    let (passes, text) = check(&own, &alone);
    assert!(
        !passes && text.contains("--proc-root does not show all threads of 2 of 2 containers"),
        "{text}"
    );
}
