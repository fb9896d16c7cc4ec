//! Accepts connections and serves HTTP/1.1 on them, with TLS or without. Limits the number of
//! connections, their buffers, and the time in which a client makes no progress.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::authorization::Peer;
use super::body::Body;
use super::places::{Activity, Place, Places};
use super::tls::Tls;

/// Bytes that the kernel buffers for a connection in each direction. The kernel doubles this for
/// its own overhead, and charges it to the agent's memory limit.
const SOCKET_BUFFER: u32 = 64 * 1024;
/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 128;
/// Time until the end of a TLS handshake, or until the first byte of a request without TLS.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two requests of a connection: longer than a usual scrape interval.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time after which the kernel closes a connection whose client acknowledges or accepts no data.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts to accept while that fails: most often EMFILE, which doesn't go away at once.
const ACCEPT_INTERVAL: Duration = Duration::from_secs(1);
/// Time for responses in progress when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The first byte of a TLS handshake, with which no HTTP request begins.
const TLS_HANDSHAKE: u8 = 0x16;

pub trait Service: Send + Sync + 'static {
    fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Response<Body>> + Send;
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: choose another {flag}")]
pub struct ListenError {
    address: SocketAddr,
    flag: &'static str,
    source: std::io::Error,
}

/// A server that listens, but does not accept connections yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    tls: Option<Tls>,
    address: SocketAddr,
    pub url: String,
}

impl Server {
    /// Listens on this address. With `tls`, plain HTTP is accepted too; the service's rules decide
    /// what is served over it. On a host without IPv6, all addresses are those of IPv4.
    pub async fn listen(address: SocketAddr, tls: Option<Tls>) -> Result<Self, ListenError> {
        Self::listen_as("--listen-address", address, tls).await
    }

    /// A server for probes alone, without TLS; `None` without an address.
    pub async fn listen_for_probes(
        address: Option<SocketAddr>,
    ) -> Result<Option<Self>, ListenError> {
        let Some(address) = address else { return Ok(None) };
        Self::listen_as("--probe-address", address, None).await.map(Some)
    }

    async fn listen_as(
        flag: &'static str,
        address: SocketAddr,
        tls: Option<Tls>,
    ) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address, flag, source };
        let listener = bind_any(address, bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self { listener, tls, address, url: format!("{scheme}://{address}/") })
    }

    /// Serves until `stop` completes, then lets responses in progress finish.
    pub(crate) async fn serve(self, service: Arc<impl Service>, stop: impl Future<Output = ()>) {
        let Self { listener, tls, address, .. } = self;
        tracing::info!(%address, "Listening");
        let (graceful, mut places) = (GracefulShutdown::new(), Places::default());
        let mut stop = pin!(stop);
        let mut is_failing = false;
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    is_failing = false;
                    let peer = peer.ip().to_canonical();
                    places.make_room(peer);
                    let activity = Activity::new();
                    let http = Http {
                        service: Arc::clone(&service),
                        activity: activity.clone(),
                        watcher: graceful.watcher(),
                    };
                    let task = tokio::spawn(serve_connection(stream, peer, tls.clone(), http));
                    places.take(Place { peer, activity, task: task.abort_handle() });
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "Cannot accept connections; trying again each second");
                    }
                    sleep(ACCEPT_INTERVAL).await;
                }
            }
        }
        drop(listener);
        places.close_new();
        if timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
            tracing::info!("Responses in progress were cut off");
        }
    }
}

/// Accepted connections inherit the options of the listener.
async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    SockRef::from(&socket).set_tcp_user_timeout(Some(WRITE_TIMEOUT))?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn bind_any<L, F: Future<Output = std::io::Result<L>>>(
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> F,
) -> std::io::Result<L> {
    let bound = bind(address).await;
    if bound.is_ok() || address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return bound;
    }
    bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).await.or(bound)
}

/// Completes on SIGTERM or SIGINT, from the moment of this call on.
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn serve_connection(
    stream: TcpStream,
    address: IpAddr,
    tls: Option<Tls>,
    http: Http<impl Service>,
) {
    match timeout(OPENING_TIMEOUT, open(stream, tls)).await {
        Ok(Ok((stream, is_encrypted))) => {
            http.serve(stream, Peer::new(address, is_encrypted)).await
        }
        Ok(Err(error)) => tracing::debug!(%error, %address, "TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "No request or TLS handshake in time"),
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// The stream of requests, and whether it is encrypted, which the first byte shows.
async fn open(stream: TcpStream, tls: Option<Tls>) -> std::io::Result<(Box<dyn Stream>, bool)> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    match tls {
        Some(tls) if first == [TLS_HANDSHAKE] => Ok((Box::new(tls.accept(stream).await?), true)),
        _ => Ok((Box::new(stream), false)),
    }
}

/// Serves the requests of one connection.
struct Http<S> {
    service: Arc<S>,
    activity: Activity,
    watcher: Watcher,
}

impl<S: Service> Http<S> {
    async fn serve(self, stream: impl Stream, peer: Peer) {
        let respond = service_fn(|request| {
            let in_progress = self.activity.begin_request();
            let service = &self.service;
            async move {
                let mut response = service.respond(request, peer).await;
                response.body_mut().hold(in_progress);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(32 * 1024)
            .serve_connection(TokioIo::new(stream), respond);
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!(%error, address = %peer.address, "Connection failed");
        }
    }
}

#[cfg(test)]
mod tests;
