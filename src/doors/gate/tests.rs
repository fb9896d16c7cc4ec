//! An API server of the test's own: what it is asked, and what comes of each of its answers.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// Who the test's API server knows: `prometheus`, who may, and `visitor`, who may not.
fn answer(path: &str, question: &Value) -> (u16, Value) {
    let spec = &question["spec"];
    let status = match path.rsplit('/').next().unwrap() {
        "tokenreviews" => match spec["token"].as_str().unwrap() {
            "nobody" => json!({"authenticated": true, "user": {}}),
            "broken" => return (500, json!({"message": "out of order"})),
            token @ ("prometheus" | "visitor") => json!({
                "authenticated": true,
                "user": {"username": token, "uid": "7", "groups": ["a"], "extra": {"k": ["v"]}},
            }),
            _ => json!({"error": "never heard of it"}),
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
    gate: Arc<Gate>,
    calls: Arc<AtomicUsize>,
    heard: Arc<Mutex<Vec<&'static str>>>,
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
                let question = serde_json::from_slice(&body).unwrap();
                tokio::task::yield_now().await;
                let (status, json) = answer(parts.uri.path(), &question);
                let body = Body::from(json.to_string().into_bytes());
                let answer = http::Response::builder().status(status).body(body).unwrap();
                Ok::<_, Infallible>(answer)
            }
        });
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&heard);
        let api = ApiClient::new(Client::new(service, "default"));
        let gate = Gate::new(api, move |report| {
            hear.lock().unwrap().push(match report {
                Report::Found(verdict) => verdict.word(),
                Report::Failed(error) => error.word(),
            });
        });
        Self { gate: Arc::new(gate.unwrap()), calls, heard }
    }

    async fn pass(&self, token: &str) -> Verdict {
        self.gate.pass(Door::Metrics, token).await
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn the_api_server_says_who_may_and_is_asked_once() {
    let scene = Scene::new();
    for _ in 0..3 {
        assert_eq!(scene.pass("prometheus").await, Verdict::Allowed);
        assert_eq!(scene.pass("visitor").await, Verdict::Forbidden);
        assert_eq!(scene.pass("made up").await, Verdict::Unauthenticated);
        // Known, but to nobody's name: no right can be meant for it.
        assert_eq!(scene.pass("nobody").await, Verdict::Unauthenticated);
        assert_eq!(scene.pass("broken").await, Verdict::Unanswered);
    }
    assert_eq!(scene.calls(), 2 + 2 + 1 + 1 + 1);
    let heard = scene.heard.lock().unwrap().join(" ");
    assert_eq!(heard, "allowed forbidden unauthenticated unauthenticated failed");
}

#[tokio::test]
async fn who_asks_at_once_with_one_token_shares_its_review() {
    let scene = Scene::new();
    let visits: Vec<_> = (0..50)
        .map(|_| {
            let gate = Arc::clone(&scene.gate);
            tokio::spawn(async move { gate.pass(Door::Metrics, "prometheus").await })
        })
        .collect();
    for visit in visits {
        assert_eq!(visit.await.unwrap(), Verdict::Allowed);
    }
    assert_eq!(scene.calls(), 2);
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_review_with_it() {
    let scene = Scene::new();
    tokio::select! {
        biased;
        _ = scene.pass("prometheus") => panic!("it cannot be known yet"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(scene.pass("prometheus").await, Verdict::Allowed);
    assert_eq!(scene.calls(), 2);
}

#[tokio::test]
async fn hundreds_of_wrong_tokens_make_few_calls_and_do_not_shut_out_who_is_known() {
    let scene = Scene::new();
    assert_eq!(scene.pass("prometheus").await, Verdict::Allowed);
    let started = moment_now().at;
    let mut not_asked = 0;
    for number in 0..500 {
        let verdict = scene.pass(&format!("guess-{number}")).await;
        assert!([Verdict::Unauthenticated, Verdict::NotAsked].contains(&verdict), "{verdict:?}");
        not_asked += usize::from(verdict == Verdict::NotAsked);
    }
    let took = usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!(scene.calls() <= 2 + 10 + 1 + took, "{} calls", scene.calls());
    assert!(not_asked > 0);
    assert_eq!(scene.pass("prometheus").await, Verdict::Allowed);
}
