//! Responses to Prometheus, probes, browsers and careless clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::agent::{Agent, BINARY};
use crate::support::exposition::parse;
use crate::support::wait_for;

/// An agent on a case of the golden ones: nothing of this host is read.
fn agent() -> Agent {
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/pure-v2");
    let (proc, root) = (format!("{case}/proc"), format!("{case}/sys/fs/cgroup"));
    Agent::start(&["--proc-root", &proc, "--cgroup-root", &root])
}

#[test]
fn metrics_are_text_0_0_4_and_gzip_on_request() {
    let agent = agent();
    let plain = agent.request("GET /metrics HTTP/1.1\r\nHost: test\r\n");
    assert_eq!(plain.status, 200);
    let format = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(plain.headers.contains(format), "{}", plain.headers);
    assert!(!plain.headers.contains("content-encoding"));
    assert!(parse(&plain.text()).iter().all(|series| series.value.is_finite()));

    let packed = agent.request("GET /metrics HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n");
    assert!(packed.headers.contains("content-encoding: gzip"), "{}", packed.headers);
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_string(&mut unpacked).unwrap();
    let of_kernel = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("container_"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(of_kernel(&unpacked).len() > 50);
    assert_eq!(of_kernel(&unpacked), of_kernel(&plain.text()));
}

#[test]
fn head_has_no_body_and_other_methods_and_paths_are_refused() {
    let agent = agent();
    let status = |head: &str| agent.request(&format!("{head} HTTP/1.1\r\nHost: test\r\n")).status;
    let head = agent.request("HEAD /metrics HTTP/1.1\r\nHost: test\r\n");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(status("POST /metrics"), 405);
    assert_eq!(status("DELETE /"), 405);
    assert_eq!(status("GET /etc/passwd"), 404);
    assert_eq!(status("GET /metrics/"), 404);
    assert_eq!(status("GET /metrics?debug=1"), 200);
}

#[test]
fn probes_answer_ok_once_there_is_a_sample() {
    let agent = agent();
    assert_eq!(agent.get("/livez"), "ok\n");
    assert_eq!(agent.get("/readyz"), "ok\n");
}

#[test]
fn the_snapshot_has_the_node_and_every_cgroup() {
    let snapshot: serde_json::Value = serde_json::from_str(&agent().get("/snapshot.json")).unwrap();
    assert_eq!(snapshot["node"]["memory_total"], 2_097_152);
    assert_eq!(snapshot["node"]["cpus"], 2);
    let cgroups = snapshot["cgroups"].as_array().unwrap();
    let ids: Vec<&str> = cgroups.iter().map(|cgroup| cgroup["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["/", "/db.service"]);
    assert_eq!(cgroups[1]["cpu_limit"], 1.5);
    assert_eq!(cgroups[1]["memory_max"], 67_108_864.0);
    let agent = &snapshot["agent"];
    let tick = agent["ticked_at_ms"].as_u64().unwrap();
    assert!(tick <= snapshot["observed_at_ms"].as_u64().unwrap(), "{agent}");
    assert_eq!(agent["publish"]["mode"], "dry-run");
    assert!(agent["pods_listed"].is_null() && agent["pods_error"].is_null(), "{agent}");
    assert_eq!(agent["read_errors"]["malformed"], 0);
    // Absent is not zero: this case has no memory.high.
    assert!(cgroups[1]["memory_high"].is_null());
}

#[test]
fn the_page_requests_nothing_from_elsewhere() {
    let agent = agent();
    let page = agent.request("GET / HTTP/1.1\r\nHost: test\r\n");
    assert!(page.headers.contains("default-src 'none'"), "{}", page.headers);
    let text = page.text();
    assert!(text.contains("snapshot.json"));
    for foreign in ["http://", "https://", "src=", "@import", "innerHTML"] {
        assert!(!text.contains(foreign), "{foreign}");
    }
}

#[test]
fn concurrent_requests_share_one_reading() {
    let agent = agent();
    let count = "psi_agent_sample_duration_seconds_count{reason=\"scrape\"} ";
    let readings = || {
        let text = agent.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(count)).unwrap();
        line.parse::<u64>().unwrap()
    };
    let start = Instant::now();
    let before = readings();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| agent.get("/metrics"));
        }
    });
    let after = readings();
    // One a second at the most, however many ask.
    assert!(after - before <= start.elapsed().as_secs() + 1, "{before} before, {after} after");
}

#[test]
fn connections_without_a_request_are_closed() {
    let agent = agent();
    let idle: Vec<TcpStream> =
        (0..64).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    let mut slow = TcpStream::connect(&agent.address).unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: t").unwrap();
    // At the connection limit, this waits until the first of them is closed.
    assert_eq!(agent.get("/livez"), "ok\n");
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    }
}

#[test]
fn garbage_and_endless_headers_are_refused() {
    let agent = agent();
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let header = format!("X: {}\r\n", "x".repeat(1000));
    let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
    for _ in 0..100 {
        if stream.write_all(header.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{answer:?}");

    let mut stream = TcpStream::connect(&agent.address).unwrap();
    stream.write_all(b"\x16\x03\x01 no http at all\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    assert_eq!(agent.get("/livez"), "ok\n");
}

/// A host whose first sample never ends: opening a FIFO waits for its other end.
struct SilentHost(std::path::PathBuf);

impl SilentHost {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("psi-agent-{}-fifo", std::process::id()));
        for name in ["proc/pressure", "cgroup"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        let fifo = Command::new("mkfifo").arg(folder.join("proc/pressure/cpu")).status().unwrap();
        assert!(fifo.success());
        Self(folder)
    }
}

impl Drop for SilentHost {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn before_the_first_sample_requests_are_answered_and_sigterm_ends_the_agent() {
    let host = SilentHost::new();
    let path = |name: &str| host.0.join(name).to_str().unwrap().to_owned();
    let mut child = Command::new(BINARY)
        .args(["--listen-address", "127.0.0.1:0", "--log-format", "text"])
        .args(["--proc-root", &path("proc"), "--cgroup-root", &path("cgroup")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let listening = log.find_map(|line| {
        let (_, rest) = line.split_once("Listening address=")?;
        Some(rest.split(' ').next().unwrap().to_owned())
    });
    let mut agent = Agent::other(child, listening.expect("the agent listens"));
    let get = |path: &str| {
        let answer = agent.request(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n"));
        (answer.status, answer.text())
    };
    assert_eq!(get("/livez"), (200, "ok: waiting for the first sample\n".into()));
    for path in ["/readyz", "/metrics", "/snapshot.json"] {
        assert_eq!(get(path), (503, "waiting for the first sample\n".into()), "{path}");
    }
    assert_eq!(get("/").0, 200);
    agent.signal("TERM");
    let ended =
        wait_for("the agent ends", Duration::from_secs(5), || agent.child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}
