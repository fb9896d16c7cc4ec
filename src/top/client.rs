//! A client of a running agent's `/snapshot.json`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::bail;
use tokio::net::{TcpSocket, TcpStream};

use crate::client::snapshot::Snapshot;
use crate::client::top::connection::{Connection, SnapshotError};

/// An agent responds within this time even if kernel files are slow to read.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The address to connect to for a listening address. A wildcard address becomes IPv4 loopback, which
/// works for `[::]` too, also on hosts without IPv6.
pub(super) fn reachable(listens_at: SocketAddr) -> SocketAddr {
    let ip = listens_at.ip().to_canonical();
    let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
    SocketAddr::new(ip, listens_at.port())
}

/// The snapshot of the agent at this address, or why no agent serves one to this host: the kernel can be
/// read instead.
pub(super) async fn fetch(address: SocketAddr) -> anyhow::Result<Result<Snapshot, String>> {
    let Ok(fetched) = tokio::time::timeout(TIMEOUT, request(address)).await else {
        bail!(
            "{address} did not respond within {} s: check that an agent runs there, or set \
             --listen-address",
            TIMEOUT.as_secs()
        );
    };
    fetched
}

async fn request(address: SocketAddr) -> anyhow::Result<Result<Snapshot, String>> {
    let is_own = is_own(address);
    let stream = match connect(address, is_own).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Ok(Err(format!("no agent at {address}")));
        }
        Err(error) => bail!(
            "cannot connect to {address}: {error}: set --listen-address to that of a running agent"
        ),
    };
    let snapshot = async { Connection::new(stream).await?.snapshot().await };
    match snapshot.await {
        Ok(snapshot) => Ok(Ok(snapshot)),
        // Its page is switched off.
        Err(SnapshotError::Denied) if is_own => {
            Ok(Err(format!("the agent at {address} denies access")))
        }
        Err(SnapshotError::Denied) => bail!(
            "the agent at {address} denies other hosts access to its snapshot: run top on that host, \
             or `kubectl psi top` with the node's name"
        ),
        Err(SnapshotError::Failed(status)) => {
            bail!("{address} returned {status}: retry, or see the agent's log")
        }
        Err(SnapshotError::Foreign(why)) => bail!(
            "the server at {address} is not a psi-agent ({why}): set --listen-address to that of the \
             agent, or to an unused address"
        ),
    }
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
