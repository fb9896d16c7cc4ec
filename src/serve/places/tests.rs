use std::future::pending;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::*;

struct Scene {
    places: Places,
    start: Instant,
    /// The connections, in the order of their start.
    connections: Vec<(Activity, JoinHandle<()>)>,
}

impl Scene {
    fn new() -> Self {
        Self { places: Places::default(), start: clock::now().at, connections: Vec::new() }
    }

    /// Connects a peer, each time a second later.
    fn connect(&mut self, number: u32) {
        let peer = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number));
        let (activity, task) = (Activity::new(), tokio::spawn(pending()));
        self.places.take(Place { peer, activity: activity.clone(), task: task.abort_handle() });
        self.connections.push((activity, task));
        self.set(self.connections.len() - 1, Phase::New);
    }

    /// The connection is in this phase since as many seconds as the order of its start says.
    fn set(&self, connection: usize, phase: Phase) {
        let since = self.start + Duration::from_secs(connection as u64);
        self.connections[connection].0.0.send_replace((phase, since));
    }

    fn set_all(&self, phase: Phase) {
        (0..self.connections.len()).for_each(|connection| self.set(connection, phase));
    }

    async fn closed(&self) -> Vec<usize> {
        tokio::task::yield_now().await;
        let tasks = self.connections.iter().enumerate();
        tasks.filter(|(_, (_, task))| task.is_finished()).map(|(at, _)| at).collect()
    }
}

#[tokio::test]
async fn a_full_server_closes_the_connection_that_is_idle_for_longest() {
    let mut scene = Scene::new();
    (0..64).for_each(|peer| scene.connect(peer));
    scene.set(0, Phase::Busy);
    scene.set(2, Phase::Idle);
    assert!(scene.closed().await.is_empty());
    scene.connect(100);
    scene.connect(101);
    assert_eq!(scene.closed().await, [1, 2], "the first has a request in progress");
}

#[tokio::test]
async fn a_connection_is_busy_until_its_request_is_dropped() {
    let mut scene = Scene::new();
    scene.connect(0);
    let activity = &scene.connections[0].0;
    let request = activity.begin_request();
    assert_eq!(activity.0.borrow().0, Phase::Busy);
    drop(request);
    assert_eq!(activity.0.borrow().0, Phase::Idle);
}

#[tokio::test]
async fn clients_that_read_slowly_can_not_keep_all_places() {
    let mut scene = Scene::new();
    (0..64).for_each(|peer| scene.connect(peer));
    scene.set_all(Phase::Busy);
    scene.connect(100);
    assert_eq!(scene.closed().await, [0], "it has the oldest request");
}

#[tokio::test]
async fn one_peer_gets_a_share_of_the_places() {
    let mut scene = Scene::new();
    (0..10).for_each(|peer| scene.connect(peer));
    (0..20).for_each(|_| scene.connect(100));
    assert_eq!(scene.closed().await, [10, 11, 12, 13], "its own, and none of another peer");
    scene.set_all(Phase::Busy);
    scene.connect(100);
    assert_eq!(scene.closed().await, [10, 11, 12, 13, 14]);
}

#[tokio::test]
async fn closed_connections_take_no_place() {
    let mut scene = Scene::new();
    (0..64).for_each(|peer| scene.connect(peer));
    scene.connections[7].1.abort();
    scene.closed().await;
    scene.connect(100);
    assert_eq!(scene.closed().await, [7]);
}
