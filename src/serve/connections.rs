//! Accepts connections and serves HTTP/1.1 on them, with TLS or without. Limits the number of
//! connections, their buffers, and the time in which a client makes no progress.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::authorization::refusal;
use super::body::{Request, Response, holding, text};
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

/// Starts a server and serves until SIGTERM or SIGINT, or until the work beside it ends, which is then the
/// outcome.
pub(crate) async fn serve_until_stopped<S: Service, W: Future<Output = anyhow::Result<()>>>(
    start: impl Future<Output = anyhow::Result<(Server, Arc<S>, W)>>,
) -> anyhow::Result<()> {
    let mut stop = pin!(stop_signal().context("cannot handle signals")?);
    let (server, service, work) = tokio::select! {
        () = &mut stop => return Ok(()),
        started = start => started?,
    };
    tokio::select! {
        // Polled in order, so that "Listening" is logged before the work begins.
        biased;
        () = server.serve(service, stop) => {
            tracing::info!("Stopped");
            Ok(())
        }
        ended = work => ended,
    }
}

pub trait Service: Send + Sync + 'static {
    fn respond(&self, request: Request, peer: IpAddr) -> impl Future<Output = Response> + Send;
}

/// The responses of a service of any type, so that the binary has one copy of the server's code. The last argument:
/// whether the connection is plain although the server has TLS.
type Respond = dyn Fn(Request, IpAddr, bool) -> BoxFuture<'static, Response> + Send + Sync;

fn responses_of(service: Arc<impl Service>, only_probes: bool) -> Arc<Respond> {
    Arc::new(move |request, peer, is_plain| {
        if let Some((status, reason)) = refusal(peer, request.uri().path(), is_plain, only_probes) {
            return ready(text(status, reason)).boxed();
        }
        let service = Arc::clone(&service);
        async move { service.respond(request, peer).await }.boxed()
    })
}

/// A server that listens, but does not accept connections yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    /// Serves only the kubelet's probes, without TLS, so that other clients can't take all connections.
    probes: Option<TcpListener>,
    tls: Option<Tls>,
    pub url: String,
}

impl Server {
    /// Listens on these addresses. With `tls`, plain HTTP is accepted too, for what `authorization.rs` allows. On a
    /// host without IPv6, all addresses are those of IPv4.
    pub fn listen(
        address: SocketAddr,
        probe_address: Option<SocketAddr>,
        tls: Option<Tls>,
    ) -> anyhow::Result<Self> {
        let listener = listen("--listen-address", address)?;
        let probes = probe_address.map(|address| listen("--probe-address", address)).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}/", listener.local_addr()?);
        Ok(Self { listener, probes, tls, url })
    }

    /// Serves until `stop` completes, then lets responses in progress finish.
    pub(crate) async fn serve(self, service: Arc<impl Service>, stop: impl Future<Output = ()>) {
        let Self { listener, probes, tls, .. } = self;
        if let Some(probes) = probes {
            let respond = responses_of(Arc::clone(&service), true);
            tokio::spawn(accept(probes, None, respond, pending()));
        }
        accept(listener, tls, responses_of(service, false), stop).await;
    }
}

/// Accepts connections until `stop` completes.
async fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
    respond: Arc<Respond>,
    stop: impl Future<Output = ()>,
) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "Listening");
    }
    let (graceful, mut places) = (GracefulShutdown::new(), Places::default());
    let mut stop = pin!(stop);
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                is_failing = false;
                let peer = address.ip().to_canonical();
                let activity = Activity::new();
                let (respond, watcher) = (Arc::clone(&respond), graceful.watcher());
                let connection = Connection { peer, respond, activity: activity.clone(), watcher };
                let task = tokio::spawn(connection.open(stream, tls.clone()));
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

fn listen(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = or_ipv4(address, bind);
    bound.with_context(|| format!("cannot listen on {address}: choose another {flag}"))
}

fn or_ipv4<T>(
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let bound = bind(address);
    if bound.is_err() && address.ip() == Ipv6Addr::UNSPECIFIED {
        return bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).or(bound);
    }
    bound
}

/// Accepted connections inherit the options of the listener.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // The last part of a response does not wait until the client has acknowledged those before.
    socket.set_nodelay(true)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    SockRef::from(&socket).set_tcp_user_timeout(Some(WRITE_TIMEOUT))?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Completes on SIGTERM or SIGINT, from the moment of this call on.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// The stream of requests, and whether it is plain although the server has TLS: the first byte shows it.
async fn open(stream: TcpStream, tls: Option<Tls>) -> std::io::Result<(Box<dyn Stream>, bool)> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    match tls {
        Some(tls) if first == [TLS_HANDSHAKE] => Ok((Box::new(tls.accept(stream).await?), false)),
        tls => Ok((Box::new(stream), tls.is_some())),
    }
}

/// Serves the requests of one connection.
struct Connection {
    peer: IpAddr,
    respond: Arc<Respond>,
    activity: Activity,
    watcher: Watcher,
}

impl Connection {
    async fn open(self, stream: TcpStream, tls: Option<Tls>) {
        let address = self.peer;
        match timeout(OPENING_TIMEOUT, open(stream, tls)).await {
            Ok(Ok((stream, is_plain))) => self.serve(stream, is_plain).await,
            Ok(Err(error)) => tracing::debug!(%error, %address, "TLS handshake failed"),
            Err(_) => tracing::debug!(%address, "No request or TLS handshake in time"),
        }
    }

    async fn serve(self, stream: impl Stream, is_plain: bool) {
        let Self { peer, respond, activity, watcher } = self;
        let service = service_fn(|request: Request| {
            let in_progress = activity.begin_request();
            let response = respond(request, peer, is_plain);
            async move { Ok::<_, Infallible>(holding(response.await, in_progress)) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(32 * 1024)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, address = %peer, "Connection failed");
        }
    }
}

#[cfg(test)]
mod tests;
