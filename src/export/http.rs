//! The agent's responses to Prometheus, probes and browsers. No response contains parts of its
//! request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_SECURITY_POLICY, HOST, HeaderValue};
use hyper::{Method, StatusCode};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::exposition::Exposition;
use super::families::FamilyGroup;
use super::score_series::{is_stale, write_score};
use crate::client::cluster::Decision;
use crate::client::snapshot::{Agent, Snapshot};
use crate::clock;
use crate::own_metrics::OwnMetrics;
use crate::relief::Assessment;
use crate::sample::{Detail, ScrapeSample};
use crate::sampler::{Pods, Sampler, TICK_INTERVAL};
use crate::serve::authentication::Authenticator;
use crate::serve::authorization::{LIVEZ, METRICS, PAGE, Page, READYZ, SNAPSHOT, bearer_token};
use crate::serve::body::{
    EXPOSITION, Request, Response, chunked, holding, method_not_allowed, text, unauthorized, whole,
};
use crate::serve::compression::accepts_gzip;
use crate::serve::connections::Service;
use crate::snapshot::{NodeIdentity, snapshot};

/// Prometheus' default scrape timeout.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Snapshots that may be in memory at once, of up to 5 MB each on the largest nodes.
pub(crate) const MOST_SNAPSHOTS: usize = 4;
/// Without a tick for this long, the sampling thread is stuck.
const TICK_OVERDUE: Duration = TICK_INTERVAL.saturating_mul(6);

/// The page, as one document with its style and script: a browser requests only the page and
/// `/snapshot.json`.
const DOCUMENT: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/style.css"),
    "</style>\n</head>\n<body>\n",
    include_str!("page/body.html"),
    "<script>\n",
    include_str!("page/script.js"),
    "</script>\n</body>\n</html>\n",
);

const NO_SAMPLE: &str = "waiting for the first sample\n";

pub(crate) struct AgentService {
    pub(crate) identity: NodeIdentity,
    pub(crate) sampler: Sampler,
    pub(crate) pods: Pods,
    pub(crate) assessments: watch::Receiver<Option<Arc<Assessment>>>,
    pub(crate) groups: Vec<FamilyGroup>,
    pub(crate) own_metrics: Arc<OwnMetrics>,
    pub(crate) page: Page,
    /// Snapshots in memory, each until its client has read it.
    pub(crate) snapshots: Arc<Semaphore>,
    /// Reviews tokens; `None` if clients are not authenticated.
    pub(crate) authenticator: Option<Arc<Authenticator>>,
}

impl AgentService {
    /// Checks the access rules; an error is the response of a request that is refused.
    async fn check_access(&self, request: &Request, peer: IpAddr) -> Result<(), Response> {
        let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
        let required = self.page.requirement(peer, request.uri().path(), host);
        let required = required.map_err(|(status, reason)| text(status, reason))?;
        let (Some(path), Some(authenticator)) = (required, &self.authenticator) else {
            return Ok(());
        };
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = header.and_then(bearer_token) else {
            return Err(unauthorized("This path needs a token: Authorization: Bearer.\n"));
        };
        Err(match authenticator.decide(path, token, peer).await {
            Decision::Allowed => return Ok(()),
            Decision::Unauthenticated => unauthorized("The API server rejects this token.\n"),
            Decision::Forbidden => text(
                StatusCode::FORBIDDEN,
                "The token's account may not get this path: bind it to a ClusterRole with this path \
                 among its nonResourceURLs.\n",
            ),
            Decision::Unanswered => unavailable(
                "The API server does not review tokens at the moment, so no client gets \
                 access.\n",
            ),
            Decision::NotAsked => unavailable(
                "Too many unknown tokens were sent, so this one was not reviewed; retry later.\n",
            ),
        })
    }

    /// An error is the response of a request that can't be answered yet.
    async fn metrics(&self, request: &Request) -> Result<Response, Response> {
        let sample = self.sample(Detail::Exported).await?;
        let accepted = request.headers().get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let assessment = self.assessment_at(sample.moment.at);
        let text = scrape(sample, &self.groups, assessment.as_deref(), &self.own_metrics);
        Ok(chunked(EXPOSITION, text, accepted.is_some_and(accepts_gzip)))
    }

    async fn snapshot(&self) -> Result<Response, Response> {
        // First: a request that waits holds no sample.
        let held = timeout(SAMPLE_TIMEOUT, Arc::clone(&self.snapshots).acquire_owned()).await;
        let held = held.map_err(|_| unavailable("Slow clients read all snapshots.\n"))?;
        let sample = self.sample(Detail::Everything).await?;
        let assessment = self.assessment_at(sample.moment.at);
        let tick = self.sampler.latest_tick();
        let tick = tick.as_deref();
        let agent = Agent {
            ticked_at_ms: tick.map(|tick| tick.moment.unix_ms),
            tick_window_s: tick.and_then(|tick| Some(tick.window?.as_secs_f64())),
            pods_listed: self.pods.borrow().as_ref().map(|pods| pods.is_listed()),
            ..self.own_metrics.status()
        };
        let snapshot = snapshot(&self.identity, &sample, assessment.as_deref(), Some(agent));
        Ok(holding(json(&snapshot), held))
    }

    /// The latest assessment, unless it is stale.
    fn assessment_at(&self, now: Instant) -> Option<Arc<Assessment>> {
        let latest = self.assessments.borrow().clone();
        latest.filter(|latest| !is_stale(&latest.score, now))
    }

    /// A fresh sample. An error is the response to send if there is none.
    async fn sample(&self, depth: Detail) -> Result<Arc<ScrapeSample>, Response> {
        if self.sampler.latest_tick().is_none() {
            return Err(unavailable(NO_SAMPLE));
        }
        let scraped = timeout(SAMPLE_TIMEOUT, self.sampler.scrape(depth)).await;
        let Ok(Ok(sample)) = scraped else {
            return Err(unavailable("The kernel's files were not read in time.\n"));
        };
        self.own_metrics.observe_scrape(&sample);
        Ok(sample)
    }

    /// Whether the process has to be restarted.
    fn livez(&self) -> Response {
        let tick = self.sampler.latest_tick();
        let last = tick.as_ref().map_or(self.identity.started_at, |tick| tick.moment.at);
        if clock::now().at.saturating_duration_since(last) >= TICK_OVERDUE {
            unavailable("the sampling thread is stuck\n")
        } else if tick.is_none() {
            text(StatusCode::OK, "ok: waiting for the first sample\n")
        } else {
            text(StatusCode::OK, "ok\n")
        }
    }

    /// Whether it has what it needs to respond.
    fn readyz(&self) -> Response {
        if self.sampler.latest_tick().is_none() {
            return unavailable(NO_SAMPLE);
        }
        if self.pods.borrow().as_ref().is_some_and(|pods| !pods.is_listed()) {
            return unavailable("waiting for the list of pods\n");
        }
        text(StatusCode::OK, "ok\n")
    }
}

impl Service for AgentService {
    async fn respond(&self, request: Request, peer: IpAddr) -> Response {
        if let Err(refused) = self.check_access(&request, peer).await {
            return refused;
        }
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        let response = match request.uri().path() {
            _ if !is_read => Err(method_not_allowed("GET, HEAD")),
            METRICS => self.metrics(&request).await,
            SNAPSHOT => self.snapshot().await,
            LIVEZ => Ok(self.livez()),
            READYZ => Ok(self.readyz()),
            PAGE => Ok(page()),
            _ => Err(text(StatusCode::NOT_FOUND, "Not found. Try / or /metrics.\n")),
        };
        response.unwrap_or_else(|refused| refused)
    }
}

/// The chunks of a response to a scrape: series of the sample, which are rendered as they are taken, of the score, then
/// the agent's own.
pub(crate) fn scrape(
    sample: Arc<ScrapeSample>,
    groups: &[FamilyGroup],
    assessment: Option<&Assessment>,
    metrics: &OwnMetrics,
) -> impl Iterator<Item = Vec<u8>> + use<> {
    let mut own = Vec::new();
    assessment.into_iter().for_each(|assessment| write_score(&mut own, assessment));
    metrics.write(&mut own);
    Exposition::new(sample, groups).chain(own)
}

fn unavailable(reason: &'static str) -> Response {
    text(StatusCode::SERVICE_UNAVAILABLE, reason)
}

/// A snapshot, which can always be written: it has no keys but names.
pub(crate) fn json(snapshot: &Snapshot) -> Response {
    let json = serde_json::to_vec(snapshot).unwrap_or_default();
    whole(StatusCode::OK, "application/json", json.into())
}

pub(crate) fn page() -> Response {
    let mut response = whole(StatusCode::OK, "text/html; charset=utf-8", DOCUMENT.into());
    // The page contains its script and style, and requests nothing but the snapshot.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}
