//! What is answered to Prometheus, probes and people. No answer is made of what was asked.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, AUTHORIZATION, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderValue, VARY, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::watch;

use super::answer::{Answer, ScrapeAnswer, text, whole};
use super::compression::accepts_gzip;
use super::page::PAGE;
use super::scrape::Scrapes;
use crate::doors::gate::Gate;
use crate::doors::rules::{Admission, Refusal, Rules, Visit, bearer_token};
use crate::doors::verdicts::Verdict;
use crate::sample::Detail;
use crate::sampler::{Pods, Sampler, Scraped, TICK_INTERVAL, moment_now};
use crate::score::NodeScore;
use crate::snapshot::{AgentView, Snapshot};

/// Prometheus' own default time-out is 10 s: a later answer helps nobody.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Without a tick for this long the sampling thread is stuck.
const TICK_OVERDUE: Duration = TICK_INTERVAL.saturating_mul(6);

/// What requests are answered from.
#[derive(Debug)]
pub struct Service {
    sampler: Sampler,
    pods: Pods,
    scores: Scores,
    scrapes: Arc<Scrapes>,
    rules: Rules,
    /// Who looks at tokens, where the rules ask for any.
    gate: Option<Arc<Gate>>,
}

/// The newest score.
type Scores = watch::Receiver<Option<Arc<NodeScore>>>;

impl Service {
    /// Answers from this sampler.
    #[must_use]
    pub fn new(sampler: Sampler, pods: Pods, scores: Scores, scrapes: Arc<Scrapes>) -> Self {
        Self { sampler, pods, scores, scrapes, rules: Rules::default(), gate: None }
    }

    /// Asks this of its visitors, their tokens by this gate.
    #[must_use]
    pub fn with_doors(self, rules: Rules, gate: Option<Arc<Gate>>) -> Self {
        Self { rules, gate, ..self }
    }

    /// Lets a visitor pass, or has the answer that says why not.
    async fn admit(
        &self,
        request: &Request<Incoming>,
        visit: Visit,
    ) -> Result<(), Response<Answer>> {
        let door = match self.rules.admit(visit, request.uri().path()) {
            Admission::Free => return Ok(()),
            Admission::Refused(refusal) => return Err(refused(refusal)),
            Admission::Token(door) => door,
        };
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = header.and_then(bearer_token) else {
            return Err(unauthorized("This needs a token: Authorization: Bearer.\n"));
        };
        // Rules that ask for tokens where nobody looks at them let nobody in.
        let verdict = match &self.gate {
            Some(gate) => gate.pass(door, token).await,
            None => Verdict::Unanswered,
        };
        match verdict {
            Verdict::Allowed => Ok(()),
            Verdict::Unauthenticated => {
                Err(unauthorized("The API server does not know this token.\n"))
            }
            Verdict::Forbidden => Err(text(
                StatusCode::FORBIDDEN,
                "The API server knows this token, and does not let it get this path: bind its \
                 account to a role with it among its nonResourceURLs.\n",
            )),
            Verdict::Unanswered => Err(text(
                StatusCode::SERVICE_UNAVAILABLE,
                "The API server does not say whose this token is; until it does, nobody gets \
                 in.\n",
            )),
            Verdict::NotAsked => Err(text(
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many unknown tokens are shown here to ask the API server about this one; try \
                 later.\n",
            )),
        }
    }

    async fn answer_admitted(&self, request: &Request<Incoming>) -> Response<Answer> {
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
        let sample = match self.sample(Detail::Exported).await {
            Ok(refreshed) => refreshed.sample,
            Err(refusal) => return refusal,
        };
        let accepted = request.headers().get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let gzip = accepted.is_some_and(accepts_gzip);
        let score = self.scores.borrow().clone();
        let scrape = self.scrapes.begin(sample, score.as_deref());
        let answer = ScrapeAnswer::new(scrape, gzip);
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
        let Scraped { sample, rates, .. } = match self.sample(Detail::Everything).await {
            Ok(refreshed) => refreshed,
            Err(refusal) => return refusal,
        };
        let score = self.scores.borrow().clone();
        let (rates, score) = (rates.as_deref(), score.as_deref());
        match serde_json::to_vec(&Snapshot::new(&sample, rates, score, Some(self.agent()))) {
            Ok(json) => whole(StatusCode::OK, "application/json", json.into()),
            Err(error) => {
                tracing::error!(%error, "Cannot write the snapshot");
                text(StatusCode::INTERNAL_SERVER_ERROR, "Cannot write the snapshot.\n")
            }
        }
    }

    fn agent(&self) -> AgentView {
        let tick = self.sampler.latest_tick();
        let tick = tick.as_deref();
        AgentView {
            ticked_at_ms: tick.map(|tick| tick.sample.moment.unix_ms),
            tick_window_s: tick
                .and_then(|tick| Some(tick.rates.as_ref()?.node.window.as_secs_f64())),
            pods_listed: self.pods.borrow().as_ref().map(|pods| pods.is_listed()),
            health: self.scrapes.health().view(),
        }
    }

    /// A fresh sample, counted if it was made for this request; or the answer that says why not.
    async fn sample(&self, depth: Detail) -> Result<Scraped, Response<Answer>> {
        let refreshed = tokio::time::timeout(SAMPLE_TIMEOUT, self.sampler.scrape(depth)).await;
        match refreshed {
            Ok(Ok(refreshed)) => {
                if let Some(took) = refreshed.took {
                    self.scrapes.health().observe_scrape(&refreshed.sample, took);
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

impl super::connections::Service for Service {
    async fn answer(&self, request: Request<Incoming>, visit: Visit) -> Response<Answer> {
        match self.admit(&request, visit).await {
            Ok(()) => self.answer_admitted(&request).await,
            Err(refused) => refused,
        }
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

fn unauthorized(why: &'static str) -> Response<Answer> {
    let mut response = text(StatusCode::UNAUTHORIZED, why);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn refused(refusal: Refusal) -> Response<Answer> {
    match refusal {
        Refusal::NotEncrypted => text(
            StatusCode::BAD_REQUEST,
            "This was asked by plain HTTP, and is served by HTTPS: ask https://.\n",
        ),
        Refusal::PageIsLocal => text(
            StatusCode::FORBIDDEN,
            "The page is served to this host alone. In a cluster: kubectl port-forward to this \
             pod, or run the agent with --page=anywhere.\n",
        ),
        Refusal::PageIsOff => {
            text(StatusCode::FORBIDDEN, "The page is switched off: see --page.\n")
        }
    }
}
