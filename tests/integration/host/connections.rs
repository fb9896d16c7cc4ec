//! Connections without a request, until the server's own timeouts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

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
