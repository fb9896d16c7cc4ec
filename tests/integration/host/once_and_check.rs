//! `once` and `check` on this host, also as a user without rights.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::check::check_host;
use crate::support::agent::BINARY;
use crate::support::cgroup::OwnCgroup;
use crate::support::fake_node::FakeNode;
use crate::support::folder::Folder;
use crate::support::written_files::pressure;

#[test]
#[ignore = "takes 3 s"]
fn a_reader_that_goes_away_is_no_error() {
    let host = FakeNode::of_units("pipe", &["ssh.service"]);
    for number in 0..400 {
        host.write(&format!("cgroup/group{number}/cpu.pressure"), &pressure(1.0));
    }
    let mut child = Command::new(BINARY)
        .arg("once")
        .args(host.flags())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{said}");
}

#[test]
#[ignore = "takes 5 s"]
fn once_prints_the_score_of_its_window_or_logs_why_there_is_none() {
    let hosts = [FakeNode::of_units("scored", &["ssh.service"]), FakeNode::new("unscored")];
    for (host, has_score) in hosts.iter().zip([true, false]) {
        let output = Command::new(BINARY).arg("once").args(host.flags()).output().unwrap();
        let metrics = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(metrics.contains("\npsi_agent_node_score_ratio "), has_score, "{metrics}");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let reasons = log.lines().filter(|line| {
            line.contains(
                "No score: CPU contention is unknown, since the kernel reports no pressure: boot",
            )
        });
        assert_eq!(reasons.count(), usize::from(!has_score), "{log}");
    }
}

/// Runs the agent as a user without rights, who may read the binary.
fn run_as_nobody(name: &str, arguments: &[&str]) -> (i32, String) {
    let copy = std::env::temp_dir().join(format!("psi-agent-nobody-{}-{name}", std::process::id()));
    fs::copy(BINARY, &copy).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(arguments)
        .output()
        .unwrap();
    fs::remove_file(&copy).unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
#[ignore = "needs root, to become a user without rights, and a cgroup2 mount"]
fn check_reports_that_pressure_is_refused_and_what_takes_its_place() {
    let host = FakeNode::with_pressure("refused");
    for resource in ["cpu", "memory", "io"] {
        let file = format!("proc/pressure/{resource}");
        fs::set_permissions(host.path(&file), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let own = OwnCgroup::new("refused");
    let proc = host.path("proc");
    let flags = ["--proc-root", &proc, "--cgroup-root", own.path.to_str().unwrap()];
    let (code, text) = run_as_nobody("refused", &[&["check"], &flags[..]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("permission denied (EACCES"), "{text}");
    assert!(text.contains("the root cgroup's files are read instead"), "{text}");
    assert!(text.contains("SELinux"), "{text}");

    let once = ["once", "--families", "node"];
    let (code, text) = run_as_nobody("refused", &[&once, &flags[..]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("\nnode_pressure_cpu_waiting_seconds_total 0"), "{text}");
    assert!(text.contains("psi_agent_pressure_supported{resource=\"memory\"} 1\n"), "{text}");
}

#[test]
#[ignore = "needs root, to become a user without rights"]
fn check_reports_that_the_root_cannot_be_read() {
    let host = FakeNode::with_pressure("unreadable-root");
    fs::set_permissions(host.path("cgroup"), fs::Permissions::from_mode(0o000)).unwrap();
    let (proc, root) = (host.path("proc"), host.path("cgroup"));
    let flags = ["check", "--proc-root", &proc, "--cgroup-root", &root];
    let (code, text) = run_as_nobody("unreadable", &flags);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("cannot open the cgroup root: {root}: permission denied")));
}

#[test]
#[ignore = "needs a host with cgroup2 and PSI"]
fn check_reports_that_all_is_well_on_this_host() {
    let (code, text) = check_host(&[]);
    assert_eq!(code, 0, "{text}");
    for expected in ["ok    kernel", "ok    cgroup v2", "ok    pressure", "ok    cgroup PSI"] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
}

#[test]
#[ignore = "needs root, to mount a hierarchy of cgroup v1 for itself"]
fn outside_a_cluster_cgroup_v1_is_refused_with_its_remedy() {
    let folder = Folder::new("cgroup1-mount");
    fs::create_dir(folder.0.join("systemd")).unwrap();
    let script = "mount -t cgroup -o none,name=psi-agent-test cgroup \"$0/systemd\" && exec \"$@\"";
    for root in [folder.0.clone(), folder.0.join("systemd")] {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .args([&*folder.0, Path::new(BINARY)])
            .args(["--listen-address", "127.0.0.1:0", "--cgroup-root"])
            .arg(&root)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let expected = format!(
            "{} is not cgroup v2: no pods can be read, and there is no score: boot with \
             systemd.unified_cgroup_hierarchy=1",
            root.display()
        );
        assert!(said.contains(&expected), "{said}");
    }
}
