use std::io::Error;

use hyper::StatusCode;
use nix::errno::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::*;
use crate::serve::body;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

struct Zeros(usize);

impl Service for Zeros {
    async fn respond(&self, _: Request<Incoming>, _: Peer) -> Response<Body> {
        body::whole(StatusCode::OK, "text/plain", vec![b'0'; self.0].into())
    }
}

struct Scene {
    client: DuplexStream,
    places: watch::Sender<Places>,
    stop: watch::Sender<bool>,
}

impl Scene {
    /// A connection whose responses have bodies of this length. Like a socket, it holds 1 KiB that
    /// the client has not read.
    fn connect(length: usize) -> Self {
        let (client, server) = duplex(1024);
        let (stop, stopping) = watch::channel(false);
        let (places, _) = watch::channel(Places::default());
        let service = Arc::new(Zeros(length));
        let shared = Arc::new(ServerState { service, tls: None, places: places.clone(), stopping });
        let peer = Peer::new(Ipv4Addr::LOCALHOST.into(), false);
        let held = shared.take_place(peer.address).unwrap();
        tokio::spawn(shared.serve_http(WriteTimeout::new(server), peer, held));
        Self { client, places, stop }
    }

    async fn request(&mut self) {
        self.client.write_all(REQUEST).await.unwrap();
        let mut response = [0; 1024];
        let length = self.client.read(&mut response).await.unwrap();
        assert!(response[..length].starts_with(b"HTTP/1.1 200"), "{:?}", &response[..length]);
    }

    /// Reads to the end of the connection: how many bytes, and after how many seconds.
    async fn rest(&mut self) -> (usize, u64) {
        let (start, mut rest) = (Instant::now(), Vec::new());
        self.client.read_to_end(&mut rest).await.unwrap();
        (rest.len(), start.elapsed().as_secs())
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_scrapes_each_90_s_keeps_its_connection() {
    let mut scene = Scene::connect(10);
    for _ in 0..5 {
        scene.request().await;
        sleep(Duration::from_secs(90)).await;
    }
    let (bytes, seconds) = scene.rest().await;
    assert_eq!((bytes, seconds), (0, 30), "closed 120 s after the last request");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_request_is_closed() {
    for sent in [&b""[..], b"GET / HT"] {
        let mut scene = Scene::connect(10);
        scene.client.write_all(sent).await.unwrap();
        assert_eq!(scene.rest().await, (0, 10));
    }
}

/// Takes places for other connections of the same peer, until one more than it may have.
fn fill(scene: &Scene) {
    scene.places.send_modify(|places| {
        for _ in 0..16 {
            let (id, _) = places.take(Ipv4Addr::LOCALHOST.into(), clock::now().at).unwrap();
            places.begin_request(id);
        }
    });
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_gives_its_place_up_at_once() {
    for requests in 0..2 {
        let mut scene = Scene::connect(10);
        for _ in 0..requests {
            scene.request().await;
        }
        fill(&scene);
        assert_eq!(scene.rest().await, (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_response_in_progress_keeps_its_place() {
    let mut scene = Scene::connect(100 * 1024);
    scene.client.write_all(REQUEST).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    scene.places.send_modify(|places| {
        for _ in 0..15 {
            let (id, _) = places.take(Ipv4Addr::LOCALHOST.into(), clock::now().at).unwrap();
            places.begin_request(id);
        }
        assert!(places.take(Ipv4Addr::LOCALHOST.into(), clock::now().at).is_none());
    });
    let mut received = 0;
    while received < 100 * 1024 {
        received += scene.client.read(&mut [0; 1024]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_makes_progress_is_not_cut() {
    let mut scene = Scene::connect(100 * 1024);
    scene.client.write_all(REQUEST).await.unwrap();
    let (start, mut received) = (Instant::now(), 0);
    while received < 100 * 1024 {
        sleep(Duration::from_secs(5)).await;
        received += scene.client.read(&mut [0; 1024]).await.unwrap();
    }
    assert!(start.elapsed() > Duration::from_secs(480), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_cut_off() {
    let mut scene = Scene::connect(100 * 1024);
    scene.client.write_all(REQUEST).await.unwrap();
    sleep(WRITE_TIMEOUT + Duration::from_secs(1)).await;
    let (bytes, seconds) = scene.rest().await;
    assert_eq!((bytes, seconds), (1024, 0), "what the socket held");
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_finishes_responses_and_closes_the_rest_at_once() {
    let mut idle = Scene::connect(10);
    idle.request().await;
    let mut half_sent = Scene::connect(10);
    half_sent.client.write_all(b"GET / HT").await.unwrap();
    let mut reading = Scene::connect(100 * 1024);
    reading.client.write_all(REQUEST).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    for scene in [&idle, &half_sent, &reading] {
        scene.stop.send_replace(true);
    }
    assert_eq!(idle.rest().await, (0, 0));
    assert_eq!(half_sent.rest().await, (0, 0));
    assert!(reading.rest().await.0 > 100 * 1024);
}

/// The address bound on a host without IPv6, or on which every port is in use.
async fn bound(address: &str, all_in_use: bool) -> Result<SocketAddr, Option<i32>> {
    let bind = |address: SocketAddr| async move {
        match address {
            SocketAddr::V6(_) => Err(Error::from_raw_os_error(Errno::EAFNOSUPPORT as i32)),
            SocketAddr::V4(_) if all_in_use => {
                Err(Error::from_raw_os_error(Errno::EADDRINUSE as i32))
            }
            SocketAddr::V4(_) => Ok(address),
        }
    };
    let address = address.parse().unwrap();
    bind_any(address, bind).await.map_err(|error| error.raw_os_error())
}

#[tokio::test]
async fn without_ipv6_all_addresses_are_those_of_ipv4() {
    let ipv4 = "0.0.0.0:9942".parse().unwrap();
    assert_eq!(bound("[::]:9942", false).await, Ok(ipv4));
    let without = Err(Some(Errno::EAFNOSUPPORT as i32));
    assert_eq!(bound("[::]:9942", true).await, without);
    // A single IPv6 address has no replacement.
    assert_eq!(bound("[::1]:9942", false).await, without);
}
