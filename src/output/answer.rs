//! The body of an HTTP answer: whole, or a scrape's chunk by chunk as its client takes them.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use super::compression::Gzip;
use super::scrape::Scrape;

/// A sentence.
pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Answer> {
    whole(status, "text/plain; charset=utf-8", body.into())
}

/// All of it at once.
pub(crate) fn whole(
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Whole(Option<Bytes>),
    Scrape(Option<Box<ScrapeAnswer>>),
}

/// What is left of a scrape's.
#[derive(Debug)]
pub(crate) struct ScrapeAnswer {
    scrape: Scrape,
    gzip: Option<Gzip>,
}

impl ScrapeAnswer {
    /// All of it, packed or not.
    pub(crate) fn new(scrape: Scrape, gzip: bool) -> Self {
        Self { scrape, gzip: gzip.then(Gzip::default) }
    }

    /// The next bytes, and whether more will follow.
    fn next(&mut self) -> std::io::Result<(Vec<u8>, bool)> {
        let mut text = Vec::new();
        let more = self.scrape.next_chunk(&mut text);
        let Some(gzip) = &mut self.gzip else {
            return Ok((text, more));
        };
        let mut bytes = gzip.compress(&text)?;
        if !more && let Some(gzip) = self.gzip.take() {
            bytes.append(&mut gzip.finish()?);
        }
        Ok((bytes, more))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match &mut *self {
            Answer::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Answer::Scrape(rest) => {
                let Some(scrape) = rest else {
                    return Poll::Ready(None);
                };
                let (bytes, more) = scrape.next()?;
                if !more {
                    *rest = None;
                }
                Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Whole(None) | Answer::Scrape(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Answer::Whole(body) => {
                let length = body.as_ref().map_or(0, Bytes::len);
                hyper::body::SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Answer::Scrape(_) => hyper::body::SizeHint::default(),
        }
    }
}
