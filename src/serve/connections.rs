//! Accepts connections and serves HTTP/1.1 on them, with TLS or without. Limits the number of
//! connections, their buffers, and the time in which a client makes no progress.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::authorization::Peer;
use super::body::Body;
use super::places::Places;
use super::tls::Tls;
use crate::clock;

/// Bytes that the kernel buffers for a connection in each direction. The kernel doubles this for
/// its own overhead, and charges it to the agent's memory limit.
const SOCKET_BUFFER: u32 = 64 * 1024;
/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 128;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of the first request of a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two requests of a connection: longer than a usual scrape interval.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time in which a client that reads a response accepts at least one byte.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which a connection that is closed in favour of another one can send the rest of its last
/// response.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);
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
        let listening = async {
            let listener = bind_any(address, bind).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            listening.await.map_err(|source| ListenError { address, flag, source })?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self { listener, tls, address, url: format!("{scheme}://{address}/") })
    }

    /// Serves until `stop` completes, then lets responses in progress finish.
    pub(crate) async fn serve(self, service: Arc<impl Service>, stop: impl Future<Output = ()>) {
        let Self { listener, tls, address, .. } = self;
        tracing::info!(%address, "Listening");
        let (stop_connections, stopping) = watch::channel(false);
        let (places, mut left) = watch::channel(Places::default());
        let shared = Arc::new(ServerState { service, tls, places, stopping });
        let mut stop = pin!(stop);
        let mut is_failing = false;
        loop {
            // While all places are taken by responses in progress, further connections stay in the
            // kernel's queue.
            let accepting = async {
                // This waits for a free place. It does not fail, since `shared` holds the sender.
                let _ = left.wait_for(Places::have_room).await;
                listener.accept().await
            };
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = accepting => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    is_failing = false;
                    if let Some(held) = shared.take_place(peer.ip().to_canonical()) {
                        tokio::spawn(Arc::clone(&shared).serve_connection(stream, peer.ip(), held));
                    } else {
                        tracing::debug!(%peer, "Too many connections from this address");
                    }
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
        stop_connections.send_replace(true);
        if timeout(DRAIN_TIMEOUT, left.wait_for(Places::are_free)).await.is_err() {
            tracing::info!("Responses in progress were cut off");
        }
    }
}

/// Accepted connections inherit the sizes of the listener's buffers.
async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
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

struct ServerState<S> {
    service: Arc<S>,
    tls: Option<Tls>,
    places: watch::Sender<Places>,
    stopping: watch::Receiver<bool>,
}

/// A connection's place. It is free when the value is dropped.
struct HeldPlace {
    places: watch::Sender<Places>,
    id: u64,
    /// Completes when another connection gets the place.
    closing: oneshot::Receiver<()>,
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.places.send_modify(|places| places.leave(self.id));
    }
}

/// A request in progress. It ends when the value is dropped, which the response's body holds.
struct InProgress {
    places: watch::Sender<Places>,
    id: u64,
}

impl InProgress {
    fn begin(places: &watch::Sender<Places>, id: u64) -> Self {
        places.send_if_modified(|places| {
            places.begin_request(id);
            false
        });
        Self { places: places.clone(), id }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.places.send_modify(|places| places.end_request(self.id, clock::now().at));
    }
}

/// A connection whose first byte shows whether it uses TLS.
enum Stream {
    Tls(Box<TlsStream<WriteTimeout<TcpStream>>>),
    Plain(WriteTimeout<TcpStream>),
}

impl<S: Service> ServerState<S> {
    fn take_place(&self, peer: IpAddr) -> Option<HeldPlace> {
        let mut taken = None;
        self.places.send_if_modified(|places| {
            taken = places.take(peer, clock::now().at);
            false
        });
        let (id, closing) = taken?;
        Some(HeldPlace { places: self.places.clone(), id, closing })
    }

    async fn serve_connection(
        self: Arc<Self>,
        stream: TcpStream,
        address: IpAddr,
        mut held: HeldPlace,
    ) {
        let mut stopping = self.stopping.clone();
        let stream = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            _ = &mut held.closing => return,
            stream = timeout(HANDSHAKE_TIMEOUT, self.handshake(stream)) => stream,
        };
        match stream {
            Ok(Ok(Stream::Tls(stream))) => {
                self.serve_http(*stream, Peer::new(address, true), held).await
            }
            Ok(Ok(Stream::Plain(stream))) => {
                self.serve_http(stream, Peer::new(address, false), held).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, %address, "TLS handshake failed"),
            Err(_) => tracing::debug!(%address, "TLS handshake timed out"),
        }
    }

    async fn handshake(&self, stream: TcpStream) -> std::io::Result<Stream> {
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(WriteTimeout::new(stream))) };
        let mut first = [0; 1];
        let length = stream.peek(&mut first).await?;
        let stream = WriteTimeout::new(stream);
        if length == 1 && first != [TLS_HANDSHAKE] {
            return Ok(Stream::Plain(stream));
        }
        Ok(Stream::Tls(Box::new(tls.accept(stream).await?)))
    }

    async fn serve_http(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        mut held: HeldPlace,
    ) {
        let has_request = AtomicBool::new(false);
        let id = held.id;
        let respond = service_fn(|request: Request<Incoming>| {
            has_request.store(true, Ordering::Relaxed);
            let shared = Arc::clone(&self);
            let in_progress = InProgress::begin(&self.places, id);
            async move {
                let mut response = shared.service.respond(request, peer).await;
                response.body_mut().hold(in_progress);
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = pin!(
            hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_TIMEOUT)
                .max_buf_size(32 * 1024)
                .serve_connection(TokioIo::new(stream), respond)
        );
        let mut stopping = self.stopping.clone();
        let mut is_closing = false;
        loop {
            tokio::select! {
                _ = &mut held.closing => break,
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, address = %peer.address, "Connection failed");
                    }
                    return;
                }
                _ = stopping.wait_for(|stopping| *stopping), if !is_closing => is_closing = true,
                () = sleep(REQUEST_TIMEOUT), if !has_request.load(Ordering::Relaxed) => {
                    // The first request may have come in the meantime.
                    if !has_request.load(Ordering::Relaxed) {
                        tracing::debug!(address = %peer.address, "No request in time");
                        return;
                    }
                }
            }
            if is_closing && !has_request.load(Ordering::Relaxed) {
                return;
            }
            if is_closing {
                connection.as_mut().graceful_shutdown();
            }
        }
        if has_request.load(Ordering::Relaxed) {
            connection.as_mut().graceful_shutdown();
            // It was idle, so at most the end of a response is lost.
            let _ = timeout(EVICTION_TIMEOUT, connection).await;
        }
    }
}

/// A stream that fails when a write makes no progress for [`WRITE_TIMEOUT`].
struct WriteTimeout<S> {
    stream: S,
    /// Runs while a write is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    fn new(stream: S) -> Self {
        Self { stream, deadline: None }
    }

    fn limited(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<std::io::Result<usize>>,
    ) -> Poll<std::io::Result<usize>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        deadline.as_mut().poll(context).map(|()| Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.limited(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
