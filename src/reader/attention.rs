//! Whom a tick looks at closely: who waits, at every tick; for CPU also everybody else now and then,
//! and as soon as the node's own total says that somebody must have begun to wait.

use std::time::{Duration, Instant};

use crate::kernel::cgroup_dir::Resource;
use crate::sample::PressureReading;

/// Who waited for this share of the time between two readings...
const WAITS: f64 = 0.01;
/// ...is looked at closely for so long. What others used matters little, and changes little.
const ATTENTIVE_FOR: Duration = Duration::from_secs(60);

/// At one of so many ticks everybody is looked at...
const EVERYBODY_EVERY: u32 = 6;
/// ...of so many while nobody waits, since the score is 0 then, whatever they use...
const EVERYBODY_EVERY_CALM: u32 = 12;
/// ...and once the node's waiting has grown by this share...
const GROWN: f64 = 0.5;
/// ...and by so many CPUs since then.
const GROWN_CPUS: f64 = 0.1;

/// Whom a tick looks at closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Everybody.
    Everybody,
    /// Those that wait, and those that are new.
    WhoWaits,
}

/// Decides it, tick by tick.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// Ticks since everybody was looked at; `None` before the first.
    ticks: Option<u32>,
    /// For how many CPUs' worth of time the node's tasks waited then.
    waited: Option<f64>,
    /// The node's run delay at the last tick, nanoseconds.
    last: Option<(Instant, u64)>,
}

impl Attention {
    /// Whom the tick of this moment looks at, given the node's run delay where it tells any, and
    /// whether anybody that the score is about waited of late.
    pub(super) fn look(
        &mut self,
        run_delay_ns: Option<u64>,
        somebody_waits: bool,
        now: Instant,
    ) -> Look {
        let this = run_delay_ns.map(|ns| (now, ns));
        let waited = self.last.zip(this).and_then(|(last, this)| cpus_between(last, this));
        self.last = this;
        let grown = waited.is_some_and(|waited| {
            self.waited.is_none_or(|then| waited > (then * (1.0 + GROWN)).max(then + GROWN_CPUS))
        });
        let every = if somebody_waits { EVERYBODY_EVERY } else { EVERYBODY_EVERY_CALM };
        let ticks = self.ticks.map_or(every, |ticks| ticks + 1);
        if grown || ticks >= every {
            (self.ticks, self.waited) = (Some(0), waited);
            return Look::Everybody;
        }
        self.ticks = Some(ticks);
        Look::WhoWaits
    }
}

#[allow(clippy::cast_precision_loss, reason = "a delay between two ticks is far below 2^52 ns")]
fn cpus_between(before: (Instant, u64), after: (Instant, u64)) -> Option<f64> {
    let seconds = after.0.saturating_duration_since(before.0).as_secs_f64();
    let ns = after.1.checked_sub(before.1)?;
    (seconds > 0.0).then(|| ns as f64 / 1e9 / seconds)
}

/// For how long a container had waited for something when that was last read, and when it was last
/// seen to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    at: Instant,
    waited_us: Option<u64>,
    waited_at: Option<Instant>,
}

impl Watched {
    /// After one more reading: a total, microseconds.
    pub(super) fn after(before: Option<&Self>, waited_us: Option<u64>, at: Instant) -> Self {
        let now = Self { at, waited_us, waited_at: before.and_then(|before| before.waited_at) };
        let waits = before.is_some_and(|before| waits(before, &now));
        Self { waited_at: if waits { Some(at) } else { now.waited_at }, ..now }
    }

    /// The same by its pressure.
    pub(super) fn after_stall(
        before: Option<&Self>,
        reading: &PressureReading,
        resource: Resource,
    ) -> Self {
        let stalled_us = reading.pressures.of(resource).and_then(|pressure| pressure.some_us);
        Self::after(before, stalled_us, reading.at)
    }

    /// The total, microseconds.
    pub(super) fn waited_us(&self) -> Option<u64> {
        self.waited_us
    }

    /// Whether it waited between its last two readings.
    pub(super) fn waits(&self) -> bool {
        self.waited_at == Some(self.at)
    }

    /// Whether it waited of late.
    pub(super) fn waited_lately(&self, now: Instant) -> bool {
        self.waited_at.is_some_and(|at| now.saturating_duration_since(at) < ATTENTIVE_FOR)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a wait between two ticks is far below 2^52 us")]
fn waits(before: &Watched, after: &Watched) -> bool {
    let window_us = after.at.saturating_duration_since(before.at).as_secs_f64() * 1e6;
    let more = before.waited_us.zip(after.waited_us);
    let more = more.and_then(|(before, after)| after.checked_sub(before));
    more.is_some_and(|more| more as f64 >= WAITS * window_us && more > 0)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
mod tests {
    use super::*;

    /// Whom ticks look at, given for how many CPUs' worth the node's tasks wait in each window.
    fn looks(waited: &[f64]) -> String {
        looks_while(true, waited)
    }

    fn looks_while(somebody_waits: bool, waited: &[f64]) -> String {
        let start = Instant::now();
        let mut attention = Attention::default();
        let (mut looks, mut total_ns) = (String::new(), 0.0);
        for (tick, cpus) in (0u32..).zip(waited) {
            total_ns += cpus * 5e9;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
            let total_ns = total_ns as u64;
            let now = start + tick * Duration::from_secs(5);
            let look = attention.look(Some(total_ns), somebody_waits, now);
            looks.push(if look == Look::Everybody { 'E' } else { '.' });
        }
        looks
    }

    #[test]
    fn everybody_is_looked_at_twice_and_then_every_half_minute() {
        assert_eq!(looks(&[1.0; 15]), "EE.....E.....E.");
        let calm = ["EE", &".".repeat(11), "E", &".".repeat(6)].concat();
        assert_eq!(looks_while(false, &[1.0; 20]), calm, "while nobody waits every minute");
        let mut attention = Attention::default();
        let unknown =
            [(); 8].map(|()| attention.look(None, true, Instant::now()) == Look::Everybody);
        assert_eq!(unknown, [true, false, false, false, false, false, true, false]);
    }

    #[test]
    fn everybody_is_looked_at_when_the_nodes_waiting_has_grown() {
        assert_eq!(looks(&[1.0, 1.0, 1.4, 1.0, 1.6, 1.6, 1.6, 1.6]), "EE..E...");
        // Of next to nothing even the double is next to nothing.
        assert_eq!(looks(&[0.01, 0.01, 0.05, 0.1, 0.12]), "EE..E");
        // A CPU that went offline takes its delay along: what it is now is not known.
        assert_eq!(looks(&[9.0, 1.0, -5.0, 1.0, 1.0]), "EE...");
    }
}
