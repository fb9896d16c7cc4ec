//! Responses, with their bodies: in one piece, or produced chunk by chunk as the client reads.

use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::StatusCode;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY,
    WWW_AUTHENTICATE,
};

use super::compression::compressed;

/// Content type of Prometheus' text format.
pub(crate) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub type Request = hyper::Request<Incoming>;
pub type Response = hyper::Response<Body>;

pub(crate) fn text(status: StatusCode, body: &'static str) -> Response {
    whole(status, "text/plain; charset=utf-8", body.into())
}

pub(crate) fn whole(status: StatusCode, content_type: &'static str, mut rest: Bytes) -> Response {
    let length = rest.len();
    let pieces = std::iter::from_fn(move || {
        // A copy: a part of the whole would keep all of it until it is written.
        let piece =
            |rest: &mut Bytes| Bytes::copy_from_slice(&rest.split_to(rest.len().min(PIECE)));
        (!rest.is_empty()).then(|| Ok(piece(&mut rest)))
    });
    let mut response = Response::new(body(pieces));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A response whose chunks are rendered as it is sent, and compressed if `gzip` is set.
pub(crate) fn chunked(
    content_type: &'static str,
    chunks: impl Iterator<Item = Vec<u8>> + Send + 'static,
    gzip: bool,
) -> Response {
    let mut response = Response::new(if gzip {
        body(compressed(chunks).map(|bytes| bytes.map(Bytes::from)))
    } else {
        body(chunks.map(|text| Ok(text.into())))
    });
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// A 401 with the challenge that clients expect.
pub(crate) fn unauthorized(reason: &'static str) -> Response {
    let mut response = text(StatusCode::UNAUTHORIZED, reason);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// A 405 with the methods that the path has.
pub(crate) fn method_not_allowed(allowed: &'static str) -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "See the header Allow.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Bytes of a body that are passed to hyper at once. hyper takes the next ones when these are
/// written, so a body exists until its client has read nearly all of it.
const PIECE: usize = 16 * 1024;

fn body(pieces: impl Iterator<Item = std::io::Result<Bytes>> + Send + 'static) -> Body {
    let mut is_first = true;
    let frames = stream::iter(pieces.map(|piece| piece.map(Frame::data))).then(move |frame| {
        // The head leaves with the first frame.
        let is_first = std::mem::take(&mut is_first);
        async move {
            if !is_first {
                // Compressed chunks are small: hyper could take all of them before other connections have a turn.
                tokio::task::yield_now().await;
            }
            frame
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Keeps a value until the body is written, or its connection has failed.
pub(crate) fn holding(response: Response, value: impl Send + 'static) -> Response {
    let frame = move |frame| {
        let _held = &value;
        frame
    };
    response.map(|body| body.map_frame(frame).boxed_unsync())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn other_connections_have_a_turn_between_the_chunks_of_a_body() {
        let rendered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&rendered);
        let chunks = std::iter::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            b"calm ".repeat(1000)
        });
        let large = chunked(EXPOSITION, chunks.take(100), true).into_body().collect();
        let probe = async { rendered.load(Ordering::Relaxed) };
        let (large, before_probe) = tokio::join!(large, probe);
        assert!(large.is_ok() && before_probe <= 2, "{before_probe} chunks before the probe");
        assert_eq!(rendered.load(Ordering::Relaxed), 100);
    }
}
