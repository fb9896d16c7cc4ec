//! `psi-agent top`: one table through a pipe, and the live table in a real terminal.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::fixture::top::{NOBODY, check_refused, top};
use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::fake_node::FakeNode;
use crate::support::folder::Folder;
use crate::support::recorded_case::{flags_of_one_vm, start_on_case};
use crate::support::terminal::Terminal;
use crate::support::tls::Secret;
use crate::support::wait_for;

const LIMIT: Duration = Duration::from_secs(60);

fn recorded_agent() -> Agent {
    start_on_case("virt-launcher", &[])
}

fn table(address: &str, flags: &[String]) -> Vec<String> {
    let output = top(address, flags);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The row with this name, split into words.
fn row<'a>(lines: &'a [String], name: &str) -> Vec<&'a str> {
    let row = lines.iter().find(|line| line.starts_with(&format!("{name} ")));
    row.unwrap_or_else(|| panic!("no {name} in {lines:#?}")).split_whitespace().collect()
}

const HEADER: [&str; 9] =
    ["VM", "CONTENTION", "CPUS", "CPU-WAIT", "NODE", "LIMIT", "RELIEF", "MEM-WAIT", "IO-WAIT"];

#[test]
#[ignore = "takes up to 10 s"]
fn through_a_pipe_one_table_of_a_running_agent_is_printed() {
    let agent = recorded_agent();
    // What the agent reads is its own affair: this process needs no roots.
    let lines = table(&agent.address, &[]);
    let version = env!("CARGO_PKG_VERSION");
    let source = format!(" UTC  agent {version} at {}", agent.address);
    assert!(lines[0].ends_with(&source), "{lines:#?}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let warming_up = format!("{}: warming up, ", host.trim());
    assert!(lines[1].starts_with(&warming_up), "{lines:#?}");
    assert_eq!(row(&lines, "VM"), HEADER);
    // Recorded pressure stands still, and nobody recorded CPU times.
    assert_eq!(row(&lines, "vms/demo")[6..], ["-", "0%", "0%"], "{lines:#?}");
    assert_eq!(row(&lines, "vms/demo")[2], "-", "{lines:#?}");
    assert_eq!(lines.len(), 7, "{lines:#?}");
}

#[test]
#[ignore = "takes up to 10 s"]
fn without_an_agent_the_kernel_is_read() {
    let lines = table(NOBODY, &flags_of_one_vm());
    let source = "UTC  read from the kernel: no snapshot from 127.0.0.1:1: Connection refused";
    assert!(lines[0].contains(source), "{lines:#?}");
    assert_eq!(row(&lines, "VM"), HEADER);
    // Without recorded CPU times the causes of CPU wait are not known.
    assert_eq!(row(&lines, "vms/demo")[1..], ["-", "-", "0%", "-", "-", "-", "0%", "0%"]);
    let roots: Vec<String> = flags_of_one_vm().into_iter().take(2).collect();
    let lines = table(NOBODY, &roots);
    assert_eq!(row(&lines, "CONTAINER")[0], "CONTAINER");
}

#[test]
#[ignore = "takes up to 20 s"]
fn on_a_host_without_pods_vms_and_units_are_shown_by_their_names() {
    let service = r"system.slice/dev\x2dserver.service";
    let vm = r"machine.slice/machine-qemu\x2d1\x2dweb.scope";
    for (units, population, heading, shown) in [
        (&[service, "user.slice"][..], "units", "UNIT", "dev-server.service"),
        (&[service, vm], "VMs", "VM", "web"),
    ] {
        let host = FakeNode::of_units("top-units", units);
        let lines = table(NOBODY, &[&host.flags()[..], &["--cpu-source=psi".into()]].concat());
        assert!(lines[1].contains(&format!("  {population} contended -  ")), "{lines:#?}");
        assert_eq!(row(&lines, heading)[1..], HEADER[1..]);
        assert_eq!(row(&lines, shown)[1], "0%");
        assert_eq!(lines.len(), 7, "{lines:#?}");
    }
}

#[test]
#[ignore = "takes up to 10 s"]
fn the_reason_of_a_missing_score_is_shown_with_its_remedy() {
    let host = FakeNode::of_units("top-empty", &[]);
    let lines = table(NOBODY, &[&host.flags()[..], &["--cpu-source=psi".into()]].concat());
    let expected = "No score: CPU contention is unknown, since there are no pods and no systemd units: \
                    set --cgroup-root to the host's cgroup2 mount.";
    assert_eq!(lines[4..lines.len() - 2].join(" "), expected, "{lines:#?}");
}

/// An address of this host other than loopback. No packet is sent.
fn address_of_this_host() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("a route");
    format!("{}:0", socket.local_addr().unwrap().ip())
}

#[test]
#[ignore = "needs openssl, and an address other than loopback"]
fn an_agent_of_this_host_is_shown_whatever_address_it_listens_on() {
    let secret = Secret::new("top-address");
    for flags in [flags_of_one_vm(), [flags_of_one_vm(), secret.flags().to_vec()].concat()] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let agent = Agent::start_at(&address_of_this_host(), Command::new(BINARY), &flags);
        let lines = table(&agent.address, &[]);
        assert!(lines[0].ends_with(&format!(" at {}", agent.address)), "{lines:#?}");
        assert_eq!(row(&lines, "VM"), HEADER);
    }
}

#[test]
#[ignore = "takes up to 10 s"]
fn where_the_agent_of_this_host_denies_access_the_kernel_is_read() {
    let agent = start_on_case("virt-launcher", &["--page=off".into()]);
    let lines = table(&agent.address, &flags_of_one_vm());
    let reason = format!("no snapshot from {}: it returned 403 Forbidden", agent.address);
    assert!(lines[0].ends_with(&format!("read from the kernel: {reason}")), "{lines:#?}");
    assert_eq!(row(&lines, "vms/demo")[1], "-");
}

#[test]
#[ignore = "takes up to 20 s"]
fn where_a_server_of_this_host_is_silent_the_kernel_is_read_after_12_s() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let lines = table(&address, &flags_of_one_vm());
    assert!(lines[0].ends_with(": it did not respond within 12 s"), "{lines:#?}");
    assert_eq!(row(&lines, "vms/demo")[1], "-");
}

#[test]
#[ignore = "takes up to 5 s"]
fn the_agent_of_another_host_is_not_replaced_by_the_kernel() {
    check_refused(&top("192.0.2.1:1", &[]), "no snapshot from 192.0.2.1:1: ");
}

#[test]
#[ignore = "takes up to 10 s"]
fn an_api_server_that_does_not_list_the_pods_is_reported_in_one_line() {
    let folder = Folder::new("top-kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{NOBODY}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}]});
    folder.write("kubeconfig", &config.to_string());
    let path = folder.path("kubeconfig");
    let flags = ["--kubeconfig", &path, "--node-name", "n", "--log-level", "error"];
    let output = top(NOBODY, &[&flags_of_one_vm()[..2], &flags.map(str::to_owned)].concat());
    check_refused(&output, "the API server did not list the pods of node n within 10 s");
}

/// A VM in real cgroups, with a file of pods.
struct OwnVm {
    cgroup: OwnCgroup,
    container: String,
    folder: Folder,
    cpu: BusyCpu,
}

impl OwnVm {
    fn new(name: &str) -> Self {
        let cgroup = OwnCgroup::new(name);
        let (uid, id) = ("11111111-2222-3333-4444-555555555555", "d".repeat(64));
        let pod = json!({
            "metadata": {"name": "virt-launcher-busy-x", "namespace": "shop", "uid": uid,
                "labels": {"kubevirt.io": "virt-launcher"},
                "annotations": {"kubevirt.io/domain": "busy"}},
            "status": {"containerStatuses": [{"name": "compute", "image": "i",
                "containerID": format!("containerd://{id}")}]},
        });
        let folder = Folder::new(name);
        folder.write("pods.json", &json!({"items": [pod]}).to_string());
        let (container, cpu) = (format!("kubepods/burstable/pod{uid}/{id}"), BusyCpu::share());
        let mut own = Self { cgroup, container, folder, cpu };
        own.cgroup.make(&own.container);
        own.cgroup.spawn(&own.container, &own.cpu.spin());
        own
    }

    fn flags(&self) -> Vec<String> {
        let root = self.cgroup.path.to_str().unwrap();
        let pods = self.folder.path("pods.json");
        ["--cgroup-root", root, "--pods-file", &pods].map(str::to_owned).to_vec()
    }

    /// CPU time that it has used, in seconds.
    fn used(&self) -> f64 {
        let stat = self.cgroup.path.join(&self.container).join("cpu.stat");
        let stat = fs::read_to_string(stat).unwrap();
        let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
        used.parse::<f64>().unwrap() / 1e6
    }
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn the_cpu_use_of_a_real_vm_is_shown_with_and_without_an_agent() {
    let vm = OwnVm::new("top-used");
    let start = vm.used();
    // How much of its CPU it gets in a window depends on the machine's other loads, so that a window without
    // any is passed over; no window can have more than the kernel counted from the start to now.
    let check = |table: &dyn Fn() -> Vec<String>| {
        wait_for("CPU use is shown", LIMIT, || {
            let lines = table();
            let used = row(&lines, "shop/busy")[2].parse::<f64>().unwrap();
            let counted = vm.used() - start;
            assert!(used <= counted + 0.005, "{counted} s were used: {lines:#?}");
            (used > 0.0).then_some(())
        });
    };
    check(&|| table(NOBODY, &vm.flags()));
    let flags = vm.flags();
    let agent = Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    check(&|| table(&agent.address, &[]));
}

/// Runs `top`, and records the settings of the terminal before and after.
fn start_top(name: &str, address: &str, flags: &[String]) -> Terminal {
    let folder = std::env::temp_dir();
    let folder = folder.join(format!("psi-agent-test-{}-{name}", std::process::id()));
    let folder = folder.display();
    let flags = flags.join(" ");
    let script = format!(
        "echo shell; stty -g > {folder}/before; \
         sh -c 'echo $$ > {folder}/pid; exec {BINARY} top --listen-address {address} {flags}'; \
         echo ended: $?; stty -g > {folder}/after; exec sleep 60"
    );
    Terminal::start(name, &script)
}

/// Checks that `top` has exited with 0 and restored the terminal.
fn check_restored(terminal: &Terminal) {
    let has_ended = |lines: &[String]| lines.iter().any(|line| line == "ended: 0");
    let lines = terminal.wait_for("the end", has_ended);
    assert_eq!(lines[..2], ["shell", "ended: 0"], "{lines:#?}");
    let settings = |file: &str| {
        let path = terminal.folder.path(file);
        wait_for("the settings", LIMIT, || {
            fs::read_to_string(&path).ok().filter(|settings| !settings.is_empty())
        })
    };
    assert_eq!(settings("before"), settings("after"));
    assert_eq!(terminal.told("#{alternate_on} #{cursor_flag}"), "0 1");
}

fn has_table(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("vms/demo"))
}

#[test]
#[ignore = "needs tmux"]
fn in_a_terminal_it_updates_follows_the_size_and_restores_the_terminal() {
    let agent = recorded_agent();
    let terminal = start_top("live", &agent.address, &[]);
    // In the first frame all values are unknown, and so there are no columns.
    let has_columns = |lines: &[String]| lines.iter().any(|line| line.contains("MEM-WAIT"));
    let lines = terminal.wait_for("the table", has_columns);
    assert!(lines[0].ends_with(&format!("at {}", agent.address)), "{lines:#?}");
    assert!(!row(&lines, "VM").contains(&"RELIEF"), "{lines:#?}");
    assert!(lines.iter().any(|line| line.ends_with("q quit")), "{lines:#?}");
    assert_eq!(terminal.told("#{alternate_on} #{cursor_flag}"), "1 0");

    let first = lines[0].clone();
    terminal.wait_for("a later look", |lines| has_table(lines) && lines[0] != first);

    terminal.tmux(&["resize-window", "-x", "40", "-y", "12"]);
    let narrow = |lines: &[String]| has_table(lines) && lines.iter().all(|line| line.len() <= 40);
    let lines = terminal.wait_for("a narrow table", narrow);
    assert!(lines.len() <= 12 && lines.iter().all(|line| line.len() <= 40), "{lines:#?}");

    terminal.tmux(&["resize-window", "-x", "100", "-y", "24"]);
    terminal.wait_for("a wide table", |lines| has_table(lines) && !narrow(lines));
    terminal.tmux(&["send-keys", "/", "none"]);
    terminal.wait_for("a filter", |lines| lines.iter().any(|line| line == "VM /none_"));
    terminal.tmux(&["send-keys", "Escape"]);
    terminal.wait_for("all rows", has_table);
    terminal.tmux(&["send-keys", "?"]);
    terminal.wait_for("help", |lines| lines.iter().any(|line| line.starts_with("CONTENTION: ")));
    terminal.tmux(&["send-keys", "x"]);
    terminal.wait_for("the table again", has_table);
    terminal.tmux(&["send-keys", "q"]);
    check_restored(&terminal);
}

#[test]
#[ignore = "needs tmux"]
fn colours_can_be_switched_off() {
    let agent = recorded_agent();
    for (name, flag, is_coloured) in [("colour", "auto", true), ("plain", "never", false)] {
        let terminal = start_top(name, &agent.address, &[format!("--color={flag}")]);
        terminal.wait_for("the table", has_table);
        // The header is bold.
        let shown = terminal.tmux(&["capture-pane", "-p", "-e"]);
        assert_eq!(shown.contains("\u{1b}[1m"), is_coloured, "{shown}");
    }
}

#[test]
#[ignore = "needs tmux"]
fn ctrl_c_escape_and_sigterm_quit() {
    let agent = recorded_agent();
    for (name, keys) in [("ctrl-c", &["C-c"][..]), ("escape", &["Escape"]), ("sigterm", &[])] {
        let terminal = start_top(name, &agent.address, &[]);
        terminal.wait_for("the table", has_table);
        if keys.is_empty() {
            let pid = fs::read_to_string(terminal.folder.path("pid")).unwrap();
            assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success(), "{pid}");
        }
        for key in keys {
            terminal.tmux(&["send-keys", key]);
        }
        check_restored(&terminal);
    }
}

#[test]
#[ignore = "needs tmux"]
fn when_the_agent_ends_the_kernel_is_read() {
    let agent = recorded_agent();
    let terminal = start_top("ends", &agent.address, &flags_of_one_vm());
    terminal.wait_for("the agent's", |lines| has_table(lines) && lines[0].contains(" agent 0"));
    drop(agent);
    let says_so = |lines: &[String]| lines.iter().any(|line| line.contains("read from the kernel"));
    let own = |lines: &[String]| has_table(lines) && says_so(lines);
    terminal.wait_for("its own", own);
    terminal.tmux(&["send-keys", "q"]);
    check_restored(&terminal);
}

#[test]
#[ignore = "needs tmux"]
fn when_nothing_can_be_read_the_last_table_stays_with_the_error() {
    let agent = recorded_agent();
    let flags = ["--cgroup-root", "/nowhere"].map(str::to_owned);
    let terminal = start_top("silent", &agent.address, &flags);
    terminal.wait_for("the table", has_table);
    let says_so = |lines: &[String]| {
        has_table(lines) && lines.iter().any(|line| line.starts_with("cannot open the cgroup root"))
    };
    agent.signal("STOP");
    terminal.wait_for("what is wrong", says_so);
    agent.signal("CONT");
    terminal.wait_for("the table alone", |lines| has_table(lines) && !says_so(lines));
    terminal.tmux(&["send-keys", "q"]);
    check_restored(&terminal);
}

#[test]
#[ignore = "needs tmux"]
fn an_error_at_start_is_printed_before_the_terminal_is_taken_over() {
    let flags = ["--cgroup-root", "/nowhere"].map(str::to_owned);
    let terminal = start_top("nowhere", NOBODY, &flags);
    let lines = terminal.wait_for("the end", |lines| lines.iter().any(|line| line == "ended: 1"));
    assert!(lines[1].starts_with("psi-agent: cannot open the cgroup root: /nowhere"), "{lines:#?}");
}
