//! HTTP for Prometheus, probes and people. It trusts no client: headers must come in time, the
//! number of connections and their age are bounded, and no answer is made of what was asked.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderValue, VARY,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::compression::{Gzip, accepts_gzip};
use super::scrape::{Scrape, Scrapes};
use crate::sample::Depth;
use crate::sampler::{Pods, Refreshed, Sampler, TICK_INTERVAL, moment_now};
use crate::score::NodeScore;
use crate::self_health::Reason;
use crate::snapshot::Snapshot;

/// Prometheus, a probe, a few people: more at once is an attack or a defect.
const MAX_CONNECTIONS: usize = 64;
/// Time to send a request's headers, also between two requests of one connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that reads slower than this gives its connection back.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(120);
/// Prometheus' own default time-out is 10 s: a later answer helps nobody.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers under way may take when the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Without a tick for this long the sampling thread is stuck.
const TICK_OVERDUE: Duration = TICK_INTERVAL.saturating_mul(6);

const PAGE: &str = include_str!("page.html");

/// What requests are answered from.
#[derive(Debug)]
pub struct Service {
    sampler: Sampler,
    pods: Pods,
    scores: Scores,
    scrapes: Arc<Scrapes>,
}

/// The newest score.
type Scores = watch::Receiver<Option<Arc<NodeScore>>>;

impl Service {
    /// Answers from this sampler.
    #[must_use]
    pub fn new(sampler: Sampler, pods: Pods, scores: Scores, scrapes: Arc<Scrapes>) -> Self {
        Self { sampler, pods, scores, scrapes }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Answer> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(request).await,
            "/snapshot.json" => self.snapshot().await,
            "/livez" => self.livez(),
            "/readyz" => self.readyz(),
            "/" => page(),
            _ => text(StatusCode::NOT_FOUND, "Not found. Try / or /metrics.\n"),
        }
    }

    async fn metrics(&self, request: &Request<Incoming>) -> Response<Answer> {
        let sample = match self.sample(Depth::Exported).await {
            Ok(refreshed) => refreshed.sample,
            Err(refusal) => return refusal,
        };
        let accepted = request.headers().get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let gzip = accepted.is_some_and(accepts_gzip);
        let score = self.scores.borrow().clone();
        let scrape = self.scrapes.begin(sample, score.as_deref());
        let answer = ScrapeAnswer { scrape, gzip: gzip.then(Gzip::default) };
        let mut response = Response::new(Answer::Scrape(Some(Box::new(answer))));
        let headers = response.headers_mut();
        let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        headers.insert(CONTENT_TYPE, format);
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        if gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    async fn snapshot(&self) -> Response<Answer> {
        let Refreshed { sample, rates, .. } = match self.sample(Depth::Everything).await {
            Ok(refreshed) => refreshed,
            Err(refusal) => return refusal,
        };
        let score = self.scores.borrow().clone();
        match serde_json::to_vec(&Snapshot::new(&sample, rates.as_deref(), score.as_deref())) {
            Ok(json) => whole(StatusCode::OK, "application/json", json.into()),
            Err(error) => {
                tracing::error!(%error, "Cannot write the snapshot");
                text(StatusCode::INTERNAL_SERVER_ERROR, "Cannot write the snapshot.\n")
            }
        }
    }

    /// A fresh sample, counted if it was made for this request; or the answer that says why not.
    async fn sample(&self, depth: Depth) -> Result<Refreshed, Response<Answer>> {
        let refreshed = tokio::time::timeout(SAMPLE_TIMEOUT, self.sampler.refresh(depth)).await;
        match refreshed {
            Ok(Ok(refreshed)) => {
                if let Some(took) = refreshed.took {
                    self.scrapes.health().observe(&refreshed.sample, took, Reason::Scrape);
                }
                Ok(refreshed)
            }
            Ok(Err(_)) | Err(_) => Err(text(
                StatusCode::SERVICE_UNAVAILABLE,
                "The kernel's files were not read in time.\n",
            )),
        }
    }

    fn livez(&self) -> Response<Answer> {
        let Some(tick) = self.sampler.latest_tick() else {
            return text(StatusCode::OK, "ok: waiting for the first sample\n");
        };
        let age = moment_now().at.saturating_duration_since(tick.sample.moment.at);
        if age < TICK_OVERDUE {
            text(StatusCode::OK, "ok\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "the sampling thread is stuck\n")
        }
    }

    fn readyz(&self) -> Response<Answer> {
        if self.sampler.latest_tick().is_none() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "waiting for the first sample\n");
        }
        if self.pods.borrow().as_ref().is_some_and(|pods| !pods.is_listed()) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "waiting for the list of pods\n");
        }
        text(StatusCode::OK, "ok\n")
    }
}

fn page() -> Response<Answer> {
    let mut response = whole(StatusCode::OK, "text/html; charset=utf-8", PAGE.into());
    // The page carries its own script and style, and talks to nobody but the agent.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

fn text(status: StatusCode, body: &'static str) -> Response<Answer> {
    whole(status, "text/plain; charset=utf-8", body.into())
}

fn whole(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The body of an answer.
#[derive(Debug)]
enum Answer {
    Whole(Option<Bytes>),
    Scrape(Option<Box<ScrapeAnswer>>),
}

#[derive(Debug)]
struct ScrapeAnswer {
    scrape: Scrape,
    gzip: Option<Gzip>,
}

impl ScrapeAnswer {
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

/// Serves until `stop` is done, then lets answers under way end.
pub async fn serve(listener: TcpListener, service: Service, stop: impl Future<Output = ()>) {
    let service = Arc::new(service);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        // A full house accepts nobody: the rest waits in the kernel's queue.
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let watcher = graceful.watcher();
                let service = Arc::clone(&service);
                tokio::spawn(async move {
                    converse(stream, peer, service, watcher).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most often: no use asking again at once.
                tracing::warn!(%error, "Cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::info!("Answers under way were cut off");
    }
}

async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    service: Arc<Service>,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.answer(&request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(32 * 1024)
        .serve_connection(TokioIo::new(stream), answer);
    match tokio::time::timeout(MAX_CONNECTION_AGE, watcher.watch(connection)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, %peer, "A connection ended early"),
        Err(_) => tracing::debug!(%peer, "A connection grew too old"),
    }
}
