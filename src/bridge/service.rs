//! What is answered to deschedulers, schedulers, probes and Prometheus. Bodies are bounded in length,
//! in time and in number.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::now;
use super::table::{Standing, Table, Views};
use super::watcher::Hosts;
use super::{prioritize, query, watcher};
use crate::doors::rules::{Admission, Page, Refusal, Rules, Visit};
use crate::output::answer::{Answer, text, whole};
use crate::output::connections::Service;
use crate::self_health::bridge::{BridgeHealth, Form, Outcome};

/// No descheduler's query is longer.
const LONGEST_FORM: usize = 64 * 1024;
/// A pod, and the names of 10,000 Nodes or some 200 Nodes whole.
const LONGEST_ARGUMENTS: usize = 4 * 1024 * 1024;
/// Pods that are placed at the same time: a scheduler places one after another.
const MOST_ARGUMENTS: usize = 4;
/// A scheduler gives up much earlier.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What requests are answered from.
#[derive(Debug)]
pub(super) struct BridgeService {
    table: watch::Receiver<Table>,
    rules: Rules,
    health: Arc<BridgeHealth>,
    places: Semaphore,
}

/// What came of a request in one of the forms: an answer, or why there is none.
type Formed = Result<Value, (StatusCode, Value)>;

impl BridgeService {
    /// Answers from this table, by these rules.
    pub(super) fn new(
        table: watch::Receiver<Table>,
        rules: Rules,
        health: Arc<BridgeHealth>,
    ) -> Self {
        // There is no page here to be kept from anybody.
        let rules = Rules { page: Page::Anywhere, ..rules };
        Self { table, rules, health, places: Semaphore::new(MOST_ARGUMENTS) }
    }

    async fn query(&self, request: Request<Incoming>) -> Formed {
        let url = request.uri().query().unwrap_or_default().as_bytes().to_vec();
        let form = match *request.method() {
            Method::POST => body(request, LONGEST_FORM).await?.to_vec(),
            _ => url,
        };
        query::check(&form, now()).map_err(|error| bad_request(&error))?;
        let views = self.views()?;
        query::answer(&views, now()).ok_or_else(nobody_known)
    }

    fn watcher(&self, request: &Request<Incoming>) -> Formed {
        let hosts = Hosts::of(request.uri().query());
        let table = self.table.borrow();
        let window = table.reach().window;
        drop(table);
        watcher::document(&self.views()?, &hosts, now(), window).ok_or_else(|| {
            let why = "no Node of this name is selected by --node-selector";
            (StatusCode::NOT_FOUND, query::refusal("not_found", why))
        })
    }

    async fn prioritize(&self, request: Request<Incoming>) -> Formed {
        let place = tokio::time::timeout(BODY_TIMEOUT, self.places.acquire()).await;
        let place = place.map_err(|_| unavailable("too many pods are to be placed at once"))?;
        let body = body(request, LONGEST_ARGUMENTS).await?;
        let candidates = prioritize::candidates(&body).map_err(|error| bad_request(&error))?;
        drop((body, place));
        prioritize::answer(&self.views()?, &candidates).ok_or_else(nobody_known)
    }

    fn views(&self) -> Result<Views, (StatusCode, Value)> {
        self.table.borrow().views(now()).ok_or_else(|| {
            unavailable("the API server has not listed the Nodes yet: see the bridge's log")
        })
    }

    /// Counts what came of it, and says it.
    fn tell(&self, form: Form, formed: Formed) -> Response<Answer> {
        let (status, value, outcome) = match formed {
            Ok(value) => (StatusCode::OK, value, Outcome::Answered),
            Err((StatusCode::SERVICE_UNAVAILABLE, why)) => {
                (StatusCode::SERVICE_UNAVAILABLE, why, Outcome::Unknown)
            }
            Err((status, why)) => (status, why, Outcome::Refused),
        };
        self.health.asked(form, outcome);
        whole(status, "application/json", value.to_string().into())
    }

    fn metrics(&self) -> Response<Answer> {
        if let Some(views) = self.table.borrow().views(now()) {
            for standing in Standing::ALL {
                self.health.nodes(standing.word(), views.count(standing));
            }
        }
        match self.health.render() {
            Ok(metrics) => {
                let format = "text/plain; version=0.0.4; charset=utf-8";
                whole(StatusCode::OK, format, metrics.into())
            }
            Err(error) => {
                tracing::error!(%error, "Cannot render the bridge's own metrics");
                text(StatusCode::INTERNAL_SERVER_ERROR, "Cannot render the metrics.\n")
            }
        }
    }

    fn readyz(&self) -> Response<Answer> {
        if self.table.borrow().is_listed() {
            text(StatusCode::OK, "ok\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "waiting for the list of Nodes\n")
        }
    }

    /// load-watcher's own health: whether it has numbers.
    fn health(&self) -> Response<Answer> {
        let is_known = self.views().is_ok_and(|views| views.neutral.is_some());
        if is_known {
            text(StatusCode::OK, "ok\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "no Node is known\n")
        }
    }
}

impl Service for BridgeService {
    async fn answer(&self, request: Request<Incoming>, visit: Visit) -> Response<Answer> {
        let path = request.uri().path();
        if self.rules.admit(visit, path) == Admission::Refused(Refusal::NotEncrypted) {
            return text(
                StatusCode::BAD_REQUEST,
                "This was asked by plain HTTP, and is served by HTTPS: ask https://.\n",
            );
        }
        let Some((route, methods)) = Route::at(path) else {
            return text(
                StatusCode::NOT_FOUND,
                "Not found. Try /api/v1/query, /watcher, /prioritize or /metrics.\n",
            );
        };
        if !methods.split(", ").any(|method| method == request.method().as_str()) {
            let mut refused =
                text(StatusCode::METHOD_NOT_ALLOWED, "This path has other methods.\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
            return refused;
        }
        match route {
            Route::Query => self.tell(Form::Query, self.query(request).await),
            Route::Watcher => self.tell(Form::Watcher, self.watcher(&request)),
            Route::Prioritize => self.tell(Form::Prioritize, self.prioritize(request).await),
            Route::WatcherHealth => self.health(),
            Route::Metrics => self.metrics(),
            Route::Readyz => self.readyz(),
            // The event loop turns, or nobody would say so.
            Route::Livez => text(StatusCode::OK, "ok\n"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Route {
    Query,
    Watcher,
    WatcherHealth,
    Prioritize,
    Metrics,
    Livez,
    Readyz,
}

impl Route {
    /// What is at a path, and by which methods; `None` where nothing is.
    fn at(path: &str) -> Option<(Self, &'static str)> {
        match path {
            "/api/v1/query" => Some((Self::Query, "GET, POST")),
            "/prioritize" => Some((Self::Prioritize, "POST")),
            "/watcher" => Some((Self::Watcher, "GET, HEAD")),
            "/watcher/health" => Some((Self::WatcherHealth, "GET, HEAD")),
            "/metrics" => Some((Self::Metrics, "GET, HEAD")),
            "/livez" => Some((Self::Livez, "GET, HEAD")),
            "/readyz" => Some((Self::Readyz, "GET, HEAD")),
            _ => None,
        }
    }
}

/// A body that is as long at most, in time.
async fn body(request: Request<Incoming>, longest: usize) -> Result<Bytes, (StatusCode, Value)> {
    let collected = Limited::new(request.into_body(), longest).collect();
    match tokio::time::timeout(BODY_TIMEOUT, collected).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let why = format!(
                "the body is longer than {longest} bytes; an extender sends names instead of whole \
                 Nodes with nodeCacheCapable: true"
            );
            Err((StatusCode::PAYLOAD_TOO_LARGE, query::refusal("bad_data", &why)))
        }
        Ok(Err(error)) => Err(bad_request(&format!("the body broke off: {error}"))),
        Err(_) => {
            let why = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            Err((StatusCode::REQUEST_TIMEOUT, query::refusal("timeout", &why)))
        }
    }
}

fn bad_request(why: &impl ToString) -> (StatusCode, Value) {
    (StatusCode::BAD_REQUEST, query::refusal("bad_data", &why.to_string()))
}

fn unavailable(why: &str) -> (StatusCode, Value) {
    (StatusCode::SERVICE_UNAVAILABLE, query::refusal("unavailable", why))
}

fn nobody_known() -> (StatusCode, Value) {
    unavailable(
        "of no Node is the slow score known: agents have written nothing that is fresh, or not for \
         half of --window yet; `psi-agent nodes` shows what they wrote",
    )
}
