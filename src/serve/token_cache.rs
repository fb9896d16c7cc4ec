//! Caches decisions about bearer tokens, and limits the number of reviews that unknown tokens
//! cause. Pure: time is an argument. Only hashes of tokens are kept.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Lifetime of a decision that allows access, and so the time that access can last after it was
/// revoked.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// Lifetime of a decision that refuses access, and so the time that a refusal can last after access
/// was granted.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Time between two attempts to review a token while the API server is unreachable.
const UNANSWERED_FOR: Duration = Duration::from_secs(2);
/// How long a token, and the address that it came from, count as known after a review that allowed
/// access.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// Reviews from unknown addresses, all together: this many at once, then one after each interval.
const ALL_UNKNOWN: Rate = Rate { burst: 10, interval: Duration::from_secs(1) };
/// Reviews from one unknown address. So it takes 20 addresses to use up the limit of all together.
const ONE_UNKNOWN: Rate = Rate { burst: 3, interval: Duration::from_secs(20) };
/// Maximum number of unknown addresses that are counted.
const MAX_SENDERS: usize = 1024;
/// Reviews for one address within [`REFUSED_FOR`] that didn't lead to access.
const MAX_REFUSED_PER_ADDRESS: usize = 5;
/// Maximum number of cached decisions. Unknown addresses alone can't reach it: they cause at most
/// 20 reviews in [`REFUSED_FOR`].
const MAX_ENTRIES: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    Forbidden,
    Unauthenticated,
    /// No access: the API server did not review the token.
    Unanswered,
    /// No access: the limit of reviews for unknown tokens is reached.
    NotAsked,
}

impl Decision {
    pub const ALL: [Self; 5] =
        [Self::Allowed, Self::Forbidden, Self::Unauthenticated, Self::Unanswered, Self::NotAsked];

    /// The value of the metric label `result`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Forbidden => "forbidden",
            Self::Unauthenticated => "unauthenticated",
            Self::Unanswered => "unanswered",
            Self::NotAsked => "not_asked",
        }
    }

    fn holds_for(self) -> Duration {
        match self {
            Self::Allowed => ALLOWED_FOR,
            Self::Forbidden | Self::Unauthenticated => REFUSED_FOR,
            Self::Unanswered => UNANSWERED_FOR,
            Self::NotAsked => Duration::ZERO,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenKey {
    pub hash: [u8; 32],
    pub path: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    Decided(Decision),
    /// The API server has to review the token.
    Review,
}

#[derive(Debug, Default)]
pub struct TokenCache {
    entries: HashMap<TokenKey, Entry>,
    unknown: RateLimit,
    senders: HashMap<IpAddr, RateLimit>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    decision: Decision,
    since: Instant,
    /// The address that sent the token last.
    address: IpAddr,
    /// Time of the last review that allowed access; `None` after one that refused it.
    good_at: Option<Instant>,
}

impl Entry {
    fn is_known(&self, now: Instant) -> bool {
        self.good_at.is_some_and(|at| now.saturating_duration_since(at) < KNOWN_FOR)
    }
}

impl TokenCache {
    /// Looks up a token that an address sends. A known token may always be reviewed again. A new
    /// token from the address of a known one, as after a rotation, does not count towards the limit
    /// of unknown addresses.
    pub fn look_up(&mut self, key: &TokenKey, address: IpAddr, now: Instant) -> Lookup {
        let entry = self.entries.get(key);
        if let Some(entry) = entry
            && now.saturating_duration_since(entry.since) < entry.decision.holds_for()
        {
            return Lookup::Decided(entry.decision);
        }
        let good_at = entry.and_then(|entry| entry.good_at);
        let is_known = entry.is_some_and(|entry| entry.is_known(now));
        if !is_known && !self.may_review(address, now) {
            return Lookup::Decided(Decision::NotAsked);
        }
        // The review counts from now on, and not only after the response of the API server.
        self.insert(*key, Entry { decision: Decision::Unanswered, since: now, address, good_at });
        Lookup::Review
    }

    fn may_review(&mut self, address: IpAddr, now: Instant) -> bool {
        let of_address = || self.entries.values().filter(|entry| entry.address == address);
        let refused = of_address().filter(|entry| {
            entry.decision != Decision::Allowed
                && now.saturating_duration_since(entry.since) < REFUSED_FOR
        });
        if refused.count() >= MAX_REFUSED_PER_ADDRESS {
            return false;
        }
        of_address().any(|entry| entry.is_known(now))
            || self.sender_may_review(address, now) && self.unknown.take(ALL_UNKNOWN, now)
    }

    fn sender_may_review(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.senders.len() >= MAX_SENDERS && !self.senders.contains_key(&address) {
            self.senders.retain(|_, sender| !sender.is_whole(now));
            if self.senders.len() >= MAX_SENDERS {
                return false;
            }
        }
        self.senders.entry(address).or_default().take(ONE_UNKNOWN, now)
    }

    /// Stores the decision about a token that [`TokenCache::look_up`] had reviewed.
    pub fn store(&mut self, key: TokenKey, address: IpAddr, decision: Decision, now: Instant) {
        let before = self.entries.get(&key).and_then(|entry| entry.good_at);
        let good_at = match decision {
            Decision::Allowed => Some(now),
            Decision::Forbidden | Decision::Unauthenticated => None,
            Decision::Unanswered | Decision::NotAsked => before,
        };
        self.insert(key, Entry { decision, since: now, address, good_at });
    }

    /// A full cache drops the oldest token without allowed access, or else the one whose access was
    /// allowed longest ago.
    fn insert(&mut self, key: TokenKey, entry: Entry) {
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| (entry.good_at, entry.since));
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, entry);
    }
}

/// A rate limit: `burst` reviews at once, then one after each interval.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    interval: Duration,
}

/// How much of a [`Rate`] is used.
#[derive(Debug, Default)]
struct RateLimit {
    /// When the whole burst is available again.
    whole_at: Option<Instant>,
}

impl RateLimit {
    fn is_whole(&self, now: Instant) -> bool {
        self.whole_at.is_none_or(|at| at <= now)
    }

    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let whole_at = self.whole_at.map_or(now, |at| at.max(now)) + rate.interval;
        let is_available = whole_at.saturating_duration_since(now) <= rate.interval * rate.burst;
        if is_available {
            self.whole_at = Some(whole_at);
        }
        is_available
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::clock;
    use crate::serve::authorization::{METRICS, PAGE};

    const PROMETHEUS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn key(number: usize) -> TokenKey {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        TokenKey { hash, path: METRICS }
    }

    /// The address of an unknown client.
    fn other(number: usize) -> IpAddr {
        let [.., a, b] = number.to_be_bytes();
        Ipv4Addr::new(10, 1, a, b).into()
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Sends a token for which a review has this decision.
    fn send(
        cache: &mut TokenCache,
        token: usize,
        address: IpAddr,
        decision: Decision,
        now: Instant,
    ) -> Decision {
        match cache.look_up(&key(token), address, now) {
            Lookup::Decided(decision) => decision,
            Lookup::Review => {
                cache.store(key(token), address, decision, now);
                decision
            }
        }
    }

    /// Uses up the limit of all unknown addresses together.
    fn exhaust(cache: &mut TokenCache, now: Instant) {
        while cache.unknown.take(ALL_UNKNOWN, now) {}
    }

    #[test]
    fn a_decision_holds_for_its_time_and_no_longer() {
        let start = clock::now().at;
        for (decision, holds_for) in [
            (Decision::Allowed, 60),
            (Decision::Forbidden, 10),
            (Decision::Unauthenticated, 10),
            (Decision::Unanswered, 2),
        ] {
            let mut cache = TokenCache::default();
            assert_eq!(send(&mut cache, 1, PROMETHEUS, decision, start), decision);
            let last = start + seconds(holds_for) - Duration::from_millis(1);
            assert_eq!(cache.look_up(&key(1), PROMETHEUS, last), Lookup::Decided(decision));
            let after = start + seconds(holds_for);
            assert_eq!(cache.look_up(&key(1), PROMETHEUS, after), Lookup::Review);
        }
    }

    #[test]
    fn a_decision_is_about_one_token_and_one_path() {
        let now = clock::now().at;
        let mut cache = TokenCache::default();
        send(&mut cache, 1, PROMETHEUS, Decision::Allowed, now);
        assert_eq!(cache.look_up(&key(2), PROMETHEUS, now), Lookup::Review);
        let page = TokenKey { path: PAGE, ..key(1) };
        assert_eq!(cache.look_up(&page, PROMETHEUS, now), Lookup::Review);
    }

    #[test]
    fn unknown_tokens_cause_a_bounded_number_of_reviews() {
        let start = clock::now().at;
        for (addresses, expected) in [(1, 5..=6), (10, 28..=42), (10_000, 45..=70)] {
            let mut cache = TokenCache::default();
            let mut reviews = 0;
            // A thousand tokens a second for a minute.
            for number in 0..60_000 {
                let now = start + Duration::from_millis(number);
                let number = usize::try_from(number).unwrap();
                let address = other(number % addresses);
                if cache.look_up(&key(number), address, now) == Lookup::Review {
                    reviews += 1;
                    cache.store(key(number), address, Decision::Unauthenticated, now);
                }
            }
            assert!(expected.contains(&reviews), "{reviews} from {addresses} addresses");
            assert!(cache.entries.len() <= MAX_ENTRIES && cache.senders.len() <= MAX_SENDERS);
        }
    }

    #[test]
    fn a_rotated_token_is_reviewed_while_others_send_garbage() {
        let start = clock::now().at;
        let mut cache = TokenCache::default();
        send(&mut cache, 0, PROMETHEUS, Decision::Allowed, start);
        for second in 1..600 {
            let now = start + seconds(second);
            for address in 0..20 {
                let garbage = usize::try_from(second).unwrap() * 20 + address;
                send(&mut cache, garbage, other(address), Decision::Unauthenticated, now);
            }
        }
        let now = start + seconds(600);
        exhaust(&mut cache, now);
        assert_eq!(send(&mut cache, 1, PROMETHEUS, Decision::Allowed, now), Decision::Allowed);
    }

    #[test]
    fn one_address_that_sends_garbage_leaves_reviews_for_new_addresses() {
        let start = clock::now().at;
        let mut cache = TokenCache::default();
        for second in 0..60 {
            let garbage = 100 + usize::try_from(second).unwrap();
            let now = start + seconds(second);
            send(&mut cache, garbage, other(0), Decision::Unauthenticated, now);
        }
        let now = start + seconds(60);
        assert_eq!(send(&mut cache, 1, PROMETHEUS, Decision::Allowed, now), Decision::Allowed);
    }

    #[test]
    fn ten_addresses_that_send_garbage_lock_no_new_client_out() {
        let start = clock::now().at;
        let mut cache = TokenCache::default();
        // A hundred tokens a second, and every other second a new client with a good token.
        for number in 0..6_000 {
            let now = start + Duration::from_millis(number * 10);
            let number = usize::try_from(number).unwrap();
            let garbage = 1_000 + number;
            send(&mut cache, garbage, other(number % 10), Decision::Unauthenticated, now);
            if number >= 3_000 && number % 200 == 0 {
                let decision = send(&mut cache, number, other(number), Decision::Allowed, now);
                assert_eq!(decision, Decision::Allowed, "{number}");
            }
        }
    }

    #[test]
    fn a_known_address_can_not_cause_reviews_without_end() {
        let now = clock::now().at;
        let mut cache = TokenCache::default();
        send(&mut cache, 0, PROMETHEUS, Decision::Allowed, now);
        // Also while the API server has not answered any of them yet.
        let reviews = (1..100)
            .filter(|&number| cache.look_up(&key(number), PROMETHEUS, now) == Lookup::Review);
        assert_eq!(reviews.count(), MAX_REFUSED_PER_ADDRESS);
    }

    #[test]
    fn a_good_token_is_reviewed_again_however_many_unknown_ones_there_are() {
        let start = clock::now().at;
        let mut cache = TokenCache::default();
        send(&mut cache, 0, PROMETHEUS, Decision::Allowed, start);
        let mut now = start;
        for number in 1..3_000 {
            now += seconds(1);
            send(&mut cache, number, PROMETHEUS, Decision::Unauthenticated, now);
        }
        exhaust(&mut cache, now);
        let decision = send(&mut cache, 0, PROMETHEUS, Decision::Unanswered, now);
        assert_eq!(decision, Decision::Unanswered);
        let later = now + UNANSWERED_FOR;
        assert_eq!(cache.look_up(&key(0), PROMETHEUS, later), Lookup::Review);
        // After a refusal, it is an unknown token.
        cache.store(key(0), PROMETHEUS, Decision::Forbidden, later);
        let later = later + REFUSED_FOR;
        exhaust(&mut cache, later);
        let decided = Lookup::Decided(Decision::NotAsked);
        assert_eq!(cache.look_up(&key(0), PROMETHEUS, later), decided);
    }

    #[test]
    fn a_token_and_its_address_are_unknown_again_after_an_hour() {
        let start = clock::now().at;
        let mut cache = TokenCache::default();
        send(&mut cache, 0, PROMETHEUS, Decision::Allowed, start);
        let later = start + KNOWN_FOR;
        exhaust(&mut cache, later);
        for token in [0, 1] {
            let decided = Lookup::Decided(Decision::NotAsked);
            assert_eq!(cache.look_up(&key(token), PROMETHEUS, later), decided);
        }
    }
}
