//! Reviews bearer tokens through the API server, unless the [`TokenCache`] has a decision.
//! Concurrent requests with one token share its review. Every failure means no access.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use ring::hmac;
use ring::rand::SystemRandom;

use super::token_cache::{TokenCache, TokenKey};
use crate::client::cluster::call::CallError;
use crate::client::cluster::{ApiClient, Decision};
use crate::clock;

/// Prometheus' default scrape timeout is 10 s; a response that gives the reason has to arrive before.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// A decision that is not a cached one, or why the API server did not decide.
pub type Outcome<'a> = Result<Decision, &'a CallError>;

pub struct Authenticator {
    reviewer: ApiClient,
    /// New at each start, so that tokens with a given hash can't be computed.
    hash_key: hmac::Key,
    state: Mutex<State>,
    report: Box<dyn Fn(Outcome<'_>) + Send + Sync>,
}

#[derive(Default)]
struct State {
    cache: TokenCache,
    under_way: HashMap<TokenKey, Shared<BoxFuture<'static, Decision>>>,
}

impl Authenticator {
    /// Reviews tokens through `reviewer` and passes each outcome to `report`. `None` if the system
    /// provides no random numbers.
    pub fn new(
        reviewer: ApiClient,
        report: impl Fn(Outcome<'_>) + Send + Sync + 'static,
    ) -> Option<Self> {
        let hash_key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        Some(Self { reviewer, hash_key, state: Mutex::default(), report: Box::new(report) })
    }

    /// Whether a token that this address sends gives access to this path. Begins or joins its review,
    /// unless a decision needs none. The review continues when its client disconnects.
    pub async fn decide(
        self: &Arc<Self>,
        path: &'static str,
        token: &str,
        address: IpAddr,
    ) -> Decision {
        let hash = hmac::sign(&self.hash_key, token.as_bytes());
        // HMAC-SHA256 gives 32 bytes.
        let key = (hash.as_ref().try_into().unwrap_or_default(), path);
        let review = {
            let mut state = self.state.lock();
            if let Some(review) = state.under_way.get(&key) {
                review.clone()
            } else if let Some(decision) = state.cache.look_up(&key, address, clock::now().at) {
                if decision == Decision::NotAsked {
                    (self.report)(Ok(decision));
                }
                return decision;
            } else {
                let review = Arc::clone(self).review(key, token.to_owned(), address);
                let review = review.boxed().shared();
                state.under_way.insert(key, review.clone());
                tokio::spawn(review.clone());
                review
            }
        };
        review.await
    }

    async fn review(self: Arc<Self>, key: TokenKey, token: String, address: IpAddr) -> Decision {
        let review =
            tokio::time::timeout(REVIEW_TIMEOUT, self.reviewer.review(&token, key.1)).await;
        let outcome = review.unwrap_or_else(|_| Err(CallError::timed_out(REVIEW_TIMEOUT)));
        (self.report)(outcome.as_ref().copied());
        let decision = outcome.unwrap_or(Decision::Unanswered);
        let mut state = self.state.lock();
        state.cache.store(key, address, decision, clock::now().at);
        state.under_way.remove(&key);
        decision
    }
}

#[cfg(test)]
mod tests;
