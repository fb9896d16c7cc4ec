//! A request for an agent's `/snapshot.json`, over any connection to it.

use anyhow::{anyhow, ensure};
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

/// A connection to an agent.
pub struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    /// Speaks HTTP to the agent at the other end of `stream`.
    pub async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends when `requests` is dropped, which also reports its errors.
        tokio::spawn(connection);
        Ok(Self(requests))
    }

    pub async fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let Self(requests) = self;
        requests.ready().await?;
        let request = http::Request::get("/snapshot.json")
            // Agents reject names other than this and IP addresses.
            .header(HOST, "localhost")
            .body(Empty::new())?;
        let response = requests.send_request(request).await?;
        let status = response.status();
        ensure!(status.is_success(), "it returned {status}");
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
        let body = body.map_err(|error| anyhow!(error))?.to_bytes();
        Ok(decode(&body)?)
    }
}
