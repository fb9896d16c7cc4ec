//! The bridge's responses to deschedulers, schedulers, probes and Prometheus. Request bodies are
//! limited in length, time and number.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

use super::document::Document;
use super::table::{STANDINGS, Table, Views};
use super::{load_watcher, prioritize, query};
use crate::clock;
use crate::own_metrics::bridge::{self, BridgeMetrics};
use crate::serve::authorization::{LIVEZ, METRICS, READYZ};
use crate::serve::body::{EXPOSITION, Request, Response, chunked, method_not_allowed, text, whole};
use crate::serve::connections::Service;

const QUERY: &str = "/api/v1/query";
const PRIORITIZE: &str = "/prioritize";
const WATCHER: &str = "/watcher";

const MAX_FORM: usize = 64 * 1024;
/// Bytes of an extender's arguments: a pod, and the names of 10,000 Nodes.
const MAX_ARGUMENTS: usize = 4 * 1024 * 1024;
/// Bytes of a body that are read at once. The rest of a larger body is read when the peer gets a
/// [`Turn`].
const SMALL_BODY: usize = 16 * 1024;
/// Maximum number of larger bodies in progress at the same time, at most one for each peer: a
/// scheduler sends one after another.
const MAX_LARGE_BODIES: usize = 4;
/// Time limit of receiving a body, including the wait for its turn: less than kube-scheduler's
/// default `httpTimeout`, 5 s.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);
/// Views that may be in memory at once, of 2 MB each with 15,000 Nodes.
const MOST_VIEWS: usize = 8;

#[derive(Debug)]
pub struct BridgeService {
    table: watch::Receiver<Table>,
    own_metrics: Arc<BridgeMetrics>,
    /// Views and the seconds in which they were made, the latest last: all responses in a second share
    /// them. Of earlier ones, those that clients still read.
    recent: Mutex<Vec<(i64, Arc<Views>)>>,
    /// The peers whose large bodies are in progress.
    sending: watch::Sender<BTreeSet<IpAddr>>,
}

/// A document or another value; an error is the status and the reason.
type ServiceResult<T = Document> = Result<T, (StatusCode, String)>;

impl BridgeService {
    pub fn new(table: watch::Receiver<Table>, own_metrics: Arc<BridgeMetrics>) -> Self {
        let (recent, sending) = (Mutex::default(), watch::Sender::default());
        Self { table, own_metrics, recent, sending }
    }

    async fn query(&self, request: Request, peer: IpAddr) -> ServiceResult {
        let form = match *request.method() {
            Method::POST => self.body(request.into_body(), MAX_FORM, peer).await?.0,
            _ => request.uri().query().unwrap_or_default().as_bytes().to_vec(),
        };
        query::check(&form).map_err(bad_request)?;
        let now = clock::now().timestamp();
        query::answer(self.views(now)?, now).ok_or_else(no_node_known)
    }

    fn watcher(&self) -> ServiceResult {
        let (window, now) = (self.table.borrow().reach.window, clock::now().timestamp());
        Ok(load_watcher::document(self.views(now)?, now, window))
    }

    async fn prioritize(&self, request: Request, peer: IpAddr) -> ServiceResult {
        let (body, turn) = self.body(request.into_body(), MAX_ARGUMENTS, peer).await?;
        let asked = prioritize::parse(&body).map_err(bad_request)?;
        let views = self.views(clock::now().timestamp())?;
        let answer = prioritize::answer(views, asked).ok_or_else(no_node_known)?;
        // The turn ends when the response is written, or its connection has failed.
        Ok(Box::new(answer.inspect(move |_| _ = &turn)))
    }

    /// Receives a body, and the peer's turn if it is a large one.
    async fn body(
        &self,
        mut body: Incoming,
        max: usize,
        peer: IpAddr,
    ) -> ServiceResult<(Vec<u8>, Option<Turn>)> {
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let received = tokio::time::timeout(BODY_TIMEOUT, async {
            let (mut bytes, mut turn) = (Vec::new(), None);
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    bad_request(format!(
                        "the connection failed before the end of the body: {error}"
                    ))
                })?;
                let Ok(data) = frame.into_data() else { continue };
                let length = bytes.len() + data.len();
                if announced.max(length) > max {
                    let reason = format!(
                        "the body is longer than {max} bytes; an extender sends names instead of \
                         whole Nodes with nodeCacheCapable: true"
                    );
                    return Err((StatusCode::PAYLOAD_TOO_LARGE, reason));
                }
                if length > SMALL_BODY && turn.is_none() {
                    turn = Some(self.turn(peer).await);
                    bytes.reserve(announced.saturating_sub(bytes.len()));
                }
                bytes.extend_from_slice(&data);
            }
            Ok((bytes, turn))
        });
        received.await.unwrap_or_else(|_| {
            let reason = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            Err((StatusCode::REQUEST_TIMEOUT, reason))
        })
    }

    /// Waits until a large body of this peer may be read.
    async fn turn(&self, peer: IpAddr) -> Turn {
        let mut changes = self.sending.subscribe();
        let begin = |sending: &mut BTreeSet<IpAddr>| {
            sending.len() < MAX_LARGE_BODIES && sending.insert(peer)
        };
        // `changed` does not fail, since the service holds the sender.
        while !self.sending.send_if_modified(begin) && changes.changed().await.is_ok() {}
        Turn { sending: self.sending.clone(), peer }
    }

    fn views(&self, now: Timestamp) -> ServiceResult<Arc<Views>> {
        let unavailable = |reason: &str| (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned());
        let mut recent = self.recent.lock();
        if let Some((second, views)) = recent.last()
            && *second == now.as_second()
        {
            return Ok(Arc::clone(views));
        }
        recent.retain(|(_, views)| Arc::strong_count(views) > 1);
        if recent.len() >= MOST_VIEWS {
            return Err(unavailable("slow clients read all documents"));
        }
        let views = self.table.borrow().views(now).ok_or_else(|| {
            unavailable("the API server has not listed the Nodes yet: see the bridge's log")
        })?;
        let views = Arc::new(views);
        recent.push((now.as_second(), Arc::clone(&views)));
        Ok(views)
    }

    /// Counts the request, and makes its response.
    fn response(&self, form: &'static str, formed: ServiceResult) -> Response {
        self.own_metrics.requested(form, formed.as_ref().err());
        match formed {
            Ok(document) => chunked("application/json", document, false),
            Err((status, reason)) => refused(status, &reason),
        }
    }

    fn metrics(&self) -> Response {
        let views = self.table.borrow().views(clock::now().timestamp());
        let count = |standing| views.as_ref().map_or(0, |views| views.count(standing));
        let nodes = STANDINGS.map(|standing| (standing, count(standing)));
        whole(StatusCode::OK, EXPOSITION, self.own_metrics.render(nodes.into()).into())
    }

    fn readyz(&self) -> Response {
        if self.table.borrow().is_listed() {
            text(StatusCode::OK, "ok\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "waiting for the list of Nodes\n")
        }
    }
}

impl Service for BridgeService {
    async fn respond(&self, request: Request, peer: IpAddr) -> Response {
        match (request.uri().path(), request.method().as_str()) {
            (QUERY, "GET" | "POST") => {
                self.response(bridge::QUERY, self.query(request, peer).await)
            }
            (QUERY, _) => method_not_allowed("GET, POST"),
            (PRIORITIZE, "POST") => {
                self.response(bridge::PRIORITIZE, self.prioritize(request, peer).await)
            }
            (PRIORITIZE, _) => method_not_allowed("POST"),
            (WATCHER, "GET" | "HEAD") => self.response(bridge::WATCHER, self.watcher()),
            (METRICS, "GET" | "HEAD") => self.metrics(),
            (READYZ, "GET" | "HEAD") => self.readyz(),
            // Always healthy: if the event loop did not run, there would be no response.
            (LIVEZ, "GET" | "HEAD") => text(StatusCode::OK, "ok\n"),
            (WATCHER | METRICS | READYZ | LIVEZ, _) => method_not_allowed("GET, HEAD"),
            _ => text(
                StatusCode::NOT_FOUND,
                "Not found. Try /api/v1/query, /watcher, /prioritize or /metrics.\n",
            ),
        }
    }
}

/// A peer's turn to send a large body and to receive its response. It ends when the value is
/// dropped.
struct Turn {
    sending: watch::Sender<BTreeSet<IpAddr>>,
    peer: IpAddr,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.sending.send_modify(|sending| {
            sending.remove(&self.peer);
        });
    }
}

/// An error in Prometheus' form.
fn refused(status: StatusCode, reason: &str) -> Response {
    let kind = match status {
        StatusCode::REQUEST_TIMEOUT => "timeout",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ => "bad_data",
    };
    let error = json!({"status": "error", "errorType": kind, "error": reason});
    whole(status, "application/json", error.to_string().into())
}

fn bad_request(reason: String) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, reason)
}

fn no_node_known() -> (StatusCode, String) {
    let reason = "no Node has a known slow score: agents have published no fresh value, or for \
                  less than half of --window; see `psi-agent nodes`";
    (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::window::Reach;
    use crate::contract::Prefix;

    #[test]
    fn views_that_slow_clients_read_are_bounded() {
        let reach = Reach { window: Duration::from_secs(60), stale_after: Duration::from_secs(60) };
        let mut table = Table::new(Prefix::default(), reach);
        table.replace(vec![], clock::now().timestamp());
        let (_table, receiver) = watch::channel(table);
        let service = BridgeService::new(receiver, Arc::default());
        let at = |second| service.views(Timestamp::from_second(second).unwrap());
        let read: Vec<_> = (0..).take(MOST_VIEWS).map(|second| at(second).unwrap()).collect();
        assert!(Arc::ptr_eq(&at(7).unwrap(), &read[7]), "a second has one");
        assert_eq!(at(8).unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);
        drop(read);
        assert!((9..99).all(|second| at(second).is_ok()));
    }
}
