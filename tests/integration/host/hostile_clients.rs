//! Clients that keep connections, don't read, or send too much, from several addresses of loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

use crate::support::agent::{Agent, Answer, BINARY, get_from};
use crate::support::exposition::parse;
use crate::support::fake_node::FakeNode;
use crate::support::listed_nodes::BridgeOfMany;
use crate::support::recorded_case::flags_of_one_vm;
use crate::support::{free_port, wait_for};

/// Less than the time limits of clients and responses, 30 s, for which one that keeps others waiting would do so.
const PROMPT: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);
/// Of daemonset/base and daemonset/components/bridge.
const MEMORY_LIMIT: f64 = 64.0 * 1024.0 * 1024.0;

/// A connection from the address `127.0.1.N`.
fn connect_from(number: u8, address: &str) -> TcpStream {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connection = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 1, number), 0).into())?;
        socket.connect(address.parse().unwrap()).await?.into_std()
    };
    let stream = event_loop.block_on(connection).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

/// An address that nothing listens on.
fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A node with so many cgroups of containers, whose metrics are long.
fn large_node(name: &str, containers: u32) -> FakeNode {
    let node = FakeNode::with_pressure(name);
    for number in 0..containers {
        let cgroup = format!("cgroup/system.slice/service-{number}.service");
        for resource in ["cpu", "memory", "io"] {
            let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
            node.write(&format!("{cgroup}/{resource}.pressure"), text);
        }
    }
    node
}

fn probe(address: &str) -> std::io::Result<Answer> {
    get_from(address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n")
}

/// Bytes that the kernel holds for the clients of a port, as `ss` shows them.
fn unsent(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let own = format!(":{port:04X}");
    let sockets = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = sockets.filter(|fields| fields[1].ends_with(&own));
    own.map(|fields| u64::from_str_radix(fields[4].split(':').next().unwrap(), 16).unwrap()).sum()
}

#[test]
#[ignore = "needs loopback addresses beside 127.0.0.1"]
fn two_hundred_idle_connections_keep_no_client_and_no_probe_waiting() {
    let probes = free_address();
    let flags = flags_of_one_vm();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let agent = Agent::start(&[&flags[..], &["--probe-address", &probes]].concat());
    let idle: Vec<TcpStream> =
        (0..200).map(|number| connect_from(number / 10, &agent.address)).collect();
    let started = Instant::now();
    for _ in 0..20 {
        agent.get("/livez");
        assert_eq!(probe(&probes).unwrap().status, 200);
    }
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    drop(idle);
}

#[test]
#[ignore = "needs loopback addresses beside 127.0.0.1"]
fn clients_that_do_not_read_pin_little_memory_and_delay_no_other() {
    let probes = free_address();
    let node = large_node("unread", 3_000);
    let mut flags: Vec<String> = node.flags().into();
    flags.extend(["--scope=all".into(), format!("--probe-address={probes}")]);
    let agent = Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    wait_for("a sample", LIMIT, || (probe(&probes).unwrap().text() == "ok\n").then_some(()));
    assert!(agent.get("/metrics").len() > 1024 * 1024);
    let mut unread = Vec::new();
    for number in 0..100 {
        let mut stream = connect_from(number / 10, &agent.address);
        // It may be closed in favour of a later one.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        unread.push(stream);
    }
    std::thread::sleep(Duration::from_secs(3));
    let port = agent.address.rsplit(':').next().unwrap().parse().unwrap();
    let (unsent, peak) = (unsent(port), agent.peak_memory());
    println!("unsent: {unsent} bytes, resident: {peak} bytes at most");
    assert!(unsent > 0 && unsent < 12 * 1024 * 1024, "{unsent}");
    assert!(peak < MEMORY_LIMIT, "{peak}");
    assert_eq!(probe(&probes).unwrap().status, 200);
    let started = Instant::now();
    assert!(agent.get("/metrics").len() > 1024 * 1024);
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

#[test]
#[ignore = "needs loopback addresses beside 127.0.0.1"]
fn a_bridge_refuses_a_million_names_and_keeps_its_memory() {
    let probes = free_address();
    let more = ["--probe-address", &probes];
    let scene = BridgeOfMany::start("names", Command::new(BINARY), 100, &more);
    let names = format!("{{\"NodeNames\":[{}\"a\"]}}", "\"a\",".repeat(1_000_000));
    assert!(names.len() < 4 * 1024 * 1024);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (address, names) = (&scene.bridge.address, &names);
            scope.spawn(move || {
                let mut stream = connect_from(number, address);
                let length = names.len();
                let head = "POST /prioritize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
                let head = format!("{head}Content-Length: {length}\r\n\r\n");
                // It may answer before it has read everything.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(names.as_bytes());
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                let answer = String::from_utf8_lossy(&answer);
                assert!(
                    answer.contains("more than 50000 commas") || answer.starts_with("HTTP/1.1 408"),
                    "{answer}"
                );
            });
        }
        for _ in 0..10 {
            let started = Instant::now();
            assert_eq!(probe(&probes).unwrap().status, 200);
            assert!(started.elapsed() < PROMPT);
        }
    });
    let peak = scene.bridge.peak_memory();
    println!("resident: {peak} bytes at most");
    assert!(peak < MEMORY_LIMIT, "{peak}");
}

#[test]
#[ignore = "needs prlimit (util-linux)"]
fn without_descriptors_one_line_is_logged_and_connections_work_again_later() {
    let mut command = Command::new("prlimit");
    command.args(["--nofile=48", BINARY]);
    let flags = flags_of_one_vm();
    let agent = Agent::start_by(command, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let idle: Vec<TcpStream> =
        (0..60).map(|number| connect_from(number / 10, &agent.address)).collect();
    wait_for("no descriptor is left", LIMIT, || {
        agent.log().contains("Cannot accept connections").then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(agent.log().matches("Cannot accept").count(), 1, "{}", agent.log());
    drop(idle);
    agent.get("/livez");
}

#[test]
#[ignore = "takes seconds"]
fn a_log_that_nobody_reads_stops_nothing_and_its_lost_lines_are_counted() {
    let address = free_address();
    let mut child = Command::new(BINARY)
        .args(flags_of_one_vm())
        .args(["--listen-address", &address, "--log-level", "debug", "--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let unread = child.stderr.take();
    let agent = Agent::other(child, address);
    wait_for("it listens", LIMIT, || TcpStream::connect(&agent.address).ok());
    let dropped = || {
        let series = parse(&agent.get("/metrics"));
        let name = "psi_agent_log_lines_dropped_total";
        series.iter().find(|series| series.name == name).unwrap().value
    };
    wait_for("a sample", LIMIT, || {
        let ready = get_from(&agent.address, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n");
        (ready.ok()?.status == 200).then_some(())
    });
    assert_eq!(dropped(), 0.0);
    // Each is a line; a pipe holds some 400.
    for _ in 0..2_500 {
        let mut stream = TcpStream::connect(&agent.address).unwrap();
        let _ = stream.write_all(b"no HTTP\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(dropped() > 100.0, "{}", dropped());
    agent.signal("TERM");
    let mut agent = agent;
    let ended = wait_for("it ends", LIMIT, || agent.child.try_wait().unwrap());
    assert!(ended.success());
    drop(unread);
}
