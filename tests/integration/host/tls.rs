//! TLS and the page: access by address and protocol, and certificates that change.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::agent::{Agent, BINARY};
use crate::support::recorded_case::{flags_of_one_vm, start_on_case};
use crate::support::tls::{SERVER_NAME, Secret};
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);

fn start(more: &[String]) -> Agent {
    start_on_case("virt-launcher", more)
}

fn plain(agent: &Agent, path: &str) -> (u16, String) {
    let answer = agent.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n"));
    (answer.status, answer.text())
}

#[test]
#[ignore = "needs openssl"]
fn with_tls_plain_http_serves_loopback_all_but_metrics() {
    let secret = Secret::new("plain");
    let agent = start(&secret.flags());
    assert!(agent.log().contains("serving https://"), "{}", agent.log());
    let metrics = secret.client().ask(&agent.address, "/metrics", None);
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("\npsi_agent_certificate_reads_total{result=\"refused\"} 0\n"));
    for path in ["/", "/snapshot.json", "/livez", "/readyz"] {
        assert_eq!(plain(&agent, path).0, 200, "{path}");
        assert_eq!(secret.client().ask(&agent.address, path, None).status, 200, "{path}");
    }
    let (status, text) = plain(&agent, "/metrics");
    assert_eq!(status, 400);
    assert!(text.contains("use https://"), "{text}");

    let top = Command::new(BINARY)
        .args(["top", "--listen-address", &agent.address])
        .args(flags_of_one_vm())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.status.success() && said.contains(&agent.address), "{said}");
}

#[test]
#[ignore = "needs openssl"]
fn silent_and_malformed_clients_delay_no_other() {
    let secret = Secret::new("silent");
    let agent = start(&secret.flags());
    let mut silent: Vec<TcpStream> =
        (0..30).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    for (at, stream) in silent.iter_mut().enumerate() {
        // The beginning of a handshake, or its first byte, or nothing.
        let hello = &b"\x16\x03\x01\x02\x00"[..at % 3 * 2];
        std::io::Write::write_all(stream, hello).unwrap();
    }
    let mut nonsense = TcpStream::connect(&agent.address).unwrap();
    std::io::Write::write_all(&mut nonsense, &[0x16; 400]).unwrap();
    assert_eq!(secret.client().ask(&agent.address, "/metrics", None).status, 200);
    for mut stream in silent.into_iter().chain([nonsense]) {
        stream.set_read_timeout(Some(MINUTE)).unwrap();
        // Closed by the agent, within the read's time-out.
        let ended = stream.read_to_end(&mut Vec::new());
        let reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended.map_or_else(reset, |_| true));
    }
}

#[test]
#[ignore = "needs openssl"]
fn a_certificate_changes_under_load_and_a_broken_one_changes_nothing() {
    let mut secret = Secret::new("renewed");
    let agent = start(&secret.flags());
    let (stop, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let client = secret.client();
    let first = secret.certificate();
    let served = || {
        let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n";
        let (answer, certificate) = client.get(&agent.address, head).expect("a scrape");
        assert_eq!(answer.status, 200);
        certificate
    };
    let reads = |result: &str| {
        let text = client.ask(&agent.address, "/metrics", None).text();
        let start = format!("psi_agent_certificate_reads_total{{result=\"{result}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned));
        line.unwrap().parse::<u32>().unwrap()
    };
    std::thread::scope(|scope| {
        let scrapers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        served();
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // Whatever ends the load's end too, or a failure here would wait for it for ever.
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert!(served() == first);
            secret.renew();
            let second = secret.certificate();
            assert!(second != first);
            wait_for("the new certificate", MINUTE, || (served() == second).then_some(()));
            // New connections have the new one, all of them.
            assert!((0..20).all(|_| served() == second));

            secret.break_it();
            wait_for("it is refused", MINUTE, || (reads("refused") >= 2).then_some(()));
            assert!(served() == second);

            secret.renew();
            let third = secret.certificate();
            wait_for("one that fits", MINUTE, || (served() == third).then_some(()));
            assert_eq!(reads("loaded"), 2);
            let scraped = || (answers.load(Ordering::Relaxed) > 100).then_some(());
            wait_for("a hundred scrapes", MINUTE, scraped);
        }));
        stop.store(true, Ordering::Relaxed);
        for scraper in scrapers {
            scraper.join().expect("no scrape fails");
        }
        told.expect("the certificate is served as it changes");
    });
    println!("{} scrapes, none failed", answers.load(Ordering::Relaxed));
    let said = agent.log();
    assert_eq!(said.matches("Cannot serve the new certificate").count(), 1, "{said}");
    assert_eq!(said.matches("Serving a new certificate").count(), 2, "{said}");
    assert!(said.contains("tls.key"), "{said}");
}

#[test]
#[ignore = "needs openssl"]
fn unusable_certificate_files_end_the_agent_at_once() {
    let mut secret = Secret::new("broken");
    secret.break_it();
    let [_, certificate, _, key] = secret.flags();
    let run = |certificate: &str, key: &str| {
        let output = Command::new(BINARY)
            .args(["--listen-address", "127.0.0.1:0", "--log-level", "error"])
            .args(flags_of_one_vm())
            .args(["--tls-cert-file", certificate, "--tls-private-key-file", key])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let check = Command::new(BINARY)
        .arg("check")
        .args(secret.flags())
        .args(flags_of_one_vm())
        .output()
        .unwrap();
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.code() == Some(1) && said.contains("FAIL  tls "), "{said}");
    let mismatch = run(&certificate, &key);
    assert!(mismatch.contains("cannot serve TLS with") && mismatch.contains(&key), "{mismatch}");
    let absent = run("/nowhere/tls.crt", &key);
    assert!(absent.contains("cannot read /nowhere/tls.crt: No such file"), "{absent}");
    let swapped = run(&certificate, &certificate);
    assert!(swapped.contains("no private key in PEM"), "{swapped}");
    let swapped = run(&key, &key);
    assert!(swapped.contains("no certificate in PEM"), "{swapped}");
    assert!(!swapped.contains("BEGIN EC"), "{swapped}");
}

/// An agent in a network of its own, where loopback has an address that is none of loopback's.
struct Elsewhere {
    agent: Agent,
    pid: String,
    port: String,
}

const OTHER_ADDRESS: &str = "10.9.9.9";

impl Elsewhere {
    fn new(more: &[String]) -> Self {
        let mut command = Command::new("unshare");
        let script =
            format!("ip link set lo up && ip addr add {OTHER_ADDRESS}/32 dev lo && exec \"$@\"");
        command.args(["--net", "sh", "-c", &script, "sh", BINARY]);
        let flags = [flags_of_one_vm(), more.to_vec()].concat();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        // All that the network has: IPv4 comes as a part of IPv6.
        let agent = Agent::start_at("[::]:0", command, &flags);
        let port = agent.address.rsplit(':').next().unwrap().to_owned();
        Self { pid: agent.child.id().to_string(), agent, port }
    }

    /// The status and the text of an answer, asked from the address that is asked.
    fn get(&self, scheme: &str, host: &str, path: &str, more: &[&str]) -> (u16, String) {
        let url = format!("{scheme}://{host}:{}{path}", self.port);
        let output = Command::new("nsenter")
            .args(["--net", "--target", &self.pid, "curl", "-sS", "--max-time", "30", "-g"])
            .args(["--noproxy", "*", "-w", "\n%{http_code}", &url])
            .args(more)
            .output()
            .expect("nsenter and curl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        let (text, status) = said.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), text.to_owned())
    }
}

#[test]
#[ignore = "needs root, to make a network of its own, iproute2 and curl"]
fn the_page_is_served_to_loopback_by_default() {
    let closed = Elsewhere::new(&[]);
    for local in ["127.0.0.1", "[::1]"] {
        for path in ["/", "/snapshot.json", "/metrics", "/livez"] {
            assert_eq!(closed.get("http", local, path, &[]).0, 200, "{local}{path}");
        }
    }
    for path in ["/", "/snapshot.json"] {
        let (status, text) = closed.get("http", OTHER_ADDRESS, path, &[]);
        assert_eq!(status, 403, "{text}");
        assert!(text.contains("kubectl port-forward") && text.contains("--page"), "{text}");
    }
    assert_eq!(closed.get("http", OTHER_ADDRESS, "/metrics", &[]).0, 200);
    assert_eq!(closed.get("http", OTHER_ADDRESS, "/livez", &[]).0, 200);

    let open = Elsewhere::new(&["--page=anywhere".into()]);
    assert_eq!(open.get("http", OTHER_ADDRESS, "/snapshot.json", &[]).0, 200);
    let off = Elsewhere::new(&["--page=off".into()]);
    assert_eq!(off.get("http", "127.0.0.1", "/", &[]).0, 403);
    drop((closed.agent, open.agent, off.agent));
}

#[test]
#[ignore = "needs root, to make a network of its own, iproute2, curl and openssl"]
fn from_elsewhere_plain_http_gets_nothing_of_an_agent_with_tls() {
    let secret = Secret::new("elsewhere");
    let there = Elsewhere::new(&secret.flags());
    for path in ["/", "/snapshot.json", "/metrics", "/livez", "/elsewhere"] {
        let (status, text) = there.get("http", OTHER_ADDRESS, path, &[]);
        assert_eq!(status, 400, "{path}: {text}");
        assert!(text.contains("use https://"), "{text}");
    }
    let authority = secret.authority();
    let connect = format!("{SERVER_NAME}:{port}:{OTHER_ADDRESS}:{port}", port = there.port);
    let trust = ["--cacert", authority.to_str().unwrap(), "--connect-to", &connect];
    assert_eq!(there.get("https", SERVER_NAME, "/metrics", &trust).0, 200);
    assert_eq!(there.get("https", SERVER_NAME, "/livez", &trust).0, 200);
    assert_eq!(there.get("https", SERVER_NAME, "/", &trust).0, 403);
    assert_eq!(there.get("http", "127.0.0.1", "/", &[]).0, 200);
    drop(there.agent);
}
