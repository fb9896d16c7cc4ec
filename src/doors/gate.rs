//! Asks the API server about tokens: each once at a time, and only about those that
//! [`Verdicts`] does not know. Whatever goes wrong, nobody gets in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::watch;

use super::rules::Door;
use super::verdicts::{Key, Next, Verdict, Verdicts};
use crate::cluster::call::CallError;
use crate::cluster::{ApiClient, Review};
use crate::sampler::moment_now;

/// Prometheus waits no longer than 10 s, and would like an answer that says why not.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The system has no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a key to hash tokens with: the system gives no random numbers")]
pub struct NoRandomness;

/// What came of a token.
#[derive(Debug)]
pub enum Report<'a> {
    /// The API server said so, or there were too many to ask for this one.
    Found(Verdict),
    /// The API server did not say.
    Failed(&'a CallError),
}

type Hear = Box<dyn Fn(&Report<'_>) + Send + Sync>;

/// The one who looks at tokens.
pub struct Gate {
    api: ApiClient,
    /// Made anew at each start, so that nobody can look for tokens of the same hash.
    secret: hmac::Key,
    state: Mutex<State>,
    hear: Hear,
}

#[derive(Default)]
struct State {
    verdicts: Verdicts,
    under_way: HashMap<Key, watch::Receiver<Option<Verdict>>>,
}

impl Gate {
    /// Asks by `api`, and reports to `hear` what came of it.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn new(
        api: ApiClient,
        hear: impl Fn(&Report<'_>) + Send + Sync + 'static,
    ) -> Result<Self, NoRandomness> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let secret = secret.map_err(|_| NoRandomness)?;
        Ok(Self { api, secret, state: Mutex::default(), hear: Box::new(hear) })
    }

    /// Whether who shows this token may pass.
    pub async fn pass(self: &Arc<Self>, door: Door, token: &str) -> Verdict {
        let mut review = match self.begin(door, token) {
            Ok(review) => review,
            Err(verdict) => return verdict,
        };
        let found = review.wait_for(Option::is_some).await;
        found.ok().and_then(|found| *found).unwrap_or(Verdict::Unanswered)
    }

    /// The review of a token, where it needs one; it goes on when its client has gone.
    fn begin(
        self: &Arc<Self>,
        door: Door,
        token: &str,
    ) -> Result<watch::Receiver<Option<Verdict>>, Verdict> {
        let key = Key { token: self.hash(token), door };
        let mut state = self.state();
        if let Some(review) = state.under_way.get(&key) {
            return Ok(review.clone());
        }
        match state.verdicts.look(&key, moment_now().at) {
            Next::Known(verdict) => {
                if verdict == Verdict::NotAsked {
                    (self.hear)(&Report::Found(verdict));
                }
                return Err(verdict);
            }
            Next::Ask => {}
        }
        let (found, review) = watch::channel(None);
        state.under_way.insert(key, review.clone());
        drop(state);
        let (gate, token) = (Arc::clone(self), token.to_owned());
        tokio::spawn(async move {
            let verdict = gate.ask(door, &token).await;
            let mut state = gate.state();
            state.verdicts.learn(key, verdict, moment_now().at);
            state.under_way.remove(&key);
            drop(state);
            found.send_replace(Some(verdict));
        });
        Ok(review)
    }

    async fn ask(&self, door: Door, token: &str) -> Verdict {
        let review = self.api.review(token, door.path());
        let review = tokio::time::timeout(TIME_LIMIT, review).await;
        let verdict = match review.unwrap_or(Err(CallError::TimedOut(TIME_LIMIT))) {
            Ok(Review::Allowed) => Verdict::Allowed,
            Ok(Review::Forbidden) => Verdict::Forbidden,
            Ok(Review::Unauthenticated) => Verdict::Unauthenticated,
            Err(error) => {
                (self.hear)(&Report::Failed(&error));
                return Verdict::Unanswered;
            }
        };
        (self.hear)(&Report::Found(verdict));
        verdict
    }

    fn hash(&self, token: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.secret, token.as_bytes());
        let mut hash = [0; 32];
        for (to, from) in hash.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        hash
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
