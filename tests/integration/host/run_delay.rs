//! Run delay of this host's own processes, read by the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::folder::Folder;
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

/// The lines of `check` about the CPU source in a mount namespace of its own, where the host's `/proc` is
/// mounted again with an option. The agent has a process namespace of its own, as in a pod, and runs as a
/// user without rights, in a group.
fn cpu_source_in_a_pod(folder: &Folder, own: &OwnCgroup, option: &str, group: &str) -> String {
    let script = "mount -t proc -o $1 proc \"$0/proc\" || exit 2; exec unshare --pid --fork --kill-child \
                  setpriv --reuid=65534 --regid=65534 --groups=\"$2\" --inh-caps=-all \
                  \"$0/psi-agent\" check --proc-root \"$0/proc\" --cgroup-root \"$3\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .args([Path::new(folder.text()), option.as_ref(), group.as_ref(), &own.path])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{option}: {text}{:?}", output.stderr);
    text[text.find("cpu source").expect("a CPU source") - 6..].to_owned()
}

#[test]
#[ignore = "needs root, to mount a /proc for itself, and a cgroup2 mount"]
fn a_proc_with_hidepid_is_named_as_the_cause_unless_the_agent_is_in_its_group() {
    let cpu = BusyCpu::share();
    let own = two_that_wait("hidepid", &cpu);
    let folder = Folder::new("hidepid");
    fs::create_dir(folder.0.join("proc")).unwrap();
    fs::copy(BINARY, folder.0.join("psi-agent")).unwrap();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let visible =
        "ok    cpu source run delay, chosen by auto: the host's processes are visible in ";
    for (option, group, expected) in [
        ("hidepid=off", "65534", ""),
        ("hidepid=invisible,gid=4711", "65534", "hidepid=invisible,gid=4711"),
        ("hidepid=invisible,gid=4711", "4711", ""),
        ("hidepid=noaccess", "65534", "hidepid=noaccess,gid=0"),
        ("hidepid=ptraceable,gid=4711", "4711", "hidepid=ptraceable,gid=4711"),
    ] {
        let text = cpu_source_in_a_pod(&folder, &own, option, group);
        if expected.is_empty() {
            assert!(text.starts_with(visible), "{option}: {text}");
        } else {
            let hidden =
                format!("warn  cpu source PSI, chosen by auto: /proc is mounted with {expected},");
            assert!(text.starts_with(&hidden), "{option}: {text}");
        }
    }
}
