//! Token reviews by a fake API server.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::serve::authorization::METRICS;

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// The fake API server authenticates `prometheus`, which has the right, and `visitor`, which has not.
fn respond(path: &str, request: &Value) -> (u16, Value) {
    let spec = &request["spec"];
    let status = match path.rsplit('/').next().unwrap() {
        "tokenreviews" => match spec["token"].as_str().unwrap() {
            "nameless" => json!({"authenticated": true, "user": {}}),
            "broken" => return (500, json!({"message": "out of order"})),
            token @ ("prometheus" | "visitor") => json!({
                "authenticated": true,
                "user": {"username": token, "uid": "7", "groups": ["a"], "extra": {"k": ["v"]}},
            }),
            _ => json!({"error": "unknown token"}),
        },
        "subjectaccessreviews" => {
            assert_eq!((&spec["uid"], &spec["groups"]), (&json!("7"), &json!(["a"])));
            assert_eq!(spec["extra"], json!({"k": ["v"]}));
            let wanted = &spec["nonResourceAttributes"];
            assert_eq!(*wanted, json!({"path": "/metrics", "verb": "get"}));
            json!({"allowed": spec["user"] == "prometheus"})
        }
        other => panic!("{other}"),
    };
    (201, json!({ "status": status }))
}

struct Scene {
    authenticator: Arc<Authenticator>,
    calls: Arc<AtomicUsize>,
    reported: Arc<Mutex<Vec<&'static str>>>,
}

impl Scene {
    fn new() -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                let (parts, body) = request.into_parts();
                assert_eq!(parts.method, "POST");
                let body = body.collect().await.unwrap().to_bytes();
                let request = serde_json::from_slice(&body).unwrap();
                tokio::task::yield_now().await;
                let (status, json) = respond(parts.uri.path(), &request);
                let body = Body::from(json.to_string().into_bytes());
                let response = http::Response::builder().status(status).body(body).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        let reported = Arc::new(Mutex::new(Vec::new()));
        let report = Arc::clone(&reported);
        let reviewer = ApiClient::new(Client::new(service, "default"));
        let authenticator = Authenticator::new(reviewer, move |outcome| {
            report.lock().push(match outcome {
                Ok(decision) => decision.into_str(),
                Err(error) => error.into_str(),
            });
        });
        Self { authenticator: Arc::new(authenticator.unwrap()), calls, reported }
    }

    /// Sends a token from an address of its own.
    async fn decide(&self, token: &'static str) -> Decision {
        let address = std::net::Ipv4Addr::from(u32::try_from(token.len()).unwrap()).into();
        self.authenticator.decide(METRICS, token, address).await
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn the_api_server_decides_and_each_token_is_reviewed_once() {
    let scene = Scene::new();
    for _ in 0..3 {
        assert_eq!(scene.decide("prometheus").await, Decision::Allowed);
        assert_eq!(scene.decide("visitor").await, Decision::Forbidden);
        assert_eq!(scene.decide("made up").await, Decision::Unauthenticated);
        // Authenticated, but without a user name that could have rights.
        assert_eq!(scene.decide("nameless").await, Decision::Unauthenticated);
        assert_eq!(scene.decide("broken").await, Decision::Unanswered);
    }
    assert_eq!(scene.calls(), 2 + 2 + 1 + 1 + 1);
    let reported = scene.reported.lock().join(" ");
    assert_eq!(reported, "allowed forbidden unauthenticated unauthenticated failed");
}

#[tokio::test]
async fn concurrent_requests_with_one_token_share_its_review() {
    let scene = Scene::new();
    let requests: Vec<_> = (0..50)
        .map(|_| {
            let authenticator = Arc::clone(&scene.authenticator);
            let path = METRICS;
            tokio::spawn(async move { authenticator.decide(path, "prometheus", ADDRESS).await })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await.unwrap(), Decision::Allowed);
    }
    assert_eq!(scene.calls(), 2);
}

#[tokio::test]
async fn a_review_continues_when_its_client_disconnects() {
    let scene = Scene::new();
    tokio::select! {
        biased;
        _ = scene.decide("prometheus") => panic!("the review has not ended yet"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(scene.decide("prometheus").await, Decision::Allowed);
    assert_eq!(scene.calls(), 2);
}
