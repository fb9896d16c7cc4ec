//! When a statement is written. Pure: time and chance are arguments, and trying is the caller's.
//! `tests/integration/fixture/plan.rs` has its hours.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::level::{LevelTracker, Thresholds};
use super::{STEP, Statement, points};
use crate::contract::Level;
use crate::score::{NodeScore, PerResource};

/// Before a change of values, since the last change; before a heartbeat, since the last write. That a node
/// has just said that it lives does not keep its shortage back.
const SILENCE: Duration = Duration::from_secs(30);
/// Who reads a value knows by then that its writer is alive.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// The time that the bound of writes is counted over.
const HOUR: Duration = Duration::from_secs(3600);
/// In an hour, heartbeats apart.
const MOST_CHANGES: usize = 60;
/// So many points away from 0 is 0.
const NEXT_TO_NOTHING: f64 = STEP / 2.0;
/// Before the second try; each later one takes twice as long.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Between two tries, while the API server is away.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// And while it says no.
const LAST_RETRY_REFUSED: Duration = Duration::from_secs(300);
/// However long the API server asks for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Why a statement is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its values differ from those that stand on the Node.
    Change,
    /// Its level does, which had its own time to settle. Values stay as they are.
    Level,
    /// What stands on the Node is to be dated anew.
    Heartbeat,
}

/// What has been written.
#[derive(Debug, Clone, Default)]
pub struct History {
    last: Option<(Statement, Instant)>,
    heartbeat_due: Option<Instant>,
    changes: VecDeque<Instant>,
}

/// Whether a statement is due now, given what was written before. `exact` is the score that it is
/// made of, and `level_shows` whether its level stands on the Node at all.
#[must_use]
pub fn decide(
    history: &History,
    now: Instant,
    statement: &Statement,
    exact: &NodeScore,
    level_shows: bool,
) -> Option<Why> {
    let Some((last, written_at)) = &history.last else { return Some(Why::Change) };
    let is_silent_since = |at: Instant| now.saturating_duration_since(at) >= SILENCE;
    let recent = history.changes.iter().filter(|at| now.saturating_duration_since(**at) < HOUR);
    if recent.count() < MOST_CHANGES {
        let last_change = history.changes.back();
        if last_change.is_none_or(|at| is_silent_since(*at)) && values_differ(last, exact) {
            return Some(Why::Change);
        }
        if level_shows && last.level != statement.level {
            return Some(Why::Level);
        }
    }
    let is_due = history.heartbeat_due.is_some_and(|due| now >= due);
    (is_due && is_silent_since(*written_at)).then_some(Why::Heartbeat)
}

fn values_differ(last: &Statement, exact: &NodeScore) -> bool {
    let pairs = [
        (Some(last.score), exact.score),
        (last.each.cpu, exact.contention.cpu),
        (last.each.memory, exact.contention.memory),
        (last.each.io, exact.contention.io),
    ];
    pairs.into_iter().any(|(published, exact)| match (published, exact.map(points)) {
        (Some(published), Some(exact)) => {
            (exact - f64::from(published)).abs() >= STEP - 1e-9
                || (exact < NEXT_TO_NOTHING && published != 0)
        }
        (published, exact) => published.is_some() != exact.is_some(),
    })
}

/// How a try that failed failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The API server says no, and will until somebody changes something.
    Refused,
    /// It is away or busy, and may ask to be left alone for so long.
    Unavailable(Option<Duration>),
}

/// All that decides when to write.
#[derive(Debug)]
pub struct Plan {
    levels: LevelTracker,
    level_shows: bool,
    history: History,
    failures: u32,
    not_before: Option<Instant>,
}

impl Plan {
    /// Nothing was written yet.
    #[must_use]
    pub fn new(thresholds: Thresholds, level_shows: bool) -> Self {
        Self {
            levels: LevelTracker::new(thresholds),
            level_shows,
            history: History::default(),
            failures: 0,
            not_before: None,
        }
    }

    /// Takes over what another agent wrote `age` ago: neither a write nor a level follows from it.
    /// `shown` is the level that the Node shows, if it shows any.
    pub fn adopt(
        &mut self,
        score: u8,
        each: PerResource<Option<u8>>,
        shown: Option<Level>,
        now: Instant,
        age: Duration,
    ) {
        let level = shown.unwrap_or_else(|| self.levels.level_of(f64::from(score)));
        self.levels.adopt(level);
        let written_at = now.checked_sub(age).unwrap_or(now);
        let statement = Statement { score, each, level, observed_at_ms: 0 };
        self.history.last = Some((statement, written_at));
        self.history.changes.push_back(written_at);
        self.history.heartbeat_due = Some(written_at + HEARTBEAT);
    }

    /// Takes in a score; what is due to be written now, if anything is.
    pub fn due(&mut self, now: Instant, score: &NodeScore) -> Option<(Statement, Why)> {
        let level = self.levels.advance(now, points(score.score?));
        let statement = Statement::of(score, level)?;
        let why = decide(&self.history, now, &statement, score, self.level_shows)?;
        let statement = match (&self.history.last, why) {
            (Some((last, _)), Why::Level | Why::Heartbeat) => {
                Statement { score: last.score, each: last.each, ..statement }
            }
            (Some(_), Why::Change) | (None, _) => statement,
        };
        self.may_try(now).then_some((statement, why))
    }

    /// Whether enough time has passed since the last failure.
    #[must_use]
    pub fn may_try(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    /// A statement stands on the Node. `chance`, from 0 to 1, spreads the heartbeats of a cluster.
    pub fn written(&mut self, statement: Statement, why: Why, now: Instant, chance: f64) {
        self.recovered();
        self.history.last = Some((statement, now));
        let due = *self.history.heartbeat_due.get_or_insert(now + HEARTBEAT.mul_f64(chance));
        if due <= now {
            let behind = now.saturating_duration_since(due).as_secs() / HEARTBEAT.as_secs();
            let periods = u32::try_from(behind + 1).unwrap_or(u32::MAX);
            self.history.heartbeat_due = Some(due + HEARTBEAT.saturating_mul(periods));
        }
        if why != Why::Heartbeat {
            self.history.changes.push_back(now);
            self.history.changes.retain(|at| now.saturating_duration_since(*at) < HOUR);
        }
    }

    /// The API server answered.
    pub fn recovered(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    /// A try failed. `chance`, from 0 to 1, keeps the agents of a cluster apart.
    pub fn failed(&mut self, failure: Failure, now: Instant, chance: f64) {
        let (longest, asked) = match failure {
            Failure::Refused => (LAST_RETRY_REFUSED, None),
            Failure::Unavailable(asked) => (LAST_RETRY, asked),
        };
        let doubled = FIRST_RETRY.saturating_mul(1 << self.failures.min(10));
        let wait = doubled.min(longest).mul_f64(0.5 + chance / 2.0);
        let asked = asked.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + wait.max(asked));
    }
}
