//! Reviews of a client's bearer token: authentication (TokenReview) and authorization of a path
//! (SubjectAccessReview). Needs the rights of `system:auth-delegator`.

use kube::api::{PostParams, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::call::{CallError, LONGEST_OBJECT, call};
use super::client::ApiClient;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    Allowed,
    Forbidden,
    /// The token is invalid or expired, or its account was deleted.
    Unauthenticated,
}

#[derive(Deserialize)]
struct ReviewResponse<S> {
    status: S,
}

#[derive(Deserialize)]
struct TokenStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: User,
}

/// The user that the TokenReview returns. It is passed to the SubjectAccessReview unchanged.
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

impl ApiClient {
    /// Whether the user of `token` may `get` the non-resource `path`. An error means no access.
    pub async fn review(&self, token: &str, path: &str) -> Result<Review, CallError> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token},
        });
        let TokenStatus { authenticated, user } = self.create(TOKEN_REVIEWS, &review).await?;
        if !authenticated || user.username.is_empty() {
            return Ok(Review::Unauthenticated);
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        });
        let AccessStatus { allowed, denied } = self.create(ACCESS_REVIEWS, &review).await?;
        Ok(if allowed && !denied { Review::Allowed } else { Review::Forbidden })
    }

    async fn create<S: DeserializeOwned>(
        &self,
        path: &str,
        review: &Value,
    ) -> Result<S, CallError> {
        let request = Request::new(path).create(&PostParams::default(), review.to_string().into());
        Ok(call::<ReviewResponse<S>>(&self.client, request, LONGEST_OBJECT).await?.status)
    }
}
