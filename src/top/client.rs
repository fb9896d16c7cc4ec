//! A client of a running agent's `/snapshot.json`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::snapshot::Snapshot;
use crate::client::top::connection::Connection;

/// An agent responds within 10 s, also if the kernel's files are slow to read.
const TIMEOUT: Duration = Duration::from_secs(12);

/// The address to connect to for a listening address. A wildcard address becomes IPv4 loopback, which
/// works for `[::]` too, also on hosts without IPv6.
pub(super) fn reachable(listens_at: SocketAddr) -> SocketAddr {
    let ip = listens_at.ip().to_canonical();
    let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
    SocketAddr::new(ip, listens_at.port())
}

pub(super) async fn fetch(address: SocketAddr) -> anyhow::Result<Snapshot> {
    let request = async { Connection::new(connect(address).await?).await?.snapshot().await };
    let fetched = tokio::time::timeout(TIMEOUT, request).await;
    let silent = |_| Err(anyhow!("it did not respond within {} s", TIMEOUT.as_secs()));
    fetched.unwrap_or_else(silent).with_context(|| format!("no snapshot from {address}"))
}

/// Whether it is an address of this host.
pub(super) fn is_own(address: SocketAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address.ip(), 0)).is_ok()
}

/// Connects to an agent of this host from a loopback address, whatever address it listens on: agents
/// serve their snapshot to loopback without TLS and authentication.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let (socket, loopback): (_, IpAddr) = match address {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::LOCALHOST.into()),
    };
    if is_own(address) {
        socket.bind(SocketAddr::new(loopback, 0))?;
    }
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::client::cluster::block_on;

    #[test]
    fn an_agent_on_a_wildcard_address_is_reached_on_loopback() {
        for (listens_at, expected) in [
            ("0.0.0.0:9942", "127.0.0.1:9942"),
            ("[::]:1", "127.0.0.1:1"),
            ("[::1]:1", "[::1]:1"),
            ("10.0.0.7:9942", "10.0.0.7:9942"),
            ("[::ffff:10.0.0.7]:9942", "10.0.0.7:9942"),
        ] {
            assert_eq!(reachable(listens_at.parse().unwrap()), expected.parse().unwrap());
        }
    }

    #[test]
    fn an_address_of_another_host_is_not_own() {
        assert!(is_own("127.0.0.1:9942".parse().unwrap()));
        assert!(!is_own("192.0.2.1:9942".parse().unwrap()));
    }

    /// The address of a server that sends this response to the first request.
    fn responding(response: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(response);
        });
        address
    }

    #[test]
    fn the_response_of_another_server_is_an_error_with_a_reason() {
        for (response, expected) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi!"[..], "expected value"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "missing field"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "error reading a body"),
            (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "it returned 404 Not Found"),
            (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "it returned 503 Service"),
            (b"SSH-2.0-OpenSSH\r\n", "invalid HTTP"),
            (b"", "connection closed"),
        ] {
            let address = responding(response);
            let error = block_on(fetch(address)).unwrap_err();
            let error = format!("{error:#}");
            let start = format!("no snapshot from {address}: {expected}");
            assert!(error.starts_with(&start), "{error}, {start}");
        }
    }
}
