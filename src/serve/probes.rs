//! The kubelet's probes on a separate address, so that other clients can't take all connections.

use std::future::pending;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};

use super::authorization::Peer;
use super::body::{Body, method_not_allowed, text};
use super::connections::{Server, Service};

pub(crate) const LIVEZ: &str = "/livez";
pub(crate) const READYZ: &str = "/readyz";

/// A service that the kubelet probes.
pub(crate) trait ProbeTarget: Send + Sync + 'static {
    /// Whether the process has to be restarted.
    fn livez(&self) -> Response<Body>;

    /// Whether it has what it needs to respond.
    fn readyz(&self) -> Response<Body>;
}

struct Probes<S>(Arc<S>);

impl<S: ProbeTarget> Service for Probes<S> {
    async fn respond(&self, request: Request<Incoming>, _: Peer) -> Response<Body> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return method_not_allowed("GET, HEAD");
        }
        match request.uri().path() {
            LIVEZ => self.0.livez(),
            READYZ => self.0.readyz(),
            _ => text(StatusCode::NOT_FOUND, "Not found. Try /livez or /readyz.\n"),
        }
    }
}

/// Serves the probes of a service forever. Without a server, it waits forever.
pub(crate) async fn serve_probes(server: Option<Server>, service: Arc<impl ProbeTarget>) {
    match server {
        Some(server) => server.serve(Probes(service).into(), pending()).await,
        None => pending().await,
    }
}
