//! A client of a running agent's `/snapshot.json`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use http::StatusCode;
use tokio::net::{TcpSocket, TcpStream};

use crate::client::snapshot::Snapshot;
use crate::client::top::connection::{Connection, SnapshotError};

/// An agent responds within this time even if kernel files are slow to read.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The connection was refused.
    #[error("no agent at {address}")]
    NoAgent { address: SocketAddr },
    /// The agent of this host has its page switched off.
    #[error("the agent at {address} denies access")]
    Off { address: SocketAddr },
    #[error(
        "cannot connect to {address}: {source}: set --listen-address to that of a running agent"
    )]
    Unreachable { address: SocketAddr, source: io::Error },
    #[error("{address} did not respond within {} s: check that an agent runs there, or set --listen-address", TIMEOUT.as_secs())]
    Silent { address: SocketAddr },
    #[error("{address} returned {status}: retry, or see the agent's log")]
    Failed { address: SocketAddr, status: StatusCode },
    #[error(
        "the agent at {address} denies other hosts access to its snapshot: run top on that host, or \
         `kubectl psi top` with the node's name"
    )]
    Denied { address: SocketAddr },
    #[error(
        "the server at {address} is not a psi-agent ({why}): set --listen-address to that of the \
         agent, or to an unused address"
    )]
    Foreign { address: SocketAddr, why: String },
}

/// The address to connect to for a listening address. A wildcard address becomes IPv4 loopback, which
/// works for `[::]` too, also on hosts without IPv6.
pub(super) fn reachable(listens_at: SocketAddr) -> SocketAddr {
    let ip = listens_at.ip().to_canonical();
    let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
    SocketAddr::new(ip, listens_at.port())
}

/// The snapshot of the agent at this address.
pub(super) async fn fetch(address: SocketAddr) -> Result<Snapshot, ClientError> {
    let is_own = is_own(address);
    let fetched = tokio::time::timeout(TIMEOUT, async {
        let stream = match connect(address, is_own).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                return Err(ClientError::NoAgent { address });
            }
            Err(source) => return Err(ClientError::Unreachable { address, source }),
        };
        let snapshot =
            async { Connection::new(stream, address.to_string()).await?.snapshot().await };
        snapshot.await.map_err(|error| match error {
            SnapshotError::Denied if is_own => ClientError::Off { address },
            SnapshotError::Denied => ClientError::Denied { address },
            SnapshotError::Failed(status) => ClientError::Failed { address, status },
            SnapshotError::Foreign(why) => ClientError::Foreign { address, why },
        })
    });
    fetched.await.unwrap_or(Err(ClientError::Silent { address }))
}

/// Whether it is an address of this host.
fn is_own(address: SocketAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address.ip(), 0)).is_ok()
}

/// Connects to an agent of this host from a loopback address, whatever address it listens on: agents
/// serve their snapshot to loopback without TLS and authentication.
async fn connect(address: SocketAddr, is_own: bool) -> io::Result<TcpStream> {
    let (socket, loopback): (_, IpAddr) = match address {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::LOCALHOST.into()),
    };
    if is_own {
        socket.bind(SocketAddr::new(loopback, 0))?;
    }
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
