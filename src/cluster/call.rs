//! One request to the API server within a time limit, with whatever it answers told apart by what
//! helps.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;
use kube::core::request;
use serde_json::Value;

/// An API server that takes longer is asked again later.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// No Node is larger: etcd takes no object of more than 1.5 MiB.
const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

/// How much of an answer is quoted.
const QUOTED: usize = 300;

/// Why the API server did not do as it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// 403: the agent lacks the right, or its admission policy forbids it.
    #[error("the API server forbids it: {0}")]
    Forbidden(String),
    /// 401: the token is no more.
    #[error("the API server does not know the agent's token: {0}")]
    Unauthorized(String),
    /// 404: there is no such object.
    #[error("the API server has no such object; for a Node, see --node-name")]
    NotFound,
    /// 409: the object changed between looking and writing.
    #[error("the Node was changed by somebody else meanwhile")]
    Conflict,
    /// 429: later, please.
    #[error("the API server is busy")]
    Throttled(Option<Duration>),
    /// Any other 4xx.
    #[error("the API server refuses it with {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// What it says.
        message: String,
    },
    /// 5xx.
    #[error("the API server failed with {code}: {message}")]
    Failed {
        /// The HTTP status.
        code: u16,
        /// What it says.
        message: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// No answer, or one that is none.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

impl CallError {
    /// All that [`CallError::word`] can say.
    pub const WORDS: [&'static str; 8] = [
        "forbidden",
        "unauthorized",
        "not_found",
        "conflict",
        "throttled",
        "refused",
        "failed",
        "unreachable",
    ];

    /// A closed set of words, for a label.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            CallError::Forbidden(_) => "forbidden",
            CallError::Unauthorized(_) => "unauthorized",
            CallError::NotFound => "not_found",
            CallError::Conflict => "conflict",
            CallError::Throttled(_) => "throttled",
            CallError::Refused { .. } => "refused",
            CallError::Failed { .. } => "failed",
            CallError::Unreachable(_) | CallError::TimedOut(_) => "unreachable",
        }
    }

    /// How long the API server asks to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            CallError::Throttled(after) | CallError::Failed { retry_after: after, .. } => *after,
            CallError::Forbidden(_)
            | CallError::Unauthorized(_)
            | CallError::NotFound
            | CallError::Conflict
            | CallError::Refused { .. }
            | CallError::Unreachable(_)
            | CallError::TimedOut(_) => None,
        }
    }
}

/// Sends a request; answers the body of a success.
///
/// # Errors
/// [`CallError`], after [`TIME_LIMIT`] at the latest.
pub(super) async fn call(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<Vec<u8>, CallError> {
    let unreachable = |error: kube::Error| CallError::Unreachable(reason(&error));
    let request = request.map_err(|error| CallError::Unreachable(error.to_string()))?;
    let answer = async {
        let answer = client.send(request.map(Body::from)).await.map_err(unreachable)?;
        let status = answer.status();
        let retry_after = answer.headers().get(http::header::RETRY_AFTER);
        let retry_after = retry_after
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| CallError::Unreachable(error.to_string()))?.to_bytes();
        if status.is_success() {
            return Ok(body.to_vec());
        }
        Err(refusal(status.as_u16(), retry_after, &body))
    };
    tokio::time::timeout(TIME_LIMIT, answer).await.unwrap_or(Err(CallError::TimedOut(TIME_LIMIT)))
}

fn refusal(code: u16, retry_after: Option<Duration>, body: &[u8]) -> CallError {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
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

/// The innermost reason: what is around it says no more than that a request failed.
fn reason(error: &kube::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart_by_what_helps() {
        let status = br#"{"kind":"Status","message":"not yours","code":403}"#;
        assert_eq!(refusal(403, None, status), CallError::Forbidden("not yours".into()));
        let soon = Some(Duration::from_secs(7));
        assert_eq!(refusal(429, soon, b"Too many requests\n").retry_after(), soon);
        let failed = refusal(503, None, b"<html>");
        assert_eq!((failed.word(), failed.retry_after()), ("failed", None));
        let long = "x".repeat(10_000);
        assert!(refusal(422, None, long.as_bytes()).to_string().len() < 400);
        for code in 400..600 {
            assert!(CallError::WORDS.contains(&refusal(code, None, b"").word()));
        }
    }
}
