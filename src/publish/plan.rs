//! Decides when to write. Pure: time and random numbers are arguments, and the caller writes.
//! `tests/integration/fixture/plan.rs` tests it over simulated hours.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::level::LevelTracker;
use super::score::{PublishedScore, STEP, points};
use crate::client::cluster::call::CallError;
use crate::contract::{NodeDemand, NodePressure, Thresholds};
use crate::score::{Absence, NodeScore, Resource};

/// Shortest time from one change to the next of values alone, and from any write to a heartbeat. A
/// heartbeat doesn't delay a change.
const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of changes in an hour. Beyond that, only heartbeats write new values.
const MOST_CHANGES: usize = 60;
/// Maximum number of writes in an hour that only the demand causes: a quarter of the heartbeats, which
/// write it too.
const MOST_DEMAND_CHANGES: usize = 3;
const HOUR: Duration = Duration::from_secs(3600);
/// Points below which a value is published as 0.
const ZERO_BELOW: f64 = STEP / 2.0;
/// Time before the first retry. It doubles with each further retry.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Longest time between retries. It limits the load when the API server is available again, since all
/// agents of a cluster retry at this interval: less than three times the usual number of writes, if
/// heartbeats are every 5 min.
const LAST_RETRY: Duration = Duration::from_secs(180);
/// Longest wait that the agent accepts from the API server (`Retry-After`).
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReason {
    /// The level or a value that counts for the score differs.
    Change,
    /// The class of the headroom or the candidates differ.
    Demand,
    /// The date is renewed.
    Heartbeat,
}

#[derive(Debug)]
pub struct Plan {
    pub levels: LevelTracker,
    counted: Vec<Resource>,
    level_shows: bool,
    /// Time between heartbeats, which renew the date of unchanged values.
    heartbeat: Duration,
    last: Option<(PublishedScore, Instant)>,
    heartbeat_due: Option<Instant>,
    /// The writes of the last hour that were no heartbeats.
    changes: VecDeque<(Instant, WriteReason)>,
    failures: u32,
    not_before: Option<Instant>,
}

impl Plan {
    /// A plan with nothing written yet. `counted` are the resources that make up the score,
    /// `level_shows` is whether any output shows the level, and unchanged values are renewed after each
    /// `heartbeat`.
    pub fn new(
        thresholds: Thresholds,
        counted: Vec<Resource>,
        level_shows: bool,
        heartbeat: Duration,
    ) -> Self {
        Self {
            levels: LevelTracker::new(thresholds),
            counted,
            level_shows,
            heartbeat,
            last: None,
            heartbeat_due: None,
            changes: VecDeque::new(),
            failures: 0,
            not_before: None,
        }
    }

    /// Continues from values that an earlier agent wrote `age` ago, so that a restart causes no
    /// write and no change of the level.
    pub fn adopt(&mut self, published: PublishedScore, now: Instant, age: Duration) {
        self.levels.adopt(published.level);
        let written_at = now.checked_sub(age).unwrap_or(now);
        self.last = Some((published, written_at));
        self.changes.push_back((written_at, WriteReason::Change));
        self.heartbeat_due = Some(written_at + self.heartbeat);
    }

    /// Adds the next score, with the demand of the node. Returns what to write now, if anything.
    pub fn next_write(
        &mut self,
        now: Instant,
        score: &NodeScore,
        demand: Option<NodeDemand>,
    ) -> Option<(PublishedScore, WriteReason)> {
        // As in the score, I/O does not count while only own limits delay it.
        let is_other = |resource: &&Resource| {
            let absence = *score.absence.of(**resource);
            **resource != Resource::Cpu && absence != Some(Absence::OwnLimits)
        };
        let others = self.counted.iter().filter(is_other);
        let others = others.filter_map(|resource| *score.contention.of(*resource));
        let other_than_cpu = others.map(points).fold(0.0, f64::max);
        let Some(of_node) = score.score else {
            self.levels.interrupt();
            return None;
        };
        let of_cpu = score.cpu_for_levels.filter(|_| self.counted.contains(&Resource::Cpu));
        // In the first 30 s after a start, only the score is known.
        let of_cpu = of_cpu.map_or([points(of_node); 2], |all| all.map(points));
        let level = self.levels.advance(now, of_cpu.map(|cpu| cpu.max(other_than_cpu)));
        let last = self.last.as_ref().map(|(last, _)| &last.pressure);
        let kept = last.filter(|last| !self.values_differ(last, score));
        let published = PublishedScore::of(score, level, demand, kept)?;
        let reason = self.reason_to_write(now, score, &published)?;
        self.may_try(now).then_some((published, reason))
    }

    fn reason_to_write(
        &self,
        now: Instant,
        score: &NodeScore,
        published: &PublishedScore,
    ) -> Option<WriteReason> {
        let Some((last, written_at)) = &self.last else { return Some(WriteReason::Change) };
        let since = |at: &Instant| now.saturating_duration_since(*at);
        let is_silent = since(written_at) >= SILENCE;
        let is_demand = |reason: &WriteReason| *reason == WriteReason::Demand;
        let recent = self.changes.iter().filter(|(at, _)| since(at) < HOUR);
        if recent.clone().count() < MOST_CHANGES {
            let mut values = self.changes.iter().rev().filter(|(_, reason)| !is_demand(reason));
            let may_change = values.next().is_none_or(|(at, _)| since(at) >= SILENCE);
            let level_differs = self.level_shows && last.level != published.level;
            if level_differs || (may_change && self.values_differ(&last.pressure, score)) {
                return Some(WriteReason::Change);
            }
            let of_demand = recent.filter(|(_, reason)| is_demand(reason)).count();
            let may_change = is_silent && of_demand < MOST_DEMAND_CHANGES;
            if may_change && demand_differs(last.demand.as_ref(), published.demand.as_ref()) {
                return Some(WriteReason::Demand);
            }
        }
        let is_due = self.heartbeat_due.is_some_and(|due| now >= due);
        (is_due && is_silent).then_some(WriteReason::Heartbeat)
    }

    /// Whether the score or a resource that counts for it differs from the published value by a step.
    fn values_differ(&self, last: &NodePressure, now: &NodeScore) -> bool {
        let counted = self.counted.iter().map(|resource| match resource {
            Resource::Cpu => (last.cpu, now.contention.cpu),
            Resource::Memory => (last.memory, now.contention.memory),
            Resource::Io => (last.io, now.contention.io),
        });
        let mut all = counted.chain([(Some(last.score), now.score)]);
        all.any(|(published, now)| match (published, now.map(points)) {
            (Some(published), Some(now)) => {
                (now - f64::from(published)).abs() >= STEP - 1e-9
                    || (now < ZERO_BELOW && published != 0)
            }
            (published, now) => published.is_some() != now.is_some(),
        })
    }

    pub fn may_try(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    /// Records a successful write. `random`, from 0 to 1, spreads the heartbeats of a cluster.
    pub fn written(
        &mut self,
        published: PublishedScore,
        reason: WriteReason,
        now: Instant,
        random: f64,
    ) {
        self.recovered();
        self.last = Some((published, now));
        let due = self.heartbeat_due.get_or_insert(now + self.heartbeat.mul_f64(random));
        while *due <= now {
            *due += self.heartbeat;
        }
        if reason != WriteReason::Heartbeat {
            self.changes.push_back((now, reason));
            self.changes.retain(|(at, _)| now.saturating_duration_since(*at) < HOUR);
        }
    }

    pub fn recovered(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    /// Records a failed request. `random`, from 0 to 1, spreads the retries of a cluster.
    pub fn failed(&mut self, error: &CallError, now: Instant, random: f64) {
        let doubled = FIRST_RETRY.saturating_mul(1 << self.failures.min(10));
        let wait = doubled.min(LAST_RETRY).mul_f64(0.5 + random / 2.0);
        let requested = error.retry_after().unwrap_or_default().min(LONGEST_RETRY_AFTER);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + wait.max(requested));
    }
}

/// Whether the class of the headroom or the candidates differ, in whatever order these are.
fn demand_differs(last: Option<&NodeDemand>, now: Option<&NodeDemand>) -> bool {
    let compared = |demand: &NodeDemand| {
        let uids = demand.candidates.iter().map(|candidate| candidate.uid.clone());
        (demand.headroom_class(), uids.collect::<BTreeSet<String>>())
    };
    last.map(compared) != now.map(compared)
}
