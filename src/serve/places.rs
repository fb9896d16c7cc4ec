//! The places of a server's connections: how many there are, how many one peer may take, and which
//! connection is closed in favour of a new one.

use std::net::IpAddr;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::clock;

/// Maximum number of connections. Prometheus, schedulers and a few browsers need fewer.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of connections from one address, so that a few clients together cannot take all
/// places.
const MAX_PER_PEER: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the first request.
    New,
    Busy,
    /// Between two requests.
    Idle,
}

/// What a connection does, and since when.
#[derive(Debug, Clone)]
pub(super) struct Activity(watch::Sender<(Phase, Instant)>);

/// A request in progress. It ends when the value is dropped, which the response's body holds.
pub(super) struct InProgress(Activity);

impl Activity {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new((Phase::New, clock::now().at)))
    }

    pub(super) fn begin_request(&self) -> InProgress {
        self.0.send_replace((Phase::Busy, clock::now().at));
        InProgress(self.clone())
    }

    /// Connections without a request come first, the one that is idle longest before all others.
    /// Then comes the one with the oldest request, which a client that reads slowly has.
    fn eviction_order(&self) -> (bool, Instant) {
        let (phase, since) = *self.0.borrow();
        (phase == Phase::Busy, since)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.0.send_replace((Phase::Idle, clock::now().at));
    }
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) peer: IpAddr,
    pub(super) activity: Activity,
    pub(super) task: AbortHandle,
}

#[derive(Debug, Default)]
pub(super) struct Places(Vec<Place>);

impl Places {
    /// Adds a connection. Closes another one of its peer if that is at its limit, or any other one if
    /// all places are taken.
    pub(super) fn take(&mut self, place: Place) {
        self.0.retain(|place| !place.task.is_finished());
        let is_of_peer = |other: &Place| other.peer == place.peer;
        if self.0.iter().filter(|other| is_of_peer(other)).count() >= MAX_PER_PEER {
            self.close_first(is_of_peer);
        } else if self.0.len() >= MAX_CONNECTIONS {
            self.close_first(|_| true);
        }
        self.0.push(place);
    }

    /// Closes the connections without a request until now.
    pub(super) fn close_new(&self) {
        let is_new = |place: &&Place| place.activity.0.borrow().0 == Phase::New;
        self.0.iter().filter(is_new).for_each(|place| place.task.abort());
    }

    fn close_first(&mut self, is_candidate: impl Fn(&Place) -> bool) {
        let candidates = self.0.iter().enumerate().filter(|(_, place)| is_candidate(place));
        let first = candidates.min_by_key(|(_, place)| place.activity.eviction_order());
        if let Some((at, _)) = first {
            self.0.remove(at).task.abort();
        }
    }
}

#[cfg(test)]
mod tests;
