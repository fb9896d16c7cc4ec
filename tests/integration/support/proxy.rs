//! A TCP proxy on loopback that can delay what it forwards, and stop to forward without closing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The proxy. Its threads end with the connections that they serve, or with the test.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    delay_ms: AtomicU64,
    /// Bytes between two retransmissions: what TCP makes of a lost packet is a longer delay.
    loses_every: AtomicUsize,
    stalled: AtomicBool,
    /// Changes when the proxy stalls or resumes: connections of before are dead.
    generation: AtomicUsize,
    connections: AtomicUsize,
}

/// How long a lost packet delays those behind it: Linux' first retransmission takes at least 200 ms.
const RETRANSMISSION: Duration = Duration::from_millis(200);

impl Proxy {
    /// A proxy for a port of loopback.
    pub(crate) fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to)))
                else {
                    continue;
                };
                of_thread.connections.fetch_add(1, Ordering::SeqCst);
                let born = of_thread.generation.load(Ordering::SeqCst);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = Arc::clone(&of_thread);
                    std::thread::spawn(move || forward(from, to, &state, born));
                }
            }
        });
        Self { port, state }
    }

    /// Delays what comes in either direction, and one in so many pieces more, as after its loss.
    pub(crate) fn delay(&self, by: Duration, loses_every: usize) {
        self.state.delay_ms.store(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
        self.state.loses_every.store(loses_every, Ordering::SeqCst);
    }

    /// From now on it takes what is sent, of new connections too, and forwards nothing.
    pub(crate) fn stall(&self) {
        self.state.generation.fetch_add(1, Ordering::SeqCst);
        self.state.stalled.store(true, Ordering::SeqCst);
    }

    /// New connections work again. Those of before never do, and are not closed either.
    pub(crate) fn resume(&self) {
        self.state.generation.fetch_add(1, Ordering::SeqCst);
        self.state.stalled.store(false, Ordering::SeqCst);
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &State, born: usize) {
    let mut buffer = vec![0; 16 * 1024];
    let mut pieces = 0;
    while let Ok(length) = from.read(&mut buffer) {
        let is_dead = state.generation.load(Ordering::SeqCst) != born;
        if is_dead || state.stalled.load(Ordering::SeqCst) {
            if length == 0 {
                // Its other side learns nothing.
                return std::mem::forget((from, to));
            }
            continue;
        }
        if length == 0 {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        pieces += 1;
        let lost = state.loses_every.load(Ordering::SeqCst);
        if lost > 0 && pieces % lost == 0 {
            std::thread::sleep(RETRANSMISSION);
        }
        std::thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::SeqCst)));
        if to.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
