//! Asks a running agent what it sees.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use http::header::{ACCEPT, HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::view::View;

/// Within this an agent answers even while the kernel's files are slow to read; people wait no
/// longer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Ten thousand cgroups take a tenth of it; whoever sends more is no agent.
const MAX_BYTES: usize = 64 << 20;

/// Why nothing came of asking, though somebody listens.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("cannot reach {address}: {source}: name a running agent's --listen-address")]
    Unreachable { address: SocketAddr, source: std::io::Error },
    #[error("{address} did not answer within {} s: is that the agent? name its --listen-address", TIMEOUT.as_secs())]
    Silent { address: SocketAddr },
    #[error("{address} answers {status}: ask again, or look at the agent's log")]
    Refused { address: SocketAddr, status: StatusCode },
    #[error(
        "the agent at {address} shows what it sees to its own host alone, or to nobody: run top \
         there, or see its --page"
    )]
    Closed { address: SocketAddr },
    #[error(
        "what answers at {address} is no psi-agent ({why}): name the agent's --listen-address, or \
         an address where nobody listens"
    )]
    Foreign { address: SocketAddr, why: String },
}

/// Where an agent that listens here is reached. One that listens everywhere is reached by IPv4: one
/// on `[::]` answers there too, and on a host without IPv6 there alone.
pub(super) fn reachable(listens_at: SocketAddr) -> SocketAddr {
    let ip = listens_at.ip();
    let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
    SocketAddr::new(ip, listens_at.port())
}

/// What the agent there sees; `None` where nobody listens.
pub(super) async fn ask(address: SocketAddr) -> Result<Option<View>, AskError> {
    let asked = tokio::time::timeout(TIMEOUT, async {
        let stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(source) => return Err(AskError::Unreachable { address, source }),
        };
        get(stream, address).await.map(Some)
    });
    asked.await.unwrap_or(Err(AskError::Silent { address }))
}

async fn get(stream: TcpStream, address: SocketAddr) -> Result<View, AskError> {
    let foreign = |why: &dyn std::fmt::Display| AskError::Foreign { address, why: why.to_string() };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| foreign(&error))?;
    // It ends with the sender; what ends it earlier, the sender tells.
    tokio::spawn(connection);
    let request = http::Request::get("/snapshot.json")
        .header(HOST, address.to_string())
        .header(ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|error| foreign(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| foreign(&error))?;
    let status = answer.status();
    // An agent has a snapshot, or says that the kernel did not tell it in time.
    if status.is_server_error() {
        return Err(AskError::Refused { address, status });
    }
    if status == StatusCode::FORBIDDEN {
        return Err(AskError::Closed { address });
    }
    if status != StatusCode::OK {
        return Err(foreign(&format_args!("it answers {status}")));
    }
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
    let body = body.map_err(|error| foreign(&error))?.to_bytes();
    View::parse(&body).map_err(|error| foreign(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_reached_on_loopback() {
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
