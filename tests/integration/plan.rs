//! When the agent writes, in a node's hours of virtual time.

use std::time::{Duration, Instant};

use psi_agent::contract::{Basis, Level, NodePressure, Thresholds};
use psi_agent::kernel::cgroup_dir::Resource;
use psi_agent::publish::PublishedScore;
use psi_agent::publish::plan::{Failure, Plan, WriteReason};
use psi_agent::score::PerResource;

use crate::support::short_node::ShortNode;

const TICK: u64 = 5;
const MOST_CHANGES: usize = 60;

fn counted() -> Vec<Resource> {
    vec![Resource::Cpu, Resource::Memory]
}

/// A node whose one VM waits for a share of what it wants, and what an agent would write.
struct Node {
    node: ShortNode,
    plan: Plan,
    seconds: u64,
    /// Second, values, reason.
    writes: Vec<(u64, PublishedScore, WriteReason)>,
}

impl Node {
    fn new() -> Self {
        let plan = Plan::new(Thresholds::default(), counted(), true);
        Self { node: ShortNode::new(), plan, seconds: 0, writes: Vec::new() }
    }

    /// A tick in which the VM waited for `contention`: its time, and what to write after it.
    fn tick(&mut self, contention: f64) -> (Instant, Option<(PublishedScore, WriteReason)>) {
        self.seconds += TICK;
        let score = self.node.tick(contention);
        (score.moment.at, self.plan.next_write(score.moment.at, &score))
    }

    /// Lets so many seconds pass, with all writes.
    fn pass(&mut self, seconds: u64, contention: impl Fn(u64) -> f64) {
        for _ in 0..seconds / TICK {
            if let (now, Some((published, reason))) = self.tick(contention(self.seconds)) {
                self.plan.written(published, reason, now, 0.5);
                self.writes.push((self.seconds, published, reason));
            }
        }
    }

    fn levels(&self) -> Vec<Level> {
        let mut levels: Vec<Level> =
            self.writes.iter().map(|(_, published, _)| published.level).collect();
        levels.dedup();
        levels
    }

    /// The second of the first write of such values.
    fn first(&self, wanted: impl Fn(&PublishedScore) -> bool) -> u64 {
        self.writes.iter().find(|(_, published, _)| wanted(published)).unwrap().0
    }
}

#[test]
fn the_first_write_waits_for_30_s_of_history_and_a_calm_node_writes_heartbeats_only() {
    let mut node = Node::new();
    node.pass(2 * 3600, |_| 0.0);
    assert_eq!(node.writes.first().map(|(at, ..)| *at), Some(30));
    assert_eq!(node.writes.len(), 1 + 24, "{:?}", node.writes);
    assert!(node.writes.iter().skip(1).all(|(_, _, why)| *why == WriteReason::Heartbeat));
    // Its heartbeats are at a phase of its own, and never more than 5 min apart.
    let times: Vec<u64> = node.writes.iter().map(|(at, ..)| *at).collect();
    assert_eq!(times[1], 30 + 150);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 300));
}

#[test]
fn a_step_up_and_down_changes_each_level_once_and_values_30_s_apart() {
    let mut node = Node::new();
    node.pass(600, |_| 0.0);
    let calm_until = node.seconds;
    node.pass(600, |_| 0.5);
    let loaded_until = node.seconds;
    node.pass(600, |_| 0.0);
    use Level::{High, Low, Medium};
    assert_eq!(node.levels(), [Low, Medium, High, Medium, Low], "{:?}", node.writes);
    let values: Vec<(u64, u8)> =
        node.writes.iter().map(|(at, published, _)| (*at, published.score)).collect();
    let mut changes = values.clone();
    changes.dedup_by_key(|(_, score)| *score);
    assert!(changes.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 30), "{values:?}");
    // The budgets: a changed value within 15 s, medium and high within 60 s; after the end high is
    // left within 90 s, and low again within 150 s.
    assert!(node.first(|published| published.score > 0) - calm_until <= 15);
    assert!(node.first(|published| published.level >= Medium) - calm_until <= 60);
    assert!(
        node.first(|published| published.level == High) - calm_until <= 60,
        "{:?}",
        node.writes
    );
    let after = |wanted: Level| {
        let later = node
            .writes
            .iter()
            .find(|(at, published, _)| *at > loaded_until && published.level <= wanted);
        later.unwrap().0 - loaded_until
    };
    assert!(after(Medium) <= 90 && after(Low) <= 150, "{:?}", node.writes);
    let last = node.writes.last().unwrap().1;
    assert_eq!((last.score, last.level), (0, Low));
}

#[test]
fn a_heartbeat_does_not_delay_a_change() {
    for after_heartbeat in (0..60).step_by(5) {
        let mut node = Node::new();
        node.pass(30 + 150 + after_heartbeat, |_| 0.0);
        assert_eq!(
            node.writes.last().map(|(at, _, why)| (*at, *why)),
            Some((180, WriteReason::Heartbeat))
        );
        let calm_until = node.seconds;
        node.pass(60, |_| 0.3);
        assert!(
            node.first(|published| published.score > 0) - calm_until <= 15,
            "{:?}",
            node.writes
        );
    }
}

#[test]
fn short_bursts_reach_no_level() {
    let mut node = Node::new();
    node.pass(3600, |second| if second % 60 < 5 { 1.0 } else { 0.0 });
    assert_eq!(node.levels(), [Level::Low]);
}

#[test]
fn a_sawtooth_around_a_threshold_flips_nothing_and_the_hour_has_a_bound() {
    let mut node = Node::new();
    node.pass(4 * 3600, |second| if second / 40 % 2 == 0 { 0.6 } else { 0.0 });
    let mut flips = 0;
    for pair in node.writes.windows(2) {
        flips += usize::from(pair[0].1.level != pair[1].1.level);
    }
    assert!(flips <= 2, "{flips}");
    for hour in 0..3 {
        let within = |at: u64| (hour * 3600..(hour + 1) * 3600).contains(&at);
        let changes =
            node.writes.iter().filter(|(at, _, why)| within(*at) && *why != WriteReason::Heartbeat);
        assert!(changes.count() <= MOST_CHANGES);
        let heartbeats =
            node.writes.iter().filter(|(at, _, why)| within(*at) && *why == WriteReason::Heartbeat);
        assert!(heartbeats.count() <= 12);
    }
}

#[test]
fn a_value_below_half_a_step_is_published_as_0() {
    let mut node = Node::new();
    node.pass(600, |_| 0.06);
    assert_eq!(node.writes.last().unwrap().1.score, 5);
    node.pass(300, |_| 0.026);
    assert_eq!(node.writes.last().unwrap().1.score, 5);
    node.pass(300, |_| 0.02);
    assert_eq!(node.writes.last().unwrap().1.score, 0);
}

#[test]
fn values_of_an_earlier_agent_are_neither_written_again_nor_lost() {
    for (level, points) in [(Level::High, 50), (Level::Low, 50), (Level::Medium, 15)] {
        let mut node = Node::new();
        let each = PerResource { cpu: Some(points), memory: Some(0), io: Some(0) };
        node.plan.adopt(points, each, level, node.node.now(), Duration::from_secs(100));
        node.node.adopt(&NodePressure {
            score: points,
            cpu: Some(points),
            memory: Some(0),
            io: Some(0),
            observed_at: jiff::Timestamp::UNIX_EPOCH,
            basis: Basis::Psi(1),
        });
        // The score goes on as it was: the next write is the heartbeat that was due anyway.
        let same = f64::from(points) / 100.0;
        node.pass(25, |_| same);
        assert_eq!(node.writes, []);
        node.pass(175, |_| same);
        let levels: Vec<Level> =
            node.writes.iter().map(|(_, published, _)| published.level).collect();
        let times: Vec<u64> = node.writes.iter().map(|(at, ..)| *at).collect();
        if level == Level::Low {
            // A level that had begun to be entered is entered, after its 30 s.
            assert_eq!(levels.first(), Some(&Level::High));
        } else {
            assert_eq!((levels, times), (vec![level], vec![200]));
        }
    }
}

#[test]
fn failed_tries_back_off_and_the_newest_value_is_written_in_the_end() {
    let mut node = Node::new();
    node.pass(60, |_| 0.0);
    let mut tries = Vec::new();
    // Ten minutes without an API server, while the node becomes short.
    for _ in 0..120 {
        if let (now, Some(_)) = node.tick(0.5) {
            node.plan.failed(Failure::Unavailable(None), now, 1.0);
            tries.push(node.seconds);
        }
    }
    assert!((8..=14).contains(&tries.len()), "{tries:?}");
    assert!(tries.windows(2).all(|pair| pair[1] - pair[0] <= 65), "{tries:?}");
    node.pass(60, |_| 0.5);
    let (_, published, _) = node.writes.last().unwrap();
    assert_eq!((published.score, published.level), (50, Level::High));
    assert_eq!(node.writes.len(), 2, "{:?}", node.writes);
}

#[test]
fn retries_wait_as_long_as_the_api_server_requests_and_longer_when_it_refuses() {
    let gaps = |failure, count: usize| {
        let mut plan = Plan::new(Thresholds::default(), counted(), false);
        let start = Instant::now();
        let gap = |_| {
            plan.failed(failure, start, 1.0);
            let may_try = |seconds: &u64| plan.may_try(start + Duration::from_secs(*seconds));
            (1..1000).find(may_try).unwrap()
        };
        (0..count).map(gap).collect::<Vec<_>>()
    };
    assert_eq!(gaps(Failure::Unavailable(None), 6), [5, 10, 20, 40, 60, 60]);
    assert_eq!(gaps(Failure::Refused, 8), [5, 10, 20, 40, 80, 160, 300, 300]);
    let asked = Some(Duration::from_secs(90));
    assert_eq!(gaps(Failure::Unavailable(asked), 2), [90, 90]);
    let absurd = Some(Duration::from_secs(86_400));
    assert_eq!(gaps(Failure::Unavailable(absurd), 1), [600]);
}

proptest::proptest! {
    #[test]
    fn whatever_the_node_does_changes_are_30_s_apart_and_multiples_of_5(
        steps in proptest::collection::vec((0.0..=1.0, 1u64..60), 1..40)
    ) {
        let mut node = Node::new();
        for (contention, ticks) in steps {
            node.pass(ticks * TICK, |_| contention);
        }
        let values: Vec<_> = node.writes.iter().filter(|(.., why)| *why == WriteReason::Change).collect();
        for pair in values.windows(2) {
            proptest::prop_assert!(pair[1].0 - pair[0].0 >= 30);
        }
        for pair in node.writes.windows(2).filter(|pair| pair[1].2 == WriteReason::Heartbeat) {
            proptest::prop_assert!(pair[1].0 - pair[0].0 >= 30);
        }
        for (_, published, _) in &node.writes {
            let each = [Some(published.score), published.each.cpu, published.each.memory, published.each.io];
            proptest::prop_assert!(each.iter().flatten().all(|points| points % 5 == 0 && *points <= 100));
            proptest::prop_assert_eq!(Some(published.score), published.each.cpu.max(published.each.memory));
        }
    }
}
