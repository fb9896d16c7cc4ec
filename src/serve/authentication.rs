//! Reviews bearer tokens through the API server, unless the [`TokenCache`] has a decision.
//! Concurrent requests with one token share its review. Every failure means no access.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::watch;

use super::token_cache::{Decision, Lookup, TokenCache, TokenKey};
use crate::client::cluster::call::CallError;
use crate::client::cluster::{ApiClient, Review};
use crate::clock;

/// Prometheus' default scrape timeout is 10 s; a response that gives the reason has to arrive before.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("cannot create a key to hash tokens with: the system provides no random numbers")]
pub struct NoRandomness;

#[derive(Debug)]
pub enum Outcome<'a> {
    /// The API server's decision, or that the limit of reviews is reached.
    Decided(Decision),
    Failed(&'a CallError),
}

pub struct Authenticator {
    reviewer: ApiClient,
    /// New at each start, so that tokens with a given hash can't be computed.
    hash_key: hmac::Key,
    state: Mutex<State>,
    report: Box<dyn Fn(&Outcome<'_>) + Send + Sync>,
}

#[derive(Default)]
struct State {
    cache: TokenCache,
    under_way: HashMap<TokenKey, watch::Receiver<Option<Decision>>>,
}

impl Authenticator {
    /// Reviews tokens through `reviewer` and passes each outcome to `report`.
    pub fn new(
        reviewer: ApiClient,
        report: impl Fn(&Outcome<'_>) + Send + Sync + 'static,
    ) -> Result<Self, NoRandomness> {
        let hash_key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let hash_key = hash_key.map_err(|_| NoRandomness)?;
        Ok(Self { reviewer, hash_key, state: Mutex::default(), report: Box::new(report) })
    }

    /// Whether a token that this address sends gives access to this path.
    pub async fn decide(
        self: &Arc<Self>,
        path: &'static str,
        token: &str,
        address: IpAddr,
    ) -> Decision {
        let mut review = match self.begin(path, token, address) {
            Ok(review) => review,
            Err(decision) => return decision,
        };
        let decision = review.wait_for(Option::is_some).await;
        decision.ok().and_then(|decision| *decision).unwrap_or(Decision::Unanswered)
    }

    /// Begins or joins the review of a token; an error is a decision that needs no review. The
    /// review continues when its client disconnects.
    fn begin(
        self: &Arc<Self>,
        path: &'static str,
        token: &str,
        address: IpAddr,
    ) -> Result<watch::Receiver<Option<Decision>>, Decision> {
        let key = TokenKey { hash: self.hash(token), path };
        let mut state = self.state();
        if let Some(review) = state.under_way.get(&key) {
            return Ok(review.clone());
        }
        if let Lookup::Decided(decision) = state.cache.look_up(&key, address, clock::now().at) {
            if decision == Decision::NotAsked {
                (self.report)(&Outcome::Decided(decision));
            }
            return Err(decision);
        }
        let (decided, review) = watch::channel(None);
        state.under_way.insert(key, review.clone());
        drop(state);
        let (this, token) = (Arc::clone(self), token.to_owned());
        tokio::spawn(async move {
            let decision = this.review(path, &token).await;
            let mut state = this.state();
            state.cache.store(key, address, decision, clock::now().at);
            state.under_way.remove(&key);
            drop(state);
            decided.send_replace(Some(decision));
        });
        Ok(review)
    }

    async fn review(&self, path: &'static str, token: &str) -> Decision {
        let review = self.reviewer.review(token, path);
        let review = tokio::time::timeout(REVIEW_TIMEOUT, review).await;
        let decision = match review.unwrap_or(Err(CallError::TimedOut(REVIEW_TIMEOUT))) {
            Ok(Review::Allowed) => Decision::Allowed,
            Ok(Review::Forbidden) => Decision::Forbidden,
            Ok(Review::Unauthenticated) => Decision::Unauthenticated,
            Err(error) => {
                (self.report)(&Outcome::Failed(&error));
                return Decision::Unanswered;
            }
        };
        (self.report)(&Outcome::Decided(decision));
        decision
    }

    fn hash(&self, token: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.hash_key, token.as_bytes());
        // HMAC-SHA256 gives 32 bytes.
        tag.as_ref().try_into().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
