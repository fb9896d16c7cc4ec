//! Response bodies: in one piece, or produced chunk by chunk as the client reads.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY,
    WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};

use super::compression::compressed;

pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    whole(status, "text/plain; charset=utf-8", body.into())
}

pub(crate) fn whole(
    status: StatusCode,
    content_type: &'static str,
    mut body: Bytes,
) -> Response<Body> {
    let length = body.len();
    let pieces = std::iter::from_fn(move || {
        (!body.is_empty()).then(|| Ok(body.split_to(body.len().min(PIECE))))
    });
    let mut response = Response::new(Body::new(pieces));
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
) -> Response<Body> {
    let body = if gzip {
        Body::new(compressed(chunks).map(|bytes| bytes.map(Bytes::from)))
    } else {
        Body::new(chunks.map(|text| Ok(text.into())))
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// A 401 with the challenge that clients expect.
pub(crate) fn unauthorized(reason: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::UNAUTHORIZED, reason);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// A 405 with the methods that the path has.
pub(crate) fn method_not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "See the header Allow.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// A 400 for plain HTTP where the rules need TLS.
pub(crate) fn not_encrypted() -> Response<Body> {
    text(StatusCode::BAD_REQUEST, "This is an HTTPS server: use https://.\n")
}

/// Bytes of a body that are passed to hyper at once. hyper takes the next ones when these are
/// written, so a body exists until its client has read nearly all of it.
const PIECE: usize = 16 * 1024;

pub struct Body {
    /// The part that hyper has not taken yet.
    rest: Box<dyn Iterator<Item = std::io::Result<Bytes>> + Send>,
    /// Dropped with the body: when it is written, or its connection has failed.
    held: Option<Box<dyn Send>>,
}

impl Body {
    fn new(rest: impl Iterator<Item = std::io::Result<Bytes>> + Send + 'static) -> Self {
        Self { rest: Box::new(rest), held: None }
    }

    /// Keeps a value until the body is written.
    pub(crate) fn hold(&mut self, value: impl Send + 'static) {
        self.held = Some(Box::new(value));
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(self.rest.next().map(|bytes| bytes.map(Frame::data)))
    }
}
