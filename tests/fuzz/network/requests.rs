//! HTTP requests to the agent and to the bridge: whole connections, and single headers and bodies.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, HOST};
use hyper::service::service_fn;
use jiff::Timestamp;
use psi_agent::bridge::prioritize;
use psi_agent::bridge::query;
use psi_agent::bridge::service::BridgeService;
use psi_agent::bridge::table::Table;
use psi_agent::bridge::window::Reach;
use psi_agent::contract::Prefix;
use psi_agent::own_metrics::bridge::BridgeMetrics;
use psi_agent::serve::authorization::{METRICS, PAGE, Page, SNAPSHOT, bearer_token, refusal};
use psi_agent::serve::compression::accepts_gzip;
use psi_agent::serve::connections::Service;
use tokio::sync::watch;

use super::{Annotations, EVENT_LOOP, check_message};
use crate::connection::Connection;

thread_local! {
    static BRIDGE: BridgeService = bridge();
}

/// A bridge that knows the scores of two Nodes, and another Node without one.
fn bridge() -> BridgeService {
    let day = Duration::from_secs(86_400);
    let now = Timestamp::now();
    let reach = Reach { window: Duration::from_secs(1), stale_after: day };
    let mut table = Table::new(Prefix::default(), reach);
    let observed_at = now - Duration::from_secs(60);
    let node = |name: &str, score: &str| {
        let annotations = [
            ("score", score),
            ("cpu", score),
            ("memory", "0"),
            ("observed-at", &observed_at.to_string()),
            ("basis", "run-delay/6"),
        ];
        let annotations =
            annotations.map(|(key, value)| (format!("psi-agent.io/{key}"), value.to_owned()));
        (name.to_owned(), Annotations::from(annotations))
    };
    let silent = ("silent".to_owned(), Annotations::new());
    table.replace(vec![node("hot", "60"), node("calm", "0"), silent], now);
    let (_, tables) = watch::channel(table);
    let metrics = BridgeMetrics::default();
    BridgeService::new(tables, Arc::new(metrics))
}

/// A connection's bytes: hyper parses them, the access rules decide on each request, and the bridge responds.
pub(crate) fn http_request(bytes: &[u8]) {
    let sent = RefCell::new(Vec::new());
    let peer = Ipv4Addr::new(10, 0, 0, 7).into();
    BRIDGE.with(|bridge| {
        let respond = service_fn(|request: Request<Incoming>| async move {
            check_access_rules(&request);
            let response = bridge.respond(request, peer).await;
            let status = response.status().as_u16();
            assert!([200, 400, 404, 405, 408, 413].contains(&status), "{status}");
            Ok::<_, Infallible>(response)
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(32 * 1024)
            .serve_connection(Connection { received: bytes, sent: &sent }, respond);
        // An error is a malformed request.
        let _ = EVENT_LOOP.with(|event_loop| event_loop.block_on(connection));
    });
    let sent = sent.into_inner();
    assert!(sent.is_empty() || sent.starts_with(b"HTTP/1."), "{}", sent.escape_ascii());
}

/// What is decided about a request, under several rules and for several peers.
fn check_access_rules(request: &Request<Incoming>) {
    let header = |name| request.headers().get(name).map(|it| it.to_str().unwrap_or_default());
    let (path, host) = (request.uri().path(), header(HOST));
    let is_page = [PAGE, SNAPSHOT].contains(&path);
    let peers = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 7)];
    for (peer, page) in peers.iter().flat_map(|peer| {
        [Page::Loopback, Page::Anywhere, Page::Off].map(|page| (IpAddr::from(*peer), page))
    }) {
        let is_local = peer.is_loopback();
        let is_refused = |is_plain| refusal(peer, path, is_plain, false).is_some();
        assert!(!is_refused(false), "encrypted");
        assert!(is_refused(true) || is_local && path != METRICS, "plain HTTP");
        let is_free = page.requirement(peer, path, host) == Ok(None);
        assert!(!is_free || path != METRICS, "metrics without a token");
        if is_free && is_page {
            assert!(page != Page::Off && is_local, "the page is off, or of another host");
            assert!(host.is_none_or(is_no_name), "{host:?} may be any website");
        }
    }
    if let Some(token) = header(AUTHORIZATION).and_then(bearer_token) {
        check_token(header(AUTHORIZATION).unwrap_or_default(), token);
    }
    if let Some(accepted) = header(ACCEPT_ENCODING).filter(|header| accepts_gzip(header)) {
        let accepted = accepted.to_ascii_lowercase();
        assert!(accepted.contains("gzip"), "{accepted}");
    }
}

/// Whether a header `Host` is `localhost` or consists of what IP addresses and ports consist of.
fn is_no_name(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let rest = host.strip_prefix("localhost").unwrap_or(&host);
    rest.bytes().all(|byte| byte.is_ascii_hexdigit() || b".:[]".contains(&byte))
}

fn check_token(header: &str, token: &str) {
    assert!(!token.is_empty() && header.trim().ends_with(token), "{header:?}");
    assert!(token.bytes().all(|byte| byte.is_ascii_graphic()), "{token:?}");
}

/// The value of a header `Authorization`.
pub(crate) fn authorization(bytes: &[u8]) {
    let header = String::from_utf8_lossy(bytes);
    if let Some(token) = bearer_token(&header) {
        check_token(&header, token);
    }
}

/// The value of a header `Host`, on loopback.
pub(crate) fn host(bytes: &[u8]) {
    let host = String::from_utf8_lossy(bytes);
    let requirement = Page::Loopback.requirement(Ipv4Addr::LOCALHOST.into(), PAGE, Some(&host));
    assert!(requirement != Ok(None) || is_no_name(&host), "{host:?}");
}

/// The body that a scheduler sends to its extender.
pub(crate) fn extender_arguments(bytes: &[u8]) {
    match prioritize::parse(bytes) {
        Ok(asked) => assert!(asked.nodes.len() <= 50_001, "{}", asked.nodes.len()),
        Err(error) => check_message(&error.to_string()),
    }
}

/// A form that a descheduler sends as body or as query.
pub(crate) fn query_form(bytes: &[u8]) {
    match query::check(bytes) {
        Ok(()) => {
            let is_query = |(key, value): &(_, std::borrow::Cow<'_, str>)| {
                key == "query"
                    && ["slow-score", "node:psi_agent_node_score_ratio:avg10m_neutral"]
                        .contains(&value.trim())
            };
            assert!(form_urlencoded::parse(bytes).any(|pair| is_query(&pair)));
        }
        Err(error) => check_message(&error.to_string()),
    }
}
