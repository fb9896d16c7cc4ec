//! What the API server says of somebody else's bearer token: whose it is (TokenReview), and whether
//! they may get a path (SubjectAccessReview). The rights are those of `system:auth-delegator`.

use kube::Client;
use kube::api::{PostParams, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{CallError, call};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    /// The token is somebody's who may.
    Allowed,
    /// The token is somebody's who may not.
    Forbidden,
    /// The token is nobody's: made up, expired, or its account is gone.
    Unauthenticated,
}

/// Who asks the API server.
#[derive(Clone)]
pub struct Reviewer {
    client: Client,
}

#[derive(Deserialize)]
struct Answered<S> {
    status: S,
}

#[derive(Deserialize)]
struct TokenStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: User,
}

/// Handed on as it comes: what of it counts is the API server's to say.
#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    uid: Option<Value>,
    groups: Option<Value>,
    extra: Option<Value>,
}

#[derive(Deserialize)]
struct AccessStatus {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    denied: bool,
}

impl Reviewer {
    /// Asks as this client, whose account needs the right to.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whether who has this token may get this path.
    ///
    /// # Errors
    /// [`CallError`] where the API server does not say: then nobody may.
    pub async fn review(&self, token: &str, path: &str) -> Result<Review, CallError> {
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token},
        });
        let TokenStatus { authenticated, user } = self.ask(TOKEN_REVIEWS, &question).await?;
        if !authenticated || user.username.is_empty() {
            return Ok(Review::Unauthenticated);
        }
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        });
        let AccessStatus { allowed, denied } = self.ask(ACCESS_REVIEWS, &question).await?;
        Ok(if allowed && !denied { Review::Allowed } else { Review::Forbidden })
    }

    async fn ask<S>(&self, path: &str, question: &Value) -> Result<S, CallError>
    where
        S: for<'a> Deserialize<'a>,
    {
        let question = question.to_string().into_bytes();
        let request = Request::new(path).create(&PostParams::default(), question);
        let answer = call(&self.client, request).await?;
        let answered: Answered<S> = serde_json::from_slice(&answer)
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        Ok(answered.status)
    }
}
