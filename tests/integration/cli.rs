//! Flags, exit codes and what people are told when something is wrong.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// One clear line, the exit code, and nothing of a backtrace.
fn check_refused(arguments: &[&str], code: i32, expected: &str) {
    let output = run(arguments);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(expected), "{said}");
    assert!(output.stdout.is_empty());
}

/// A fake host with nothing but `/proc` files.
struct FakeHost(PathBuf);

impl FakeHost {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        for (file, text) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        fs::create_dir_all(path.join("cgroup")).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";

const NODE_PRESSURE: [(&str, &str); 3] = [
    ("proc/pressure/cpu", PRESSURE),
    ("proc/pressure/memory", PRESSURE),
    ("proc/pressure/io", PRESSURE),
];

/// What `check` answers: its exit code and its lines.
fn check_host(arguments: &[&str]) -> (i32, String) {
    let output = run(&[&["check"], arguments].concat());
    assert!(output.stderr.is_empty(), "{}", said(&output));
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn check_fake(host: &FakeHost) -> (i32, String) {
    check_host(&["--proc-root", &host.path("proc"), "--cgroup-root", &host.path("cgroup")])
}

#[test]
fn a_wrong_command_line_exits_64_with_one_line() {
    check_refused(&["--foo"], 64, "unexpected argument '--foo' found; try --help");
    check_refused(&["--scope", "some"], 64, "[possible values: all, pods, virt-launcher]");
    check_refused(
        &["--scope", "virt-launcher"],
        64,
        "name a --kubeconfig or a --pods-file; try --help",
    );
    check_refused(&["dance"], 64, "unrecognized subcommand 'dance'");
    check_refused(&["--listen-address", "nowhere"], 64, "invalid value 'nowhere'");
    check_refused(&["--families", "pressure,love"], 64, "invalid value 'love'");
}

#[test]
fn a_wrong_environment_variable_is_a_wrong_command_line() {
    let output = Command::new(BINARY).env("PSI_AGENT_SCOPE", "some").output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", said(&output));
}

#[test]
fn help_and_version_are_answers() {
    let help = run(&["--help"]);
    assert!(help.status.success() && help.stderr.is_empty());
    let text = String::from_utf8(help.stdout).unwrap();
    for expected in ["once", "check", "--cgroup-root", "PSI_AGENT_SCOPE", "64"] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert_eq!(version, format!("psi-agent {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_occupied_port_is_named_with_its_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let host = FakeHost::new("port", &NODE_PRESSURE);
    let (proc, root) = (host.path("proc"), host.path("cgroup"));
    let flags = ["--listen-address", &address, "--proc-root", &proc, "--cgroup-root", &root];
    let expected = format!("cannot listen on {address}: choose another --listen-address");
    check_refused(&flags, 1, &expected);
}

#[test]
fn a_missing_root_is_named_with_errno_and_remedy() {
    for command in ["run", "once"] {
        let flags = [command, "--cgroup-root", "/nowhere"];
        let expected = "cannot open the cgroup root: /nowhere: not found (ENOENT: No such file or \
                        directory): set --cgroup-root to the cgroup2 mount";
        check_refused(&flags, 1, expected);
        check_refused(&[command, "--proc-root", "/nowhere"], 1, "--proc-root");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let host = FakeHost::new("pipe", &NODE_PRESSURE);
    for number in 0..400 {
        let folder = host.0.join(format!("cgroup/group{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("cpu.pressure"), PRESSURE).unwrap();
    }
    let mut child = Command::new(BINARY)
        .args(["once", "--proc-root", &host.path("proc"), "--cgroup-root", &host.path("cgroup")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", said(&output));
}

#[test]
fn once_prints_the_score_of_its_window_or_logs_why_there_is_none() {
    let without_pressure = [("proc/stat", "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")];
    for (name, files, has_score) in
        [("scored", &NODE_PRESSURE[..], true), ("unscored", &without_pressure[..], false)]
    {
        let host = FakeHost::new(name, files);
        let output = Command::new(BINARY)
            .args(["once", "--proc-root", &host.path("proc")])
            .args(["--cgroup-root", &host.path("cgroup")])
            .output()
            .unwrap();
        let metrics = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(metrics.contains("\npsi_agent_node_score "), has_score, "{metrics}");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let reasons = log.lines().filter(|line| {
            line.contains("No score: the contention of cpu and memory is unknown, since the kernel")
        });
        assert_eq!(reasons.count(), usize::from(!has_score), "{log}");
    }
}

#[test]
fn sigterm_and_sigint_stop_it_with_exit_code_0() {
    let host = FakeHost::new("signals", &NODE_PRESSURE);
    let (proc, root) = (host.path("proc"), host.path("cgroup"));
    for signal in ["TERM", "INT"] {
        let mut agent = Agent::start(&["--proc-root", &proc, "--cgroup-root", &root]);
        agent.signal(signal);
        assert!(agent.child.wait().unwrap().success(), "{signal}");
    }
}

#[test]
fn off_a_terminal_every_line_of_the_log_is_json() {
    let host = FakeHost::new("json", &NODE_PRESSURE);
    let mut child = Command::new(BINARY)
        .args(["--proc-root", &host.path("proc"), "--cgroup-root", &host.path("cgroup")])
        .args(["--listen-address", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut messages = std::io::BufRead::lines(log).map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        line["fields"]["message"].as_str().unwrap().to_owned()
    });
    assert_eq!(messages.next().unwrap(), "Listening");
    let message = messages.next().unwrap();
    assert!(message.contains("a replay") && message.contains("serving http://127."), "{message}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn check_says_that_there_is_no_cgroup_v2() {
    let mountinfo = "31 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
    let host = FakeHost::new("v1", &[("proc/self/mountinfo", mountinfo)]);
    let (code, text) = check_host(&["--proc-root", &host.path("proc")]);
    assert_eq!(code, 1);
    assert!(text.starts_with("FAIL  host       cgroup v2 is not mounted\n"), "{text}");
    assert!(text.contains("-> boot with systemd.unified_cgroup_hierarchy=1"), "{text}");
}

#[test]
fn check_says_that_psi_is_off_on_the_node() {
    let host = FakeHost::new("psi0", &[("proc/cmdline", "quiet psi=0 ro\n")]);
    let (code, text) = check_fake(&host);
    assert_eq!(code, 1);
    assert!(text.contains("FAIL  pressure   off in this kernel"), "{text}");
    assert!(text.contains("its command line has psi=0"), "{text}");
    assert!(text.contains("-> boot with psi=1"), "{text}");
}

#[test]
fn check_says_that_psi_is_off_for_a_cgroup() {
    let host = FakeHost::new("off", &NODE_PRESSURE);
    fs::create_dir(host.path("cgroup/quiet")).unwrap();
    fs::create_dir(host.path("cgroup/loud")).unwrap();
    fs::write(host.path("cgroup/cpu.pressure"), PRESSURE).unwrap();
    fs::write(host.path("cgroup/loud/cpu.pressure"), PRESSURE).unwrap();
    let (code, text) = check_fake(&host);
    assert_eq!(code, 0);
    assert!(text.contains("warn  cgroup PSI off for 1 of 3 cgroups, such as /quiet\n"), "{text}");
    let remedy = format!("-> echo 1 > {}\n", host.path("cgroup/quiet/cgroup.pressure"));
    assert!(text.contains(&remedy), "{text}");
}

#[test]
fn check_says_that_a_root_is_no_cgroupfs() {
    let host = FakeHost::new("replay", &NODE_PRESSURE);
    fs::write(host.path("cgroup/cpu.pressure"), PRESSURE).unwrap();
    let (code, text) = check_fake(&host);
    assert_eq!(code, 0);
    assert!(text.contains("is not a cgroup2 mount; its files are read as a copy"), "{text}");
}

#[test]
fn check_says_that_a_pressure_file_is_malformed() {
    let mut files = NODE_PRESSURE.to_vec();
    files[1].1 = "some avg10=nan\n";
    let host = FakeHost::new("malformed", &files);
    let (code, text) = check_fake(&host);
    assert_eq!(code, 1);
    assert!(text.contains("proc/pressure/memory: malformed in line 1"), "{text}");
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
fn check_says_that_pressure_is_refused_and_what_takes_its_place() {
    use std::os::unix::fs::PermissionsExt;
    let host = FakeHost::new("refused", &NODE_PRESSURE);
    for (file, _) in NODE_PRESSURE {
        fs::set_permissions(host.path(file), fs::Permissions::from_mode(0o000)).unwrap();
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
fn check_says_that_the_root_cannot_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let host = FakeHost::new("unreadable", &NODE_PRESSURE);
    fs::set_permissions(host.path("cgroup"), fs::Permissions::from_mode(0o000)).unwrap();
    let (proc, root) = (host.path("proc"), host.path("cgroup"));
    let flags = ["check", "--proc-root", &proc, "--cgroup-root", &root];
    let (code, text) = run_as_nobody("unreadable", &flags);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("cannot open the cgroup root: {root}: permission denied")));
}

#[test]
#[ignore = "needs a host with cgroup2 and PSI"]
fn check_says_that_all_is_well_on_this_host() {
    let (code, text) = check_host(&[]);
    assert_eq!(code, 0, "{text}");
    for expected in ["ok    kernel", "ok    cgroup v2", "ok    pressure", "ok    cgroup PSI"] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
}
