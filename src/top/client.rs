//! A client of a running agent's `/snapshot.json`.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use tokio::net::TcpStream;

use crate::client::top::View;
use crate::client::top::snapshot::{SnapshotError, get};

/// An agent responds within this time even if kernel files are slow to read.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why the server at the address returned no snapshot.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error(
        "cannot connect to {address}: {source}: set --listen-address to that of a running agent"
    )]
    Unreachable { address: SocketAddr, source: std::io::Error },
    #[error("{address} did not respond within {} s: check that an agent runs there, or set --listen-address", TIMEOUT.as_secs())]
    Silent { address: SocketAddr },
    #[error("{address} returned {status}: retry, or see the agent's log")]
    Failed { address: SocketAddr, status: StatusCode },
    #[error(
        "the agent at {address} denies access to its snapshot: run top on its host, or change its \
         --page"
    )]
    Forbidden { address: SocketAddr },
    #[error(
        "the server at {address} is not a psi-agent ({why}): set --listen-address to that of the \
         agent, or to an unused address"
    )]
    Foreign { address: SocketAddr, why: String },
}

/// The address to connect to for a listening address. A wildcard address becomes IPv4 loopback, which
/// works for `[::]` too, also on hosts without IPv6.
pub(super) fn reachable(listens_at: SocketAddr) -> SocketAddr {
    let ip = listens_at.ip();
    let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
    SocketAddr::new(ip, listens_at.port())
}

/// The snapshot of the agent at this address; `None` if the connection is refused.
pub(super) async fn fetch(address: SocketAddr) -> Result<Option<View>, ClientError> {
    let fetched = tokio::time::timeout(TIMEOUT, async {
        let stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(source) => return Err(ClientError::Unreachable { address, source }),
        };
        let snapshot = get(stream, &address.to_string()).await;
        snapshot.map(Some).map_err(|error| match error {
            SnapshotError::Failed(status) => ClientError::Failed { address, status },
            SnapshotError::Forbidden => ClientError::Forbidden { address },
            SnapshotError::Foreign(why) => ClientError::Foreign { address, why },
        })
    });
    fetched.await.unwrap_or(Err(ClientError::Silent { address }))
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
        ] {
            assert_eq!(reachable(listens_at.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
