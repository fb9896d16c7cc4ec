//! One request to the API server, with a time limit. Its errors are grouped by what the caller can
//! do about them.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::api::{Patch, PatchParams, Request};
use kube::client::Body;
use kube::core::request;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use strum::{IntoStaticStr, VariantNames};

use crate::json::decode;

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Size limit of a response with one object, in bytes: etcd stores at most 1.5 MiB per object.
pub(super) const LONGEST_OBJECT: usize = 4 * 1024 * 1024;

/// Characters of a response that an error message quotes.
const QUOTED: usize = 300;

/// Each kind is the value of a metric label.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames, thiserror::Error)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CallError {
    /// 403: RBAC or an admission policy forbids it.
    #[error("the API server forbids it: {0}")]
    Forbidden(String),
    /// 401: the token is invalid or has expired.
    #[error("the API server rejects the token: {0}")]
    Unauthorized(String),
    #[error("the API server has no such object or kind")]
    NotFound,
    /// 409: the object changed between the read and the write.
    #[error("another client changed the object between the read and the write")]
    Conflict,
    /// 429: too many requests; with the time to wait, if given.
    #[error("the API server throttles requests")]
    Throttled(Option<Duration>),
    #[error("the API server refuses it with {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("the API server failed with {code}: {message}")]
    Failed { code: u16, message: String, retry_after: Option<Duration> },
    /// No connection, no response in time, or one that is of no use.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = &error {
            refusal(status.code, None, status.message.as_bytes())
        } else {
            // The outer errors state only that a request failed.
            Self::Unreachable(anyhow::Error::new(error).root_cause().to_string())
        }
    }
}

impl CallError {
    /// No response within a time limit.
    pub fn timed_out(limit: Duration) -> Self {
        Self::Unreachable(format!("it did not respond within {} s", limit.as_secs()))
    }

    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Throttled(after) | Self::Failed { retry_after: after, .. } = self {
            *after
        } else {
            None
        }
    }
}

/// Sends a request and parses the JSON body of a successful response. Fails if the body is longer
/// than [`LONGEST_OBJECT`], or after [`TIME_LIMIT`].
pub(super) async fn call<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<T, CallError> {
    let answer = body_of_answer(client, request.map_err(unreachable)?);
    let body = tokio::time::timeout(TIME_LIMIT, answer)
        .await
        .unwrap_or_else(|_| Err(CallError::timed_out(TIME_LIMIT)))?;
    decode(body.as_ref()).map_err(unreachable)
}

async fn body_of_answer(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<impl AsRef<[u8]>, CallError> {
    let answer = client.send(request.map(Body::from)).await?;
    let status = answer.status();
    let retry_after = answer.headers().get(http::header::RETRY_AFTER);
    let retry_after =
        retry_after.and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    let body = Limited::new(answer.into_body(), LONGEST_OBJECT).collect().await;
    let body = body.map_err(unreachable)?.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    Err(refusal(status.as_u16(), retry_after, &body))
}

/// Sends a merge patch.
pub(super) async fn patch(
    client: &Client,
    path: &str,
    name: &str,
    patch: &Value,
    params: &PatchParams,
) -> Result<(), CallError> {
    let request = Request::new(path).patch(name, params, &Patch::Merge(patch));
    call::<IgnoredAny>(client, request).await.map(drop)
}

pub(super) fn unreachable(error: impl std::fmt::Display) -> CallError {
    CallError::Unreachable(error.to_string())
}

fn refusal(code: u16, retry_after: Option<Duration>, body: &[u8]) -> CallError {
    let status: Value = decode(body).unwrap_or_default();
    let message = status.get("message").and_then(Value::as_str).map(str::to_owned);
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    let message: String = message.chars().take(QUOTED).collect();
    match code {
        401 => CallError::Unauthorized(message),
        403 => CallError::Forbidden(message),
        404 => CallError::NotFound,
        409 => CallError::Conflict,
        429 => CallError::Throttled(retry_after),
        400..500 => CallError::Refused { code, message },
        _ => CallError::Failed { code, message, retry_after },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_kind_of_its_status_code() {
        let status = br#"{"kind":"Status","message":"not yours","code":403}"#;
        assert_eq!(refusal(403, None, status), CallError::Forbidden("not yours".into()));
        let soon = Some(Duration::from_secs(7));
        assert_eq!(refusal(429, soon, b"Too many requests\n").retry_after(), soon);
        let failed = refusal(503, None, b"<html>");
        assert_eq!((failed.into_str(), failed.retry_after()), ("failed", None));
        let long = "x".repeat(10_000);
        assert!(refusal(422, None, long.as_bytes()).to_string().len() < 400);
        for code in 400..600 {
            assert!(CallError::VARIANTS.contains(&refusal(code, None, b"").into_str()));
        }
    }
}
