//! A request for an agent's `/snapshot.json`, over any connection to it.

use http::StatusCode;
use http::header::HOST;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::json::decode;
use crate::snapshot::Snapshot;

/// Size limit of a response, in bytes. The snapshot of 10,000 cgroups has a tenth of this size.
const MAX_BYTES: usize = 64 << 20;

/// Why a server returned no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("it returned {0}")]
    Failed(StatusCode),
    /// The page is off, or needs TLS, a token, or a connection from the agent's own host.
    #[error("it denies access to its snapshot")]
    Denied,
    #[error("it is not a psi-agent ({0})")]
    Foreign(String),
}

impl SnapshotError {
    fn foreign(why: impl ToString) -> Self {
        Self::Foreign(why.to_string())
    }
}

/// A connection to an agent.
pub struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    /// Speaks HTTP to the agent at the other end of `stream`.
    pub async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, SnapshotError> {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (requests, connection) = handshake.map_err(SnapshotError::foreign)?;
        // It ends when `requests` is dropped, which also reports its errors.
        tokio::spawn(connection);
        Ok(Self(requests))
    }

    pub async fn snapshot(&mut self) -> Result<Snapshot, SnapshotError> {
        let Self(requests) = self;
        requests.ready().await.map_err(SnapshotError::foreign)?;
        let request = http::Request::get("/snapshot.json")
            // Agents reject names other than this and IP addresses.
            .header(HOST, "localhost")
            .body(Empty::new())
            .map_err(SnapshotError::foreign)?;
        let response = requests.send_request(request).await.map_err(SnapshotError::foreign)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(SnapshotError::Denied);
            }
            status if status.is_server_error() => return Err(SnapshotError::Failed(status)),
            status => return Err(SnapshotError::Foreign(format!("it returns {status}"))),
        }
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
        let body = body.map_err(SnapshotError::foreign)?.to_bytes();
        decode(&body).map_err(SnapshotError::foreign)
    }
}
