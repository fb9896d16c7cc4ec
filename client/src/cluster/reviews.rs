//! Reviews of a client's bearer token: authentication (TokenReview) and authorization of a path
//! (SubjectAccessReview). Needs the rights of `system:auth-delegator`.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Resource;

use super::call::CallError;
use super::client::ApiClient;

/// What a token gives. Its name is the value of the metric label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Decision {
    Allowed,
    Forbidden,
    /// The token is invalid or expired, or its account was deleted.
    Unauthenticated,
    /// No access: the API server did not review the token.
    Unanswered,
    /// No access: the limit of reviews for unknown tokens is reached.
    NotAsked,
}

impl ApiClient {
    /// Whether the user of `token` may `get` the non-resource `path`: one of the first three decisions. An error
    /// means no access.
    pub async fn review(&self, token: &str, path: &str) -> Result<Decision, CallError> {
        let spec = TokenReviewSpec { token: Some(token.into()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let review: TokenReview = self.create(&TokenReview::url_path(&(), None), &review).await?;
        let status = review.status.unwrap_or_default();
        let user = status.user.unwrap_or_default();
        let has_name = user.username.as_ref().is_some_and(|name| !name.is_empty());
        if status.authenticated != Some(true) || !has_name {
            return Ok(Decision::Unauthenticated);
        }
        let attributes =
            NonResourceAttributes { path: Some(path.into()), verb: Some("get".into()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(attributes),
            resource_attributes: None,
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let path = SubjectAccessReview::url_path(&(), None);
        let review: SubjectAccessReview = self.create(&path, &review).await?;
        let status = review.status.unwrap_or_default();
        let is_allowed = status.allowed && status.denied != Some(true);
        Ok(if is_allowed { Decision::Allowed } else { Decision::Forbidden })
    }
}
