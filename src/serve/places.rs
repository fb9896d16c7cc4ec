//! The places of a server's connections: how many there are, how many one peer may take, and which
//! connection is closed in favour of a new one. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use tokio::sync::oneshot;

/// Maximum number of connections. Prometheus, schedulers and a few browsers need fewer.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of connections from one address, so that a few clients together cannot take all
/// places.
const MAX_PER_PEER: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Places {
    taken: BTreeMap<u64, Place>,
    next_id: u64,
}

#[derive(Debug)]
struct Place {
    peer: IpAddr,
    /// Since when the connection has no request in progress.
    idle_since: Option<Instant>,
    /// Dropped with the place, which closes the connection.
    _close: oneshot::Sender<()>,
}

impl Places {
    /// Whether a new connection may be accepted now.
    pub(super) fn have_room(&self) -> bool {
        self.taken.len() < MAX_CONNECTIONS || self.longest_idle(|_| true).is_some()
    }

    pub(super) fn are_free(&self) -> bool {
        self.taken.is_empty()
    }

    /// Takes a place. If all places are taken, the longest idle connection is closed; if the peer
    /// is at its limit, the longest idle connection of this peer is. `None` if none of these is
    /// idle. The receiver completes when the new connection has to close.
    pub(super) fn take(
        &mut self,
        peer: IpAddr,
        now: Instant,
    ) -> Option<(u64, oneshot::Receiver<()>)> {
        let of_peer = self.taken.values().filter(|place| place.peer == peer).count();
        if of_peer >= MAX_PER_PEER {
            let longest = self.longest_idle(|place| place.peer == peer)?;
            self.taken.remove(&longest);
        } else if self.taken.len() >= MAX_CONNECTIONS {
            let longest = self.longest_idle(|_| true)?;
            self.taken.remove(&longest);
        }
        let id = self.next_id;
        self.next_id += 1;
        let (close, closing) = oneshot::channel();
        self.taken.insert(id, Place { peer, idle_since: Some(now), _close: close });
        Some((id, closing))
    }

    /// A request of this connection began.
    pub(super) fn begin_request(&mut self, id: u64) {
        self.set_idle(id, None);
    }

    /// The whole response was passed on, or the connection failed.
    pub(super) fn end_request(&mut self, id: u64, now: Instant) {
        self.set_idle(id, Some(now));
    }

    pub(super) fn leave(&mut self, id: u64) {
        self.taken.remove(&id);
    }

    fn set_idle(&mut self, id: u64, since: Option<Instant>) {
        if let Some(place) = self.taken.get_mut(&id) {
            place.idle_since = since;
        }
    }

    fn longest_idle(&self, is_candidate: impl Fn(&Place) -> bool) -> Option<u64> {
        let idle = self.taken.iter().filter(|(_, place)| is_candidate(place));
        let idle = idle.filter_map(|(id, place)| Some((place.idle_since?, *id)));
        idle.min().map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::clock;

    fn peer(number: usize) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).unwrap()).into()
    }

    /// Takes all places, each for a different peer, at intervals of 1 s.
    fn full(start: Instant) -> (Places, Vec<(u64, oneshot::Receiver<()>)>) {
        let mut places = Places::default();
        let taken = (0..MAX_CONNECTIONS).map(|number| {
            places.take(peer(number), start + Duration::from_secs(number as u64)).unwrap()
        });
        let taken = taken.collect();
        (places, taken)
    }

    #[test]
    fn a_full_server_closes_the_connection_that_is_idle_for_longest() {
        let start = clock::now().at;
        let (mut places, mut taken) = full(start);
        places.begin_request(taken[0].0);
        assert!(places.have_room());
        assert!(places.take(peer(100), start).is_some());
        assert!(taken[0].1.try_recv().unwrap_err() == oneshot::error::TryRecvError::Empty);
        assert!(taken[1].1.try_recv().unwrap_err() == oneshot::error::TryRecvError::Closed);
    }

    #[test]
    fn a_server_whose_clients_all_wait_for_a_response_takes_no_new_one() {
        let start = clock::now().at;
        let (mut places, taken) = full(start);
        taken.iter().for_each(|(id, _)| places.begin_request(*id));
        assert!(!places.have_room());
        assert!(places.take(peer(100), start).is_none());
        places.end_request(taken[7].0, start);
        assert!(places.have_room());
        assert!(places.take(peer(100), start).is_some());
        taken.iter().for_each(|(id, _)| places.leave(*id));
        assert!(!places.are_free(), "the new one is there");
    }

    #[test]
    fn one_peer_gets_a_share_of_the_places() {
        let start = clock::now().at;
        let mut places = Places::default();
        let (first, mut closing) = places.take(peer(0), start).unwrap();
        for _ in 1..MAX_PER_PEER {
            let (id, _) = places.take(peer(0), start).unwrap();
            places.begin_request(id);
        }
        let (other, _) = places.take(peer(1), start).unwrap();
        assert!(closing.try_recv().unwrap_err() == oneshot::error::TryRecvError::Empty);
        let (last, _) = places.take(peer(0), start).unwrap();
        assert!(closing.try_recv().unwrap_err() == oneshot::error::TryRecvError::Closed);
        places.begin_request(last);
        assert!(places.take(peer(0), start).is_none(), "none of its own is idle");
        assert!(first < other && other < last);
    }
}
