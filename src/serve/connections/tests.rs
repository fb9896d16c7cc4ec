use std::io::Error;

use hyper::StatusCode;
use nix::errno::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::*;
use crate::serve::body;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Responds with bodies of this length.
struct Zeros(usize);

impl Service for Zeros {
    async fn respond(&self, _: Request, _: IpAddr) -> Response {
        body::whole(StatusCode::OK, "text/plain", vec![b'0'; self.0].into())
    }
}

struct Client<S>(S);

impl Client<DuplexStream> {
    /// The client of a connection that holds 1 KiB that the client has not read.
    fn connect(length: usize) -> Self {
        let (client, server) = duplex(1024);
        let graceful = GracefulShutdown::new();
        let (respond, activity) = (responses_of(Zeros(length).into(), false), Activity::new());
        let (peer, watcher) = (Ipv4Addr::LOCALHOST.into(), graceful.watcher());
        let connection = Connection { peer, respond, activity, watcher };
        tokio::spawn(async move {
            connection.serve(server, false).await;
            drop(graceful);
        });
        Self(client)
    }
}

impl<S: Stream> Client<S> {
    async fn request(&mut self) {
        self.0.write_all(REQUEST).await.unwrap();
        let mut response = [0; 1024];
        let length = self.0.read(&mut response).await.unwrap();
        assert!(response[..length].starts_with(b"HTTP/1.1 200"), "{:?}", &response[..length]);
    }

    /// Reads to the end of the connection: how many bytes, and after how many seconds.
    async fn rest(&mut self) -> (usize, u64) {
        let (start, mut rest) = (Instant::now(), Vec::new());
        self.0.read_to_end(&mut rest).await.unwrap();
        (rest.len(), start.elapsed().as_secs())
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_scrapes_each_90_s_keeps_its_connection() {
    let mut client = Client::connect(10);
    for _ in 0..5 {
        client.request().await;
        sleep(Duration::from_secs(90)).await;
    }
    let (bytes, seconds) = client.rest().await;
    assert_eq!((bytes, seconds), (0, 30), "closed 120 s after the last request");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_request_is_closed() {
    for sent in [&b""[..], b"GET / HT"] {
        let mut client = Client::connect(10);
        client.0.write_all(sent).await.unwrap();
        assert_eq!(client.rest().await, (0, 120));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_makes_progress_is_not_cut() {
    let mut client = Client::connect(100 * 1024);
    client.0.write_all(REQUEST).await.unwrap();
    let (start, mut received) = (Instant::now(), 0);
    while received < 100 * 1024 {
        sleep(Duration::from_secs(5)).await;
        received += client.0.read(&mut [0; 1024]).await.unwrap();
    }
    assert!(start.elapsed() > Duration::from_secs(480), "{:?}", start.elapsed());
}

/// A server on loopback, and what stops it.
async fn serve(length: usize) -> (SocketAddr, oneshot::Sender<()>, impl Future) {
    let server = Server::listen("127.0.0.1:0".parse().unwrap(), None, None).unwrap();
    let (stop, stopped) = oneshot::channel();
    let address = server.listener.local_addr().unwrap();
    let stopped = async move { stopped.await.unwrap() };
    (address, stop, tokio::spawn(server.serve(Zeros(length).into(), stopped)))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_closed_sooner() {
    let (address, _stop, _) = serve(10).await;
    let mut client = Client(TcpStream::connect(address).await.unwrap());
    assert_eq!(client.rest().await, (0, 10));
}

#[tokio::test]
async fn a_stopping_server_finishes_responses_and_closes_the_rest_at_once() {
    // More than the sockets hold.
    const LENGTH: usize = 16 * 1024 * 1024;
    let (address, stop, ended) = serve(LENGTH).await;
    let connect = || async { Client(TcpStream::connect(address).await.unwrap()) };
    let (silent, mut half_sent) = (connect().await, connect().await);
    half_sent.0.write_all(b"GET / HT").await.unwrap();
    let (mut reading, mut idle) = (connect().await, connect().await);
    reading.request().await;
    idle.0.write_all(b"HEAD / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(idle.0.read(&mut [0; 1024]).await.unwrap() > 0);
    stop.send(()).unwrap();
    for mut client in [silent, half_sent, idle] {
        // A connection with unread bytes is reset.
        let _ = client.0.read_to_end(&mut Vec::new()).await;
    }
    assert!(reading.rest().await.0 > LENGTH - 1024);
    ended.await;
}

/// The address bound on a host without IPv6, or on which every port is in use.
fn bound(address: &str, all_in_use: bool) -> Result<SocketAddr, Option<i32>> {
    let bind = |address| match address {
        SocketAddr::V6(_) => Err(Error::from_raw_os_error(Errno::EAFNOSUPPORT as i32)),
        SocketAddr::V4(_) if all_in_use => Err(Error::from_raw_os_error(Errno::EADDRINUSE as i32)),
        SocketAddr::V4(_) => Ok(address),
    };
    or_ipv4(address.parse().unwrap(), bind).map_err(|error| error.raw_os_error())
}

#[test]
fn without_ipv6_all_addresses_are_those_of_ipv4() {
    let ipv4 = "0.0.0.0:9942".parse().unwrap();
    assert_eq!(bound("[::]:9942", false), Ok(ipv4));
    let without = Err(Some(Errno::EAFNOSUPPORT as i32));
    assert_eq!(bound("[::]:9942", true), without);
    // A single IPv6 address has no replacement.
    assert_eq!(bound("[::1]:9942", false), without);
}
