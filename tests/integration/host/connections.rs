//! Connections without a request, and clients that do not read, until the timeouts of the server and
//! of the kernel.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::recorded_case::start_on_case;

#[test]
#[ignore = "takes 10 s"]
fn connections_without_a_request_are_closed() {
    let agent = start_on_case("pure-v2", &[]);
    let idle: Vec<TcpStream> =
        (0..64).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    let mut slow = TcpStream::connect(&agent.address).unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: t").unwrap();
    assert_eq!(agent.get("/livez"), "ok\n");
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    }
}

#[test]
#[ignore = "takes 30 s"]
fn a_client_that_does_not_read_is_cut_off() {
    let agent = start_on_case("virt-launcher", &[]);
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    let snapshots = b"GET /snapshot.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let started = Instant::now();
    let sending = std::thread::spawn({
        let mut stream = stream.try_clone().unwrap();
        // Until the agent, whose responses are not read, closes the connection.
        move || while stream.write_all(&snapshots).is_ok() {}
    });
    sending.join().unwrap();
    assert!(started.elapsed() > Duration::from_secs(25), "{:?}", started.elapsed());
    // What the kernel had received.
    let _ = stream.read_to_end(&mut Vec::new());
    assert_eq!(agent.get("/livez"), "ok\n");
}
