//! What was found out about tokens, for as long as it may be relied on, and how often strangers may
//! make the agent ask. Pure: time is an argument, and of a token only its hash is known.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::rules::Door;

/// How long a right that was taken away still opens the door.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// How long a right that was given does not open it yet.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long an API server that did not answer is left alone.
const UNANSWERED_FOR: Duration = Duration::from_secs(2);
/// How long a token that was good is no stranger's: Prometheus is asked for at each renewal of its
/// verdict, and must not stand in line with those who guess.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// How many questions about strangers' tokens at once, and one more after each interval.
const BURST: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(1);
/// Strangers alone cannot fill it: in [`REFUSED_FOR`] they make twenty questions.
const MAX_REMEMBERED: usize = 128;

/// What becomes of who shows a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They may pass.
    Allowed,
    /// They are known, and may not.
    Forbidden,
    /// Nobody knows them.
    Unauthenticated,
    /// The API server did not say, so they may not.
    Unanswered,
    /// There were too many strangers to ask for this one, so they may not.
    NotAsked,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 5] = [
        Verdict::Allowed,
        Verdict::Forbidden,
        Verdict::Unauthenticated,
        Verdict::Unanswered,
        Verdict::NotAsked,
    ];

    /// A closed set of words, for a label.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Forbidden => "forbidden",
            Verdict::Unauthenticated => "unauthenticated",
            Verdict::Unanswered => "unanswered",
            Verdict::NotAsked => "not_asked",
        }
    }

    fn holds_for(self) -> Duration {
        match self {
            Verdict::Allowed => ALLOWED_FOR,
            Verdict::Forbidden | Verdict::Unauthenticated => REFUSED_FOR,
            Verdict::Unanswered => UNANSWERED_FOR,
            Verdict::NotAsked => Duration::ZERO,
        }
    }
}

/// A token at a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// A hash of the token that nobody outside can work out.
    pub token: [u8; 32],
    /// Where it was shown.
    pub door: Door,
}

/// What to do about a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This is known.
    Known(Verdict),
    /// To be found out.
    Ask,
}

/// What is known of tokens.
#[derive(Debug, Default)]
pub struct Verdicts {
    of: HashMap<Key, Remembered>,
    strangers: Budget,
}

#[derive(Debug, Clone, Copy)]
struct Remembered {
    verdict: Verdict,
    since: Instant,
    /// When the token was good, as far as nothing else was heard of it since.
    was_good: Option<Instant>,
}

impl Verdicts {
    /// What to do about a token that is shown now.
    pub fn look(&mut self, key: &Key, now: Instant) -> Next {
        let known = self.of.get(key);
        if let Some(known) = known
            && now.saturating_duration_since(known.since) < known.verdict.holds_for()
        {
            return Next::Known(known.verdict);
        }
        let was_good = known.and_then(|known| known.was_good);
        let is_stranger = was_good.is_none_or(|at| now.saturating_duration_since(at) >= KNOWN_FOR);
        if is_stranger && !self.strangers.take(now) {
            return Next::Known(Verdict::NotAsked);
        }
        Next::Ask
    }

    /// Takes in what was found out.
    pub fn learn(&mut self, key: Key, verdict: Verdict, now: Instant) {
        let before = self.of.get(&key).and_then(|known| known.was_good);
        let was_good = match verdict {
            Verdict::Allowed => Some(now),
            Verdict::Forbidden | Verdict::Unauthenticated => None,
            Verdict::Unanswered | Verdict::NotAsked => before,
        };
        if self.of.len() >= MAX_REMEMBERED && !self.of.contains_key(&key) {
            self.make_room();
        }
        self.of.insert(key, Remembered { verdict, since: now, was_good });
    }

    /// Forgets a stranger before a token that was good, and of each kind the oldest.
    fn make_room(&mut self) {
        let oldest = self.of.iter().min_by_key(|(_, known)| (known.was_good, known.since));
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.of.remove(&key);
        }
    }
}

/// So many at once, then one after each interval.
#[derive(Debug, Default)]
struct Budget {
    /// When all of it would be there again.
    whole_at: Option<Instant>,
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        let whole_at = self.whole_at.map_or(now, |at| at.max(now)) + INTERVAL;
        let has_one = whole_at.saturating_duration_since(now) <= INTERVAL * BURST;
        if has_one {
            self.whole_at = Some(whole_at);
        }
        has_one
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        let mut token = [0; 32];
        token[..8].copy_from_slice(&number.to_le_bytes());
        Key { token, door: Door::Metrics }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn what_was_found_out_holds_for_its_time_and_no_longer() {
        let start = Instant::now();
        for (verdict, holds_for) in [
            (Verdict::Allowed, 60),
            (Verdict::Forbidden, 10),
            (Verdict::Unauthenticated, 10),
            (Verdict::Unanswered, 2),
        ] {
            let mut verdicts = Verdicts::default();
            assert_eq!(verdicts.look(&key(1), start), Next::Ask);
            verdicts.learn(key(1), verdict, start);
            let last = start + seconds(holds_for) - Duration::from_millis(1);
            assert_eq!(verdicts.look(&key(1), last), Next::Known(verdict));
            assert_eq!(verdicts.look(&key(1), start + seconds(holds_for)), Next::Ask);
        }
    }

    #[test]
    fn a_verdict_is_of_one_token_at_one_door() {
        let now = Instant::now();
        let mut verdicts = Verdicts::default();
        verdicts.learn(key(1), Verdict::Allowed, now);
        assert_eq!(verdicts.look(&key(2), now), Next::Ask);
        assert_eq!(verdicts.look(&Key { door: Door::Page, ..key(1) }, now), Next::Ask);
    }

    #[test]
    fn an_api_server_that_is_gone_closes_the_door_when_the_verdict_is_old() {
        let start = Instant::now();
        let mut verdicts = Verdicts::default();
        verdicts.learn(key(1), Verdict::Allowed, start);
        let late = start + ALLOWED_FOR;
        assert_eq!(verdicts.look(&key(1), late), Next::Ask);
        verdicts.learn(key(1), Verdict::Unanswered, late);
        assert_eq!(verdicts.look(&key(1), late), Next::Known(Verdict::Unanswered));
    }

    #[test]
    fn strangers_make_a_bounded_number_of_questions() {
        let start = Instant::now();
        let mut verdicts = Verdicts::default();
        let mut asked = 0;
        // A thousand tokens a second for a minute.
        for number in 0..60_000 {
            let now = start + Duration::from_millis(number);
            let key = key(usize::try_from(number).unwrap());
            if verdicts.look(&key, now) == Next::Ask {
                asked += 1;
                verdicts.learn(key, Verdict::Unauthenticated, now);
            }
        }
        assert!((60..=70).contains(&asked), "{asked}");
        assert!(verdicts.of.len() <= MAX_REMEMBERED);
    }

    #[test]
    fn who_was_good_is_asked_for_however_many_strangers_there_are() {
        let start = Instant::now();
        let mut verdicts = Verdicts::default();
        verdicts.learn(key(0), Verdict::Allowed, start);
        let mut now = start;
        for number in 1..3_000 {
            now += Duration::from_secs(1);
            if verdicts.look(&key(number), now) == Next::Ask {
                verdicts.learn(key(number), Verdict::Unauthenticated, now);
            }
        }
        while verdicts.strangers.take(now) {}
        assert_eq!(verdicts.look(&key(0), now), Next::Ask);
        // It is, until it is refused: then it is a stranger's like any other.
        verdicts.learn(key(0), Verdict::Unanswered, now);
        assert_eq!(verdicts.look(&key(0), now + UNANSWERED_FOR), Next::Ask);
        verdicts.learn(key(0), Verdict::Forbidden, now);
        let later = now + REFUSED_FOR;
        while verdicts.strangers.take(later) {}
        assert_eq!(verdicts.look(&key(0), later), Next::Known(Verdict::NotAsked));
    }

    #[test]
    fn an_hour_without_a_visit_makes_a_stranger() {
        let start = Instant::now();
        let mut verdicts = Verdicts::default();
        verdicts.learn(key(0), Verdict::Allowed, start);
        let later = start + KNOWN_FOR;
        while verdicts.strangers.take(later) {}
        assert_eq!(verdicts.look(&key(0), later), Next::Known(Verdict::NotAsked));
    }
}
