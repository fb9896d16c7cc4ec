//! Caches decisions about bearer tokens, and limits the number of reviews that unknown tokens
//! cause. Pure: time is an argument. Only hashes of tokens are kept.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::client::cluster::Decision;

/// This many reviews at once, then one after each interval.
type Rate = (u32, Duration);

/// When the whole burst is available again; `None` before the first review.
type WholeAt = Option<Instant>;

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
/// Reviews of unknown tokens from unknown addresses, all together: this many at once, then one after
/// each interval.
const ALL_UNKNOWN: Rate = (10, Duration::from_secs(1));
/// Reviews of unknown tokens from one address. So it takes 20 addresses to use up the limit of all
/// together.
const ONE_ADDRESS: Rate = (3, Duration::from_secs(20));
/// Maximum number of addresses that are counted.
const MAX_SENDERS: usize = 1024;
/// Maximum number of cached decisions. Unknown addresses alone can't reach it: they cause at most
/// 20 reviews in [`REFUSED_FOR`].
const MAX_TOKENS: usize = 128;

fn holds_for(decision: Decision) -> Duration {
    match decision {
        Decision::Allowed => ALLOWED_FOR,
        Decision::Forbidden | Decision::Unauthenticated => REFUSED_FOR,
        Decision::Unanswered => UNANSWERED_FOR,
        Decision::NotAsked => Duration::ZERO,
    }
}

/// The hash of a token, and the path that it is sent for.
pub type TokenKey = ([u8; 32], &'static str);

#[derive(Debug, Default)]
pub struct TokenCache {
    tokens: HashMap<TokenKey, Token>,
    unknown: WholeAt,
    senders: HashMap<IpAddr, WholeAt>,
}

#[derive(Debug)]
struct Token {
    decision: Decision,
    since: Instant,
    /// The address that sent the token for this decision.
    address: IpAddr,
    /// Time of the last review that allowed access; `None` after one that refused it.
    allowed_at: Option<Instant>,
}

impl Token {
    fn is_known(&self, now: Instant) -> bool {
        self.allowed_at.is_some_and(|at| now.saturating_duration_since(at) < KNOWN_FOR)
    }
}

impl TokenCache {
    /// The decision on a token that an address sends; `None` if the API server has to review it. A
    /// known token may always be reviewed again. A new token from the address of a known one, as
    /// after a rotation, does not count towards the limit of unknown addresses.
    pub fn look_up(&mut self, key: &TokenKey, address: IpAddr, now: Instant) -> Option<Decision> {
        let token = self.tokens.get(key);
        if let Some(token) = token
            && now.saturating_duration_since(token.since) < holds_for(token.decision)
        {
            return Some(token.decision);
        }
        let may_review =
            token.is_some_and(|token| token.is_known(now)) || self.may_review_unknown(address, now);
        (!may_review).then_some(Decision::NotAsked)
    }

    fn may_review_unknown(&mut self, address: IpAddr, now: Instant) -> bool {
        let is_known =
            self.tokens.values().any(|token| token.address == address && token.is_known(now));
        self.senders.retain(|_, whole_at| whole_at.is_some_and(|at| at > now));
        let is_full = self.senders.len() >= MAX_SENDERS;
        if is_full && !is_known && !self.senders.contains_key(&address) {
            return false;
        }
        let sender = self.senders.entry(address).or_default();
        take(sender, ONE_ADDRESS, now) && (is_known || take(&mut self.unknown, ALL_UNKNOWN, now))
    }

    /// Stores the API server's decision on a token. A full cache drops the oldest token without
    /// access, or else the one whose access was allowed longest ago.
    pub fn store(&mut self, key: TokenKey, address: IpAddr, decision: Decision, now: Instant) {
        let before = self.tokens.remove(&key).and_then(|token| token.allowed_at);
        let allowed_at = match decision {
            Decision::Allowed => Some(now),
            Decision::Forbidden | Decision::Unauthenticated => None,
            Decision::Unanswered | Decision::NotAsked => before,
        };
        if decision == Decision::Allowed {
            self.senders.remove(&address);
        }
        if self.tokens.len() >= MAX_TOKENS {
            let oldest =
                self.tokens.iter().min_by_key(|(_, token)| (token.allowed_at, token.since));
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.tokens.remove(&oldest);
            }
        }
        self.tokens.insert(key, Token { decision, since: now, address, allowed_at });
    }
}

fn take(whole_at: &mut WholeAt, (burst, interval): Rate, now: Instant) -> bool {
    let then = whole_at.map_or(now, |at| at.max(now)) + interval;
    let is_available = then.saturating_duration_since(now) <= interval * burst;
    if is_available {
        *whole_at = Some(then);
    }
    is_available
}

#[cfg(test)]
mod tests;
