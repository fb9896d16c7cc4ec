//! Response bodies: in one piece, or produced chunk by chunk as the client reads.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};

use super::compression::Gzip;

pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    whole(status, "text/plain; charset=utf-8", body.into())
}

pub(crate) fn whole(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(Rest::Whole(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A response with a body in chunks, compressed if `gzip` is set.
pub(crate) fn chunked(
    content_type: &'static str,
    chunks: impl Chunks + 'static,
    gzip: bool,
) -> Response<Body> {
    let gzip_stream = gzip.then(Gzip::default);
    let mut response = Response::new(Body::new(Rest::Chunks(Box::new(chunks), gzip_stream)));
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

/// Text that is rendered as it is sent.
pub(crate) trait Chunks: Send {
    /// Appends the next chunk to `text`; `false` when it was the last.
    fn next_chunk(&mut self, text: &mut Vec<u8>) -> bool;
}

pub struct Body {
    rest: Rest,
    /// Values that are dropped with the body: when it is written, or its connection has failed.
    held: Vec<Box<dyn Send>>,
}

/// The part of a body that hyper has not taken yet.
enum Rest {
    Whole(Bytes),
    Chunks(Box<dyn Chunks>, Option<Gzip>),
    Nothing,
}

impl Body {
    fn new(rest: Rest) -> Self {
        Self { rest, held: Vec::new() }
    }

    /// Keeps a value until the body is written.
    pub(crate) fn hold(&mut self, value: impl Send + 'static) {
        self.held.push(Box::new(value));
    }

    fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Nothing => Ok(None),
            Rest::Whole(mut bytes) => {
                if bytes.len() > PIECE {
                    self.rest = Rest::Whole(bytes.split_off(PIECE));
                }
                Ok(Some(bytes))
            }
            Rest::Chunks(mut chunks, mut gzip) => {
                let mut bytes = Vec::new();
                let more = chunks.next_chunk(&mut bytes);
                if let Some(gzip) = &mut gzip {
                    bytes = gzip.compress(&bytes)?;
                }
                if more {
                    self.rest = Rest::Chunks(chunks, gzip);
                } else if let Some(gzip) = gzip {
                    bytes.append(&mut gzip.finish()?);
                }
                Ok(Some(bytes.into()))
            }
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(self.next().transpose().map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.rest, Rest::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        let exact = |length| SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX));
        match &self.rest {
            Rest::Nothing => exact(0),
            Rest::Whole(bytes) => exact(bytes.len()),
            Rest::Chunks(..) => SizeHint::default(),
        }
    }
}
