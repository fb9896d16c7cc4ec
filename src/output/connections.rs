//! Connections, from the first byte to the last: TLS or plain, one request after another. No client
//! is trusted: what it says must come in time, and the number of connections and their age are
//! bounded.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use super::answer::Answer;
use crate::doors::certificate::Tls;
use crate::doors::rules::Visit;

/// Prometheus, a probe, a few people: more at once is an attack or a defect.
const MAX_CONNECTIONS: usize = 64;
/// Time to shake hands, where there is TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to send a request's headers, also between two requests of one connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that reads slower than this gives its connection back.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(120);
/// How long answers under way may take when the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The first byte of a TLS handshake, which no HTTP begins with.
const HANDSHAKE: u8 = 0x16;

/// Who answers requests.
pub(crate) trait Service: Send + Sync + 'static {
    /// The answer to a request of somebody who comes from there.
    fn answer(
        &self,
        request: Request<Incoming>,
        visit: Visit,
    ) -> impl Future<Output = Response<Answer>> + Send;
}

/// A listener on this address. On all addresses of a host without IPv6, those of IPv4 are meant.
///
/// # Errors
/// When the system gives none.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    listen_by(address, TcpListener::bind).await
}

async fn listen_by<L, F: Future<Output = std::io::Result<L>>>(
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> F,
) -> std::io::Result<L> {
    let bound = bind(address).await;
    if bound.is_ok() || address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return bound;
    }
    bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).await.or(bound)
}

/// Until SIGTERM or SIGINT.
///
/// # Errors
/// When the system does not let it listen for them.
pub fn until_stopped() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Serves until `stop` is done, then lets answers under way end. With `tls`, plain HTTP too, as far
/// as the service's rules answer it.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    service: impl Service,
    stop: impl Future<Output = ()>,
) {
    let service = Arc::new(service);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        // A full house accepts nobody: the rest waits in the kernel's queue.
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let watcher = graceful.watcher();
                let (service, tls) = (Arc::clone(&service), tls.clone());
                tokio::spawn(async move {
                    welcome(stream, peer, tls, service, watcher).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most often: no use asking again at once.
                tracing::warn!(%error, "Cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::info!("Answers under way were cut off");
    }
}

/// Finds out whether this is TLS, and talks to it. It runs beside the accepting, which nobody holds
/// up by saying nothing.
async fn welcome(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Tls>,
    service: Arc<impl Service>,
    watcher: Watcher,
) {
    let visit = |is_encrypted| Visit::from(peer.ip(), is_encrypted);
    let Some(tls) = tls else {
        return converse(stream, peer, visit(false), service, watcher).await;
    };
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, async {
        let mut first = [0; 1];
        let length = stream.peek(&mut first).await?;
        if length == 1 && first != [HANDSHAKE] {
            return Ok(Handshake::Plain(stream));
        }
        tls.shake_hands(stream).await.map(|stream| Handshake::Tls(Box::new(stream)))
    });
    match shaken.await {
        Ok(Ok(Handshake::Tls(stream))) => {
            converse(*stream, peer, visit(true), service, watcher).await;
        }
        Ok(Ok(Handshake::Plain(stream))) => {
            converse(stream, peer, visit(false), service, watcher).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, %peer, "No TLS came of a connection"),
        Err(_) => tracing::debug!(%peer, "A handshake took too long"),
    }
}

/// What came of the first bytes.
enum Handshake<S> {
    Tls(Box<S>),
    Plain(TcpStream),
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    visit: Visit,
    service: Arc<impl Service>,
    watcher: Watcher,
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.answer(request, visit).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(32 * 1024)
        .serve_connection(TokioIo::new(stream), answer);
    match tokio::time::timeout(MAX_CONNECTION_AGE, watcher.watch(connection)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, %peer, "A connection ended early"),
        Err(_) => tracing::debug!(%peer, "A connection grew too old"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::io::Error;

    /// Where it listens on a host that has no IPv6, or on which every port is taken.
    async fn listened(address: &str, everything_is_taken: bool) -> Result<SocketAddr, Option<i32>> {
        let bind = |address: SocketAddr| async move {
            match address {
                SocketAddr::V6(_) => Err(Error::from_raw_os_error(Errno::EAFNOSUPPORT as i32)),
                SocketAddr::V4(_) if everything_is_taken => {
                    Err(Error::from_raw_os_error(Errno::EADDRINUSE as i32))
                }
                SocketAddr::V4(_) => Ok(address),
            }
        };
        let address = address.parse().unwrap();
        listen_by(address, bind).await.map_err(|error| error.raw_os_error())
    }

    #[tokio::test]
    async fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let ipv4 = "0.0.0.0:9942".parse().unwrap();
        assert_eq!(listened("[::]:9942", false).await, Ok(ipv4));
        let without = Err(Some(Errno::EAFNOSUPPORT as i32));
        assert_eq!(listened("[::]:9942", true).await, without);
        // One address that was named is that and no other.
        assert_eq!(listened("[::1]:9942", false).await, without);
    }
}
